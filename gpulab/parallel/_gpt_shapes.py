"""Named sizes of the course's transformer, from the lesson's own to 70 billion parameters, in the
shapes of published models.

All have ``networks.transformer``'s layers: learned positions, GELU, a feed-forward net four times
as wide, and an output layer of its own (so a small model has more parameters than one that ties it
to the embedding). None has pretrained weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpulab.errors import InputError, shown
from gpulab.results import Result


@dataclass(frozen=True)
class GptShape(Result):
    """One size of the transformer.

    Attributes
    ----------
    name : str
    layers, width, heads, vocabulary, context : int
    source : str
        Whose shape it is.
    """

    name: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    context: int
    source: str

    @property
    def parameter_count(self) -> int:
        """Parameters: 12 width² + 13 width a layer, both embeddings, the last norm, and the output
        layer, which has no bias.
        """
        layer = 12 * self.width**2 + 13 * self.width
        ends = (2 * self.vocabulary + self.context + 2) * self.width
        return self.layers * layer + ends

    def model(self) -> Any:
        """Return the ``torch.nn.Module``; under fake tensors or ``torch.device("meta")`` it takes
        no memory.
        """
        from gpulab import networks

        return networks.transformer(
            self.vocabulary, self.width, self.heads, self.layers, context=self.context
        )


_SHAPES = (
    GptShape("course", 2, 128, 4, 1000, 128, "networks.transformer as the lessons use it"),
    GptShape("125M", 12, 768, 12, 50257, 2048, "GPT-3 Small (Brown et al., 2020, table 2.1)"),
    GptShape("1.3B", 24, 2048, 16, 50257, 2048, "GPT-3 XL (table 2.1), with 16 heads of 128"),
    GptShape("7B", 32, 4096, 32, 50257, 2048, "GPT-3 6.7B (table 2.1)"),
    GptShape(
        "70B",
        86,
        8192,
        64,
        50257,
        2048,
        "width and heads of Llama 2 70B (Touvron et al., 2023), 86 layers of this transformer",
    ),
)


def gpt_shapes() -> tuple[str, ...]:
    """Return the names of the sizes.

    Examples
    --------
    >>> gpt_shapes()
    ('course', '125M', '1.3B', '7B', '70B')
    """
    return tuple(shape.name for shape in _SHAPES)


def gpt_shape(name: str) -> GptShape:
    """Return a size by its name.

    Raises
    ------
    InputError
        If there is none of this name.

    Examples
    --------
    >>> round(gpt_shape("7B").parameter_count / 1e9, 2)
    6.86
    """
    for shape in _SHAPES:
        if shape.name == name:
            return shape
    raise InputError(
        f"gpt_shape: {shown(name)} is not a size of the transformer; expected one of: "
        f"{', '.join(gpt_shapes())}. Pass one of these."
    )
