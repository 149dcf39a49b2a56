"""The registry: what can be asked of it, what it refuses, and how an entry is added."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab import workloads
from gpulab.errors import GpulabError, InputError
from gpulab.workloads import WorkloadSpec, _registry, draw, register

_RECORDED = Path(__file__).parents[2] / "gpulab" / "recordings" / "data" / "nvidia-h200.json"

# The list of the issue that ordered the catalogue.
ORDERED = {
    "matmul", "linear", "add", "exp", "gelu", "sum", "softmax", "layer_norm", "fft", "solve", "sort", "conv2d",
    "grouped_conv2d", "depthwise_conv2d", "attention", "embedding_gather", "cnn_training_step", "transformer_training_step",
}  # fmt: skip


@pytest.fixture
def registry(monkeypatch):
    """A copy of the registry that the test may change."""
    monkeypatch.setattr(_registry, "_REGISTRY", dict(_registry._REGISTRY))


def test_catalogue_has_what_was_ordered():
    """Every workload of the course is in the catalogue."""
    assert set(workloads.names()) >= ORDERED


@pytest.mark.parametrize("name", sorted(ORDERED))
def test_entry_is_complete(name):
    """Each entry says what it is, what n counts and what is counted, and its sizes ascend from tiny."""
    spec = workloads.get(name)
    assert spec.summary
    assert spec.size_meaning
    assert "FLOPs" in spec.counts
    assert list(spec.sizes) == sorted(set(spec.sizes))
    assert len(spec.sizes) >= 5
    w = spec()
    assert w.n in spec.sizes
    assert w.dtype == "float32"
    assert w.nbytes > 0
    assert w.flops >= 0
    assert w.memory_bytes >= 0.5 * w.nbytes


def test_catalogue_is_what_was_recorded():
    """Sizes, dtypes, FLOPs and bytes with the usual parameters are those of the recorded run: else its times say nothing about them."""
    entries = [one for one in json.loads(_RECORDED.read_text(encoding="utf-8"))["entries"] if one["experiment"] == "catalogue"]
    recorded = {(one["params"]["workload"], one["params"]["dtype"], one["params"]["n"]): one["timing"] for one in entries}
    offered = {(name, dtype, n) for name in ORDERED for dtype in workloads.get(name).dtypes for n in workloads.get(name).sizes}
    assert offered == set(recorded)
    for (name, dtype, n), timing in recorded.items():
        if timing is not None:  # time did not reach all
            w = workloads.get(name)(n=n, dtype=dtype)
            assert (w.flops, w.nbytes) == (timing["flops"], timing["nbytes"]), w.label


@pytest.mark.parametrize("name", sorted(ORDERED))
def test_the_usual_size_is_the_middle_one(name):
    """Without a size as many of the entry's sizes are smaller as are larger, or one more."""
    spec = workloads.get(name)
    assert sum(n < spec().n for n in spec.sizes) - sum(n > spec().n for n in spec.sizes) in (0, 1)


def test_a_workload_is_shown_without_its_functions():
    """In a cell's output a workload is its name, dtype, size and parameters."""
    w = workloads.get("softmax")(n=3, dtype="bfloat16")
    assert repr(w) == "Workload(name='softmax', dtype='bfloat16', n=3, params=mappingproxy({'width': 1024}))"


@pytest.mark.parametrize("name", sorted(ORDERED))
def test_largest_size_is_seconds_not_minutes(name):
    """The largest size is at most 2e11 FLOPs and 1 GB of traffic: a few seconds on a laptop's CPU (50 GFLOP/s, 10 GB/s)."""
    spec = workloads.get(name)
    w = spec(n=spec.sizes[-1])
    assert w.flops <= 2e11
    assert w.nbytes <= 1.3e9


def test_adding_a_workload_is_ten_lines(registry):
    """The ten lines of the module's docstring add an entry that is listed, runs, is counted and checked."""
    register(
        WorkloadSpec(
            name="square",
            summary="each element squared",
            size_meaning="elements",
            sizes=(1024, 1 << 20),
            function=lambda x: x * x,
            flops=lambda w: w.n,
            nbytes=lambda w: 2 * w.n * w.itemsize,
            make_inputs=lambda w, generator: (draw.normal(generator, w.n),),
        )
    )
    assert "square" in workloads.names()
    w = workloads.get("square")(n=1000, dtype="float64")
    assert (w.label, w.flops, w.nbytes) == ("square n=1000 float64", 1000.0, 16000.0)
    (x,) = w.inputs("cpu")
    assert w.difference(w.run(x), (x,)) <= w.tolerance
    assert w.difference(w.run(x) * 1.001, (x,)) > w.tolerance


def test_register_twice_replaces(registry):
    """A cell that registers an entry can run twice; the later one counts and the list does not grow."""
    count = len(workloads.names())
    again = WorkloadSpec(**{**vars(workloads.get("add")), "summary": "changed"})
    register(again)
    assert workloads.get("add").summary == "changed"
    assert len(workloads.names()) == count


