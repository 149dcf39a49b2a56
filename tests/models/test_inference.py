"""Memory and times of text generation: published sizes of models, and a tiny one by hand."""

import math

import pytest
from gpulab.errors import InputError
from gpulab.evidence import Evidence
from gpulab.models import LANGUAGE_MODELS, ArithmeticRoof, LanguageModel, MemoryRoof, Roofline
from gpulab.models import inference as plan

# Parameters per layer: attention 2 x (2 + 2 + 2 + 2), feed-forward 3 x 2 x 4, two norms of 2: 44.
# With the last norm (2) and the scores (2 x 3) a step reads 52; the embeddings are 6 more.
TINY = LanguageModel("tiny", 1, 2, 1, 1, 2, 4, 3)
BY_HAND = Evidence.modelled("by hand", "by hand")
# As NVIDIA states for a T4 and a V100: Tensor Cores for float16, 8 times the rate of float32, and
# none for bfloat16, which takes the time of float32.
ROOFS = Roofline(
    device="paper",
    arithmetic=tuple(
        ArithmeticRoof(name, rate, f"a product in {name}", BY_HAND)
        for name, rate in {"float32": 125.0, "bfloat16": 125.0, "float16": 1000.0}.items()
    ),
    memory=(MemoryRoof("DRAM", 100.0, 10_000.0, "a stream", BY_HAND),),
    points=(),
    notes=(),
    evidence=BY_HAND,
)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # as huggingface.co counts them in the files of weights
        ("Llama 3.2 1B", 1_235_814_400),
        ("Llama 2 7B", 6_738_415_616),
        ("Mistral 7B", 7_241_732_096),
        ("Qwen 2.5 7B", 7_615_616_512),
        ("Llama 3 8B", 8_030_261_248),
        ("Llama 3.1 70B", 70_553_706_496),
    ],
)
def test_the_published_number_of_parameters(name, parameters):
    """The formula gives the published number exactly, so weights take the right bytes."""
    assert LANGUAGE_MODELS[name].parameter_count == parameters


@pytest.mark.parametrize(
    ("options", "step", "prefill", "limit", "fits", "knee"),
    [
        # 104 bytes of weights and 8 per position; 104 FLOPs and 8 per position.
        ({"context": 5, "batch": 2}, 1.84, 1.04, "weights", 247, math.inf),
        ({"context": 5, "batch": 4}, 2.64, 1.04, "cache", 247, math.inf),
        ({"context": 1, "batch": 40}, 4.48, 1.04, "arithmetic", 1235, 1.04 / 0.032),
        # 52 x 4.5 bits are 29.25 bytes; prefill: 20 x (92 + 4 x 20) FLOPs, and 12 for the scores.
        ({"context": 20, "weights": "int4"}, 1.8925, 3.452, "cache", 62, math.inf),
        (
            {"context": 20, "cache": "float8", "memory_bytes": 100},
            1.84,
            3.452,
            "weights",
            0,
            math.inf,
        ),
        # In float32: 208 bytes of 232, and 125 FLOPs a second; a prompt takes 5 x (92 + 20) + 12.
        ({"context": 5, "weights": "float32"}, 2.48, 572 / 125, "weights", 244, 2.08 / 0.752),
    ],
)
def test_a_tiny_model_by_hand(options, step, prefill, limit, fits, knee):
    """A step takes the longer of reading and computing; batches fit beside the weights; the badge
    names the sources of both rates.
    """
    found = plan(TINY, ROOFS, **options)
    assert (
        *(found.step_seconds, found.prefill_seconds, found.knee, found.tokens_per_second),
        found.cost_per_million_tokens(36.0),
    ) == pytest.approx((step, prefill, knee, found.batch / step, 1e4 * step / found.batch))
    assert (found.limit, found.largest_batch) == (limit, fits)
    product = f"a product in {'float32' if 'float32' in options.values() else 'float16'}"
    assert f"{product}; main memory: a stream" in found.evidence.source


@pytest.mark.parametrize(
    ("device", "fits"), [("H100 SXM", 65), ("nvidia-h100", 65), ("RTX 4090", 9)]
)
def test_the_memory_of_a_product_by_any_name(device, fits):
    """Boards of 80 and 24 GiB have 69.8 and 9.7 GB beside 16.1 GB of weights; a cache is 2^30."""
    assert plan("Llama 3 8B", device, context=8192).largest_batch == fits


@pytest.mark.parametrize(
    ("name", "value"), [("model", "no such"), ("weights", "int3"), ("cache", "none"), ("batch", 0)]
)
def test_a_plan_that_cannot_be_is_refused_by_its_value(name, value):
    """An unknown model or format and a batch of 0 are refused, and the message names them."""
    with pytest.raises(InputError, match=f"{name} is {value!r}"):
        plan(**{"model": TINY, "device": ROOFS, name: value})
