"""The training steps that the memory inspector offers: a model with its inputs, batch, optimizer,
precision, checkpointing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpulab import memory, networks
from gpulab.memory import MemoryTrace, Prediction
from gpulab.widgets._work import Progress, Stop

PRECISIONS = ("float32", "bfloat16", "float16", "pure-bfloat16", "pure-float16")
OPTIMIZERS = ("adam", "adamw", "sgd", "sgd-momentum", "rmsprop")
_CLASSES = 10


@dataclass(frozen=True)
class ModelChoice:
    """A model of ``gpulab.networks`` and the shape of one of its samples.

    Attributes
    ----------
    label : str
    network : str
        The function of ``gpulab.networks``.
    arguments, named : tuple of int, mapping
        The arguments of that function.
    shape : tuple of int
        Of one sample.
    vocabulary : int
        Of a language model, whose samples are tokens; 0 for images.
    """

    label: str
    network: str
    arguments: tuple[int, ...]
    named: Mapping[str, int]
    shape: tuple[int, ...]
    vocabulary: int = 0

    @property
    def call(self) -> str:
        """The function and its arguments, as code."""
        words = [
            *map(str, self.arguments),
            *(f"{name}={value}" for name, value in self.named.items()),
        ]
        return f"{self.network}({', '.join(words)})"

    def make(self) -> Any:
        """Return the model."""
        return getattr(networks, self.network)(*self.arguments, **self.named)

    def batch(self, count: int, device: str) -> tuple[Any, Any]:
        """Return (inputs, targets) on a device; "meta" costs no memory."""
        import torch

        shape = (count, *self.shape)
        if self.vocabulary:
            tokens = torch.randint(self.vocabulary, shape, device=device)
            return tokens, tokens
        return torch.rand(shape, device=device), torch.randint(_CLASSES, (count,), device=device)

    def batch_code(self, count: int, device: str = "") -> str:
        """Return the line that makes ``x`` and ``y``."""
        where = f", device={device}" if device else ""
        shape = ", ".join(map(str, (count, *self.shape)))
        if self.vocabulary:
            return f"x = y = torch.randint({self.vocabulary}, ({shape}){where})"
        return f"x, y = torch.rand({shape}{where}), torch.randint({_CLASSES}, ({count},){where})"


MODELS: Mapping[str, ModelChoice] = {
    "cnn": ModelChoice(
        "CNN on 32 x 32 color images", "cnn", (3, 10), {"width": 32, "stages": 3}, (3, 32, 32)
    ),
    "mlp": ModelChoice("MLP, 3 x 1024 hidden", "mlp", (784, 1024, 10), {"depth": 3}, (784,)),
    "transformer": ModelChoice(
        "Transformer, 4 layers of 256",
        "transformer",
        (1000, 256, 8, 4),
        {"context": 128},
        (128,),
        1000,
    ),
    "gpt2-small": ModelChoice(
        "Transformer, GPT-2 small's size",
        "transformer",
        (50257, 768, 12, 12),
        {"context": 1024, "tied": True},
        (1024,),
        50257,
    ),
}


@dataclass(frozen=True)
class StepChoice:
    """One training step, as the controls describe it."""

    model: str
    batch: int
    optimizer: str
    precision: str
    checkpoint: bool

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> StepChoice:
        """Return the step of an instrument's values."""
        return cls(
            values["model"],
            values["batch"],
            values["optimizer"],
            values["precision"],
            values["checkpoint"],
        )

    @property
    def words(self) -> str:
        """The step without its model, short enough for the label of a bar."""
        return (
            f"batch {self.batch}, {self.precision}, "
            f"{self.optimizer}{', checkpointed' if self.checkpoint else ''}"
        )

    def _options(self) -> dict[str, Any]:
        import torch

        loss = None if MODELS[self.model].vocabulary else torch.nn.functional.cross_entropy
        return {
            "loss": loss,
            "optimizer": self.optimizer,
            "precision": self.precision,
            "checkpoint": self.checkpoint,
        }

    def predict(self, progress: Progress, stop: Stop) -> Prediction:
        """Run ``gl.memory.predict``."""
        import torch

        progress(0.0, f"predicting {self.words}")
        chosen = MODELS[self.model]
        with torch.device("meta"):
            model = chosen.make()
        x, y = chosen.batch(self.batch, "meta")
        return memory.predict(model, x, targets=y, progress=progress, stop=stop, **self._options())

    def trace(self, device: str, progress: Progress, stop: Stop) -> MemoryTrace:
        """Run ``gl.memory.trace`` on a device."""
        chosen = MODELS[self.model]
        x, y = chosen.batch(self.batch, device)
        model = chosen.make().to(device)
        return memory.trace(
            model, x, targets=y, device=device, progress=progress, stop=stop, **self._options()
        )

    def code(self, function: str, device: str = "") -> str:
        """Return the lines that call ``gl.memory.predict`` or ``trace`` and keep the result in
        ``p`` or ``t``.
        """
        chosen = MODELS[self.model]
        name = function[0]
        model = f"gl.networks.{chosen.call}"
        lines = ["import gpulab as gl", "import torch", ""]
        if function == "trace":
            lines.append(f"model = {model}.to({device})")
        lines.append(chosen.batch_code(self.batch, device))
        given = "model" if function == "trace" else f"lambda: {model}"
        options = {
            "optimizer": self.optimizer,
            "precision": self.precision,
            "checkpoint": self.checkpoint,
        }
        words = "".join(
            f", {key}={value!r}".replace("'", '"')
            for key, value in options.items()
            if (key, value) not in _USUAL
        )
        loss = "" if chosen.vocabulary else ", loss=torch.nn.functional.cross_entropy"
        optimizer = ', optimizer="adam"' if function == "trace" and self.optimizer == "adam" else ""
        return "\n".join(
            [
                *lines,
                f"{name} = gl.memory.{function}({given}, x, targets=y{loss}{optimizer}{words})",
            ]
        )


_USUAL = (("optimizer", "adam"), ("precision", "float32"), ("checkpoint", False))