@pytest.mark.parametrize(("field", "value"), [("sizes", ()), ("sizes", (4, 2)), ("sizes", (0, 2)), ("dtypes", ()), ("dtypes", ("int8",))])
def test_register_refuses_a_broken_entry(registry, field, value):
    """An entry without sizes, with sizes that do not ascend or unknown dtypes is told at once."""
    broken = WorkloadSpec(**{**vars(workloads.get("add")), "name": "broken", field: value})
    with pytest.raises(InputError, match="broken"):
        register(broken)
    assert "broken" not in workloads.names()


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("matmull", "matmul"), ("MatMul", "matmul"), ("conv2", "conv2d"), ("soft max", "softmax"), ("embedding", "embedding_gather")],
)
def test_unknown_name_suggests_the_nearest(typo, meant):
    """A misspelt name is answered with the one that was probably meant."""
    with pytest.raises(InputError, match=f"Did you mean '{meant}'"):
        workloads.get(typo)


@given(st.one_of(st.text(), st.integers(), st.none(), st.lists(st.integers()), st.floats()))
def test_any_other_name_is_one_sentence(name):
    """Whatever is asked for, the registry answers with an entry or one readable InputError."""
    if name in workloads.names():
        assert workloads.get(name).name == name
        return
    with pytest.raises(InputError, match="expected one of") as caught:
        workloads.get(name)
    assert len(str(caught.value)) < 1000


BAD_SIZES = st.one_of(
    st.integers(max_value=0), st.integers(min_value=2**40 + 1), st.booleans(), st.floats(), st.text(max_size=5), st.just(math.nan),
    st.just(10**400), st.just(np.float64(8)), st.lists(st.integers(), max_size=2),
)  # fmt: skip


@settings(max_examples=300)
@given(st.sampled_from(sorted(ORDERED)), BAD_SIZES)
def test_bad_sizes_are_refused(name, n):
    """Zero, negative, huge, fractional, boolean and NaN sizes get one sentence that names the value's place."""
    with pytest.raises(InputError, match=r"n is .*expected a whole number"):
        workloads.get(name)(n=n)


@settings(max_examples=300)
@given(st.sampled_from(sorted(ORDERED)), st.integers(1, 2**40))
def test_any_whole_size_gives_finite_counts(name, n):
    """Every size from 1 to 2**40 gives finite, non-negative counts that grow with the size."""
    w = workloads.get(name)(n=n)
    assert math.isfinite(w.flops)
    assert math.isfinite(w.nbytes)
    assert math.isfinite(w.memory_bytes)
    assert w.nbytes >= workloads.get(name)(n=max(1, n // 2)).nbytes


def test_numpy_integers_are_sizes():
    """A size that comes out of a numpy array is as good as an int, and stays a plain int inside."""
    w = workloads.get("matmul")(n=np.int64(64))
    assert w.n == 64
    assert type(w.n) is int


@pytest.mark.parametrize("dtype", ["float32", torch.float32, np.float32, np.dtype("float32"), "torch.float32"])
def test_dtype_spellings(dtype):
    """A dtype may be text or the object of torch or numpy."""
    assert workloads.get("matmul")(n=8, dtype=dtype).dtype == "float32"


@pytest.mark.parametrize("dtype", ["float12", "int8", None, 32, "bfloat", torch.int64])
def test_unknown_dtype_is_refused(dtype):
    """A dtype outside the entry's list is told with the list."""
    with pytest.raises(InputError, match="expected one of: float32"):
        workloads.get("matmul")(n=8, dtype=dtype)


def test_dtype_of_another_entry_is_refused():
    """What one workload runs in, another may not: the FFT has no bfloat16."""
    with pytest.raises(InputError, match="fft: dtype 'bfloat16'"):
        workloads.get("fft")(n=8, dtype="bfloat16")


def test_parameters():
    """Defaults are filled in, changes show in the label, unknown ones are refused with the nearest."""
    w = workloads.get("conv2d")(n=2, channels=16)
    assert dict(w.params) == {"channels": 16, "side": 32}
    assert w.label == "conv2d n=2 float32 channels=16"
    with pytest.raises(InputError, match="Did you mean 'channels'"):
        workloads.get("conv2d")(n=2, chanels=16)
    with pytest.raises(InputError, match="expected one of: none"):
        workloads.get("matmul")(n=2, channels=16)
    with pytest.raises(InputError, match="channels is 0"):
        workloads.get("conv2d")(n=2, channels=0)


def test_groups_must_divide_channels():
    """Parameters that do not go together are told when the workload is made, not in the middle of a measurement."""
    with pytest.raises(InputError, match="5 groups do not divide 128 channels"):
        workloads.get("grouped_conv2d")(n=1, groups=5)


def test_parameters_cannot_be_changed():
    """A workload's parameters are fixed once made."""
    with pytest.raises(TypeError):
        workloads.get("conv2d")(n=1).params["channels"] = 3


@pytest.mark.parametrize("seed", [-1, 2**63, True, 1.5, None])
def test_bad_seed(seed):
    """A seed that is no whole number is refused in one sentence."""
    with pytest.raises(GpulabError, match="seed"):
        workloads.get("add")(n=4).inputs("cpu", seed=seed)
