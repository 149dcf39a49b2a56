"""``inference(model, device)``: memory and time of text generation by a decoder.

Decode computes one new position of each sequence. It reads every weight once for the whole batch,
and each sequence's own cache. Prefill computes all positions of one prompt at once.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpulab._given import is_finite, is_whole, whole, word
from gpulab.devices.memory_sizes import gpus
from gpulab.devices.memory_sizes import memory_bytes as product_memory_bytes
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.models._roofline import Roofline, roofline
from gpulab.results import Result
from gpulab.units import format_bytes, format_number, format_seconds

Limit = Literal["weights", "cache", "arithmetic"]
# bits of a weight as stored; a group of 32 codes shares a scale of 16 bits
WEIGHT_BITS = {"float32": 32.0, "bfloat16": 16.0, "int8": 8.0, "int4": 4.5}
CACHE_BITS = {"float32": 32.0, "bfloat16": 16.0, "float8": 8.0}
_MOST = 10**8


@dataclass(frozen=True)
class LanguageModel(Result):
    """The shape of a decoder: attention and a feed-forward network in each layer.

    Attributes
    ----------
    name : str
    layers, width : int
    heads, kv_heads, head_size : int
        Query heads, heads of keys and values (fewer with grouped-query attention), numbers of one.
    feed_width : int
        Of the feed-forward network between its matrices.
    vocabulary : int
        Tokens.
    matrices : int
        Of the feed-forward network: 3 with a gate (SwiGLU), else 2.
    tied : bool
        Whether the scores use the table of the embeddings.
    biases : bool
        Whether the projections to queries, keys and values have them.
    source : str
        Where the figures are published.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    feed_width: int
    vocabulary: int
    matrices: int = 3
    tied: bool = False
    biases: bool = False
    source: str = "your own figures"

    def __post_init__(self) -> None:
        """Refuse what is no shape: counts are whole numbers from 1, and names are of one line."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int":
                holds, wanted = is_whole(value) and 1 <= value <= _MOST, f"1 to {_MOST}"
            elif field.type == "bool":
                holds, wanted = isinstance(value, bool), "True or False"
            else:
                holds = isinstance(value, str) and value.isprintable()
                wanted = "a text of one line"
            if not holds:
                raise InputError(
                    f"LanguageModel: {field.name} is {shown(value)}; expected {wanted}. Take it "
                    "from the model's configuration."
                )
            if field.type == "int":  # of NumPy's integers, Python's
                object.__setattr__(self, field.name, int(value))

    @property
    def read_parameters(self) -> int:
        """The parameters that a step of decode reads: all but the table of embeddings, of which
        it reads a row.
        """
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        attention = self.width * (2 * queries + 2 * keys) + self.biases * (queries + 2 * keys)
        layer = attention + self.matrices * self.width * self.feed_width + 2 * self.width
        return self.layers * layer + self.width + self.vocabulary * self.width

    @property
    def parameter_count(self) -> int:
        """All parameters."""
        return self.read_parameters + (0 if self.tied else self.vocabulary * self.width)

    def cache_bytes(self, positions: int, bits: float = 16.0) -> float:
        """Return the bytes of one sequence's keys and values, in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * positions * bits / 8


# The configurations published with the weights on huggingface.co. The tests compare
# ``parameter_count`` with the published totals.
LANGUAGE_MODELS = {
    model.name: model
    for model in (
        LanguageModel(
            *("Llama 3.2 1B", 16, 2048, 32, 8, 64, 8192, 128_256),
            tied=True,
            source="config.json of meta-llama/Llama-3.2-1B",
        ),
        LanguageModel(
            *("Llama 2 7B", 32, 4096, 32, 32, 128, 11_008, 32_000),
            source="config.json of meta-llama/Llama-2-7b-hf",
        ),
        LanguageModel(
            *("Mistral 7B", 32, 4096, 32, 8, 128, 14_336, 32_000),
            source="config.json of mistralai/Mistral-7B-v0.1",
        ),
        LanguageModel(
            *("Qwen 2.5 7B", 28, 3584, 28, 4, 128, 18_944, 152_064),
            biases=True,
            source="config.json of Qwen/Qwen2.5-7B",
        ),
        LanguageModel(
            *("Llama 3 8B", 32, 4096, 32, 8, 128, 14_336, 128_256),
            source="config.json of meta-llama/Meta-Llama-3-8B",
        ),
        LanguageModel(
            *("Llama 3.1 70B", 80, 8192, 64, 8, 128, 28_672, 128_256),
            source="config.json of meta-llama/Llama-3.1-70B",
        ),
    )
}


@dataclass(frozen=True, repr=False)
class InferencePlan(Result):
    """Memory and least times of generating text with one model on one device.

    Attributes
    ----------
    model : LanguageModel
    device : str
    weights, cache : str
        How they are stored.
    context, batch : int
        Positions that each sequence's cache holds, and sequences.
    weight_bytes, cache_bytes : float
        Of all weights, and of one sequence's cache.
    memory_bytes : float or None
        Of the device; None where not known.
    largest_batch : int or None
        Sequences of this context that fit beside the weights (0: not even the weights do), without
        room for activations; None where the memory is not known.
    step_seconds : float
        Of one step of decode: a new token for each sequence.
    prefill_seconds : float
        Of reading a prompt of ``context`` tokens: the least time to the first token.
    limit : str
        What takes the step's time: reading the "weights", reading the "cache", or "arithmetic".
    knee : float
        The batch at which arithmetic takes as long as reading; infinite if reading always takes
        longer, because each sequence brings a cache.
    evidence : Evidence
        MODELLED.
    """

    model: LanguageModel
    device: str
    weights: str
    cache: str
    context: int
    batch: int
    weight_bytes: float
    cache_bytes: float
    memory_bytes: float | None
    largest_batch: int | None
    step_seconds: float
    prefill_seconds: float
    limit: Limit
    knee: float
    evidence: Evidence

    @property
    def tokens_per_second(self) -> float:
        """New tokens of the whole batch."""
        return self.batch / self.step_seconds

    def cost_per_million_tokens(self, price_per_hour: float) -> float:
        """Return the price of a million new tokens, in the currency of ``price_per_hour``.

        Raises
        ------
        InputError
            If the price is not 0 or more.
        """
        if not is_finite(price_per_hour) or price_per_hour < 0:
            raise InputError(
                f"cost_per_million_tokens: the price is {shown(price_per_hour)}; expected 0 or "
                "more. Pass that of one hour."
            )
        return price_per_hour / 3600 / self.tokens_per_second * 1e6

    @property
    def explanation(self) -> str:
        """One or two sentences: what limits a step, and whether everything fits."""
        why = {
            "weights": "reading the weights, which the whole batch shares: a larger batch is "
            "nearly free",
            "cache": "reading the caches, one for each sequence: a larger batch takes longer",
            "arithmetic": "arithmetic: a larger batch only takes longer",
        }[self.limit]
        if self.largest_batch is None or self.batch <= self.largest_batch:
            return f"Most of a step goes to {why}."
        room = (
            f"at most {self.largest_batch:,} sequences fit"
            if self.largest_batch
            else "not even one sequence fits beside the weights"
        )
        return f"This does not fit: {room}. If it did, most of a step would go to {why}."

    def __repr__(self) -> str:
        return (
            f"<InferencePlan {self.model.name} on {self.device}, batch {self.batch}: "
            f"{self.tokens_per_second:,.0f} tokens/s at most>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return memory, times and rates, a row for each."""
        memory = "not known" if self.memory_bytes is None else format_bytes(self.memory_bytes)
        fits = "not known" if self.largest_batch is None else f"{self.largest_batch:,} sequences"
        return ("model", self.model.name), [
            (f"weights, {self.weights}", format_bytes(self.weight_bytes)),
            (f"cache of a sequence, {self.context:,} positions", format_bytes(self.cache_bytes)),
            (f"largest batch ({memory})", fits),
            ("time to the first token, at least", format_seconds(self.prefill_seconds)),
            (f"time of a step, batch {self.batch:,}, at least", format_seconds(self.step_seconds)),
            ("tokens per second, at most", format_number(self.tokens_per_second)),
            ("of these each sequence gets", format_number(1 / self.step_seconds)),
        ]


def inference(
    model: LanguageModel | str,
    device: Any = None,
    *,
    context: int = 4096,
    batch: int = 1,
    weights: str = "bfloat16",
    cache: str = "bfloat16",
    memory_bytes: float | None = None,
) -> InferencePlan:
    """Return memory and least times of generating text with a decoder.

    Parameters
    ----------
    model : LanguageModel or str
        A shape, or the name of one in ``LANGUAGE_MODELS``.
    device : Roofline, Device, str or Recording, optional
        As ``roofline`` takes it: a device of this machine, a product such as "H200 SXM", or a
        recording.
    context : int
        Positions of each sequence: the length of its cache, and of the prompt.
    batch : int
        Sequences that decode together.
    weights : str
        "float32", "bfloat16", "int8" or "int4" (groups of 32 with a scale of 16 bits). Only the
        weights are short: arithmetic is in bfloat16, or float32 for "float32".
    cache : str
        "float32", "bfloat16" or "float8".
    memory_bytes : float, optional
        Of the device; None takes that of its roofline's main memory.

    Returns
    -------
    InferencePlan
        Upper limits of speed: a perfect kernel, and nothing between kernels. MODELLED.

    Raises
    ------
    InputError
        If there is no such model or format, a number is not positive, or the roofline has no such
        arithmetic or no rate of the main memory.
    DeviceError
        If there is no such device.

    Notes
    -----
    FLOPs: 2 for each parameter and token, and 4 x layers x heads x head size for each earlier
    position of attention (half of that on average in a causal prefill). Bytes: the weights once,
    and the cache of each sequence. Source: Pope et al., "Efficiently Scaling Transformer
    Inference", MLSys 2023.

    Examples
    --------
    >>> p = inference("Llama 3 8B", "H100 SXM", context=8192)
    >>> p.limit, round(p.tokens_per_second)
    ('weights', 208)
    """
    shape = LANGUAGE_MODELS.get(model) if isinstance(model, str) else model
    if not isinstance(shape, LanguageModel):
        raise InputError(
            f"inference: model={shown(model)}; expected one of {', '.join(LANGUAGE_MODELS)}, or a "
            "LanguageModel. Pass one of these."
        )
    bits = WEIGHT_BITS[word("inference", "weights", weights, WEIGHT_BITS)]
    cache_bits = CACHE_BITS[word("inference", "cache", cache, CACHE_BITS)]
    context = whole("inference", "context", context, 1, _MOST)
    batch = whole("inference", "batch", batch, 1, _MOST)
    if memory_bytes is not None and not (is_finite(memory_bytes) and memory_bytes >= 0):
        raise InputError(
            f"inference: memory_bytes={shown(memory_bytes)}; expected 0 or more. Pass bytes, or "
            "leave it out."
        )
    roofs = device if isinstance(device, Roofline) else roofline(device)
    formats = [roof.name for roof in roofs.arithmetic]
    arithmetic = "float32" if weights == "float32" or "bfloat16" not in formats else "bfloat16"
    peak = roofs.arithmetic_roof(arithmetic).flops_per_second
    memory = roofs.memory_roof()
    room = memory_bytes if memory_bytes is not None else memory.capacity_bytes
    if room == math.inf and roofs.device in gpus():
        room = product_memory_bytes(roofs.device)
    stored = shape.parameter_count * bits / 8
    read = shape.read_parameters * bits / 8
    own = shape.cache_bytes(context, cache_bits)
    attention = 4 * shape.layers * shape.heads * shape.head_size * context
    of_token = 2 * shape.read_parameters + attention
    reading = {
        "weights": read / memory.bytes_per_second,
        "cache": batch * own / memory.bytes_per_second,
    }
    computing = batch * of_token / peak
    spare = of_token / peak - own / memory.bytes_per_second
    limit: Limit = "weights" if reading["weights"] >= reading["cache"] else "cache"
    return InferencePlan(
        model=shape,
        device=roofs.device,
        weights=weights,
        cache=cache,
        context=context,
        batch=batch,
        weight_bytes=stored,
        cache_bytes=own,
        memory_bytes=room if math.isfinite(room) else None,
        largest_batch=max(0, int((room - stored) // own)) if math.isfinite(room) else None,
        step_seconds=max(sum(reading.values()), computing),
        prefill_seconds=max(
            reading["weights"], context * (2 * shape.read_parameters + attention / 2) / peak
        ),
        limit="arithmetic" if computing > sum(reading.values()) else limit,
        knee=reading["weights"] / spare if spare > 0 else math.inf,
        evidence=Evidence.modelled(
            "each byte is read once at the rate of main memory, arithmetic runs at its peak, and "
            "nothing waits between kernels",
            f"{shape.name}: {shape.source}; {arithmetic}: {memory.source}",
            device=roofs.device,
        ),
    )
