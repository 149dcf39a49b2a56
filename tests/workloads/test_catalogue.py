"""The catalogue: valid and refused requests, and FLOPs and bytes against other counts."""

import contextlib
import dataclasses
import math
from types import SimpleNamespace
from unittest import mock

import gpulab as gl
import numpy as np
import pytest
import torch
from gpulab.errors import DeviceError, InputError, OutOfMemoryError
from gpulab.workloads import WorkloadSpec, draw, get, names, register
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

CATALOGUE = names()
# Each row by hand from the operation's definition: FLOPs (None: counted by PyTorch below), bytes of
# traffic, bytes of memory (None: the same), terms of the longest sum.
BY_HAND = [
    # 9 entries of 3 products and 3 additions; 27 entries of 4 bytes.
    ("matmul", 3, "float32", {}, 54, 108, None, 3),
    # 2 x 4 entries of 4 multiply-adds and a bias; x 8, W 16, b 4, y 8 entries.
    ("linear", 2, "float32", {"features": 4}, 72, 144, None, 4),
    ("add", 5, "float64", {}, 5, 120, None, 1),
    ("exp", 5, "float16", {}, 5, 20, None, 1),
    # x / 2, x / sqrt 2, erf, + 1, product.
    ("gelu", 10, "bfloat16", {}, 50, 40, None, 1),
    # Nine numbers need eight additions; ten numbers are moved. Cascades of sqrt(n) terms.
    ("sum", 9, "float32", {}, 8, 40, None, 3),
    # Eight elements of five operations (maximum, subtraction, exponential, sum, division).
    ("softmax", 2, "float32", {"width": 4}, 40, 64, None, 4),
    # Seven operations an element; 8 in, 8 out, 4 scales, 4 shifts.
    ("layer_norm", 2, "float32", {"width": 4}, 56, 96, None, 4),
    # 5 x 8 x log2 8; 8 complex numbers in and out, and as much again as work space.
    ("fft", 8, "float32", {}, 120, 128, 256, 4),
    # 2/3 x 27 + 2 x 9; 9 + 3 + 3 doubles; matrix, factors, and once more for the library.
    ("solve", 3, "float64", {}, 36, 120, 216, 3),
    # 7 values in and out and their int64 indices; sorting takes as much again as work space.
    ("sort", 7, "float32", {}, 0, 56, 7 * (8 + 8) * 2, 1),
    ("sort", 7, "bfloat16", {}, 0, 28, 7 * (4 + 8) * 2, 1),
    # 4 pixels x 2 outputs x (2 x 9) multiply-adds; 8 + 8 values, 36 weights; 3 x 3 patches twice.
    ("conv2d", 1, "float32", {"channels": 2, "side": 2}, 288, 208, (52 + 2 * 72) * 4, 18),
    # The patches of 16 images at a time.
    ("conv2d", 20, "float32", {"channels": 2, "side": 2}, 5760, 1424, (356 + 2304) * 4, 18),
    # In 2 groups of 2 channels: 4 pixels x 4 outputs x (2 x 9); 16 + 16 values, 72 weights.
    (
        *("grouped_conv2d", 1, "float32", {"channels": 4, "side": 2, "groups": 2}),
        *(576, 416, (104 + 288) * 4, 18),
    ),
    # 4 pixels x 4 outputs x 9; 16 + 16 values, 36 weights.
    ("depthwise_conv2d", 1, "float32", {"channels": 4, "side": 2}, 288, 272, (68 + 288) * 4, 9),
    # Two products of 3 x 3 x 2 multiply-adds; four arrays of 6, and the scores twice.
    (
        *("attention", 3, "float32", {"batch": 1, "heads": 1, "head_width": 2}),
        *(72, 96, (24 + 18) * 4, 3),
    ),
    # The only row of a table is read once: 3 indices, 1 row read, 3 written.
    ("embedding_gather", 3, "float32", {"vocabulary": 1, "width": 4}, 0, 88, 88, 1),
    # 1,000 draws from 10 rows miss none; 2 draws from a million touch two.
    ("embedding_gather", 1000, "float32", {"vocabulary": 10, "width": 4}, 0, 24160, 24160, 1),
    ("embedding_gather", 2, "float32", {"vocabulary": 10**6, "width": 4}, 0, 80, 16000048, 1),
    # Convolutions 3-2-2-4-4 of nine weights (306), norms (24), a head of 4 x 10 and 10: 380, four
    # times with gradients and moments; 2 images with an int64; outputs kept, 2.5 times.
    (
        *("cnn_training_step", 2, "float32", {"side": 4, "width": 2}),
        *(None, 6 * 1520 + 400, 4 * 1520 + 400 + 2.5 * 2 * 192 * 4, 2 * 16),
    ),
    # 2 x 1000 + 128 rows of 4, a layer of 12 x 16 + 13 x 4 and a last norm of 8: 8,764, four times;
    # for each of 256 tokens 20 widths and four rows of 1,000 scores, and a quarter more.
    (
        *("transformer_training_step", 2, "float32", {"width": 4, "layers": 1}),
        *(None, 6 * 8764 * 4 + 4096, 4 * 8764 * 4 + 1.25 * 256 * 4080 * 4, 256),
    ),
]


@pytest.mark.parametrize("row", BY_HAND, ids=lambda row: f"{row[0]}-{row[1]}-{row[2]}")
def test_counts_by_hand(row):
    """FLOPs, traffic, memory and the length of sums equal those calculated by hand."""
    name, n, dtype, params, flops, *expected = row
    w = get(name)(n=n, dtype=dtype, **params)
    found = (w.nbytes, w.memory_bytes, w.spec.sum_length(w))
    assert found == pytest.approx((expected[0], expected[1] or expected[0], expected[2]), rel=1e-5)
    assert flops is None or w.flops == pytest.approx(flops)
    assert w.working_set_bytes == w.nbytes


# Bias additions are not counted by PyTorch's counter.
@pytest.mark.parametrize(
    ("name", "n", "params", "uncounted"),
    [
        ("matmul", 12, {}, 0),
        ("linear", 3, {"features": 16}, 3 * 16),
        ("conv2d", 2, {"channels": 8, "side": 6}, 0),
        ("grouped_conv2d", 2, {"channels": 8, "side": 6, "groups": 4}, 0),
        ("depthwise_conv2d", 2, {"channels": 8, "side": 6}, 0),
        ("attention", 16, {"batch": 2, "heads": 2, "head_width": 8}, 0),
        ("cnn_training_step", 3, {"side": 8, "width": 4}, 0),
        ("transformer_training_step", 2, {"width": 16, "layers": 2}, 0),
    ],
)
def test_flops_agree_with_pytorchs_counter(name, n, params, uncounted):
    """The formula gives exactly what FlopCounterMode counts while the work runs."""
    w = get(name)(n=n, **params)
    inputs = w.inputs("cpu")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        w.run(*inputs)
    assert w.flops == counter.get_total_flops() + uncounted


@pytest.mark.parametrize("name", CATALOGUE)
def test_bytes_are_those_of_the_arrays(name):
    """Traffic is what goes in and comes out; a step reads and writes weights and two moments."""
    w, double = get(name)(n=4), get(name)(n=4, dtype="float64")
    step, *rest = inputs = w.inputs("cpu")
    held = 0 if torch.is_tensor(step) else sum(p.nbytes for p in step.model.parameters())
    given, result = sum(x.nbytes for x in (rest if held else inputs)), w.run(*inputs).nbytes
    # A gather reads only the rows that it needs, here all different.
    spare = (50_000 - 4) * 256 * 4 if name == "embedding_gather" else 0
    assert w.nbytes == pytest.approx(given - spare + (6 * held or result), rel=1e-3)
    assert w.memory_bytes >= 0.999 * (given + 4 * held + result)
    assert (w.flops, w.nbytes < double.nbytes <= 2 * w.nbytes) == (double.flops, True)


def test_the_catalogue_is_what_was_recorded():
    """Recorded workloads still have the sizes, dtypes and counts of the recorded run.

    Recorded rates depend on these counts. A workload newer than the recording is not in it.
    """
    entries = [e for e in gl.recordings.load("nvidia-h200").entries if e.experiment == "catalogue"]
    recorded = {tuple(e.params[k] for k in ("workload", "dtype", "n")): e.timing for e in entries}
    offered = {
        (name, d, n)
        for name in {name for name, *_ in recorded}
        for d in get(name).dtypes
        for n in get(name).sizes
    }
    assert offered == set(recorded)
    timed = {(name, d, n): t for (name, d, n), t in recorded.items() if t is not None}
    counted = {(name, d, n): get(name)(n=n, dtype=d) for name, d, n in timed}
    assert {at: (w.flops, w.nbytes) for at, w in counted.items()} == {
        at: (timing.flops, timing.nbytes) for at, timing in timed.items()
    }


def test_the_catalogue_as_it_is_listed(approved):
    """Each entry: what it is, what n counts, how it is counted, the default's tolerance."""
    lines = []
    for spec, w in ((get(name), get(name)()) for name in CATALOGUE):
        lines += [f"{spec.name}: {spec.summary} (n: {spec.size_meaning})", f"  {spec.counts}"]
        lines += [f"  sizes {spec.sizes}, dtypes {spec.dtypes}, matrix {spec.matrix}", f"  {w!r}"]
        lines += [f"  {w.flops:.6g} FLOPs, {w.nbytes:.6g} B, memory {w.memory_bytes:.6g} B"]
        lines += [f"  within {w.tolerance:.3g}"]
    assert "\n".join(lines) == approved


@pytest.mark.parametrize("dtype", [torch.float32, np.float32, np.dtype("float32"), "torch.float32"])
def test_labels_and_parameters(dtype):
    """Non-default parameters are in the label and cannot change; dtypes may be objects too."""
    w = get("conv2d")(n=np.int64(2), dtype=dtype, channels=16)
    assert (w.label, dict(w.params)) == (
        "conv2d n=2 float32 channels=16",
        {"channels": 16, "side": 32},
    )
    with pytest.raises(TypeError):
        w.params["channels"] = 3


SIZES = (0, -1, 2**40 + 1, 2.0, True, "8", math.nan)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: get("matmull"), "'matmull'; expected one of: matmul,"),
        (lambda: get("soft max"), "softmax,"),
        (lambda: get(5), "expected one of"),
        *((lambda n=n: get("matmul")(n=n), "n is") for n in SIZES),
        (lambda: get("matmul")(n=8, dtype="int8"), "int8"),
        (lambda: get("fft")(n=8, dtype="bfloat16"), "bfloat16"),
        (lambda: get("conv2d")(n=2, chanels=16), "'chanels'; expected one of: channels, "),
        (lambda: get("matmul")(n=2, channels=16), "none"),
        (lambda: get("conv2d")(n=2, channels=0), "channels is 0"),
        (lambda: get("grouped_conv2d")(n=1, groups=5), "5 groups"),
        *((lambda s=s: get("add")(n=4).inputs("cpu", s), "seed") for s in (-1, 2**63, True, 1.5)),
        # 2.15 GFLOP on a CPU that emulates float16 would take seconds.
        (lambda: get("matmul")(n=1024, dtype="float16").inputs("cpu"), "2.15 GFLOP"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(call, words):
    """Invalid names, sizes, dtypes, parameters and seeds are refused with what is valid."""
    with pytest.raises(InputError, match=words):
        call()
    assert names() == CATALOGUE


def test_adding_a_workload():
    """A registered entry, in place of one of its name, is found, counted, run and checked."""
    before, function = get("add"), {"function": lambda x: x * x, "flops": lambda w: w.n}
    drawn = {"make_inputs": lambda w, generator: (draw.normal(generator, w.n),)}
    words = {"name": "add", "summary": "each squared", "size_meaning": "elements", "sizes": (4, 9)}
    spec = WorkloadSpec(**words, **function, **drawn, nbytes=lambda w: 2 * w.n * w.itemsize)
    found = register(spec) is get("add") is spec
    register(before)
    w = spec(dtype="float64")
    assert (found, w.label, w.flops, w.nbytes) == (True, "add n=9 float64", 9.0, 144.0)
    (x,) = w.inputs("cpu")
    assert w.difference(w.run(x), (x,)) <= w.tolerance < w.difference(w.run(x) * 1.001, (x,))


@pytest.mark.parametrize("name", CATALOGUE)
def test_what_is_too_large_is_refused_before_it_is_allocated(name):
    """At 2**40 no workload fits a machine."""
    with pytest.raises(OutOfMemoryError, match="smaller n"):
        get(name)(n=2**40).inputs("cpu")


@pytest.fixture
def accelerator(monkeypatch):
    """Make PyTorch report one accelerator with ``free`` bytes of memory; nothing runs on it."""

    def make(kind, free=2**40, **facts):
        places = {"cuda": torch.cuda, "xpu": torch.xpu, "mps": torch.backends.mps}
        for name, place in places.items():
            monkeypatch.setattr(place, "is_available", lambda here=name == kind: here)
        answers = {
            **{"is_available": True, "device_count": 1, "get_device_name": f"fake {kind}"},
            **{"mem_get_info": (free, 2**40), "memory_reserved": 700, "memory_allocated": 300},
            **{"recommended_max_memory": free, "driver_allocated_memory": 0},
            "get_device_properties": SimpleNamespace(**facts),
        }
        functions = {name: lambda *_, value=value: value for name, value in answers.items()}
        monkeypatch.setattr(torch, kind, SimpleNamespace(**functions))

    return make


@pytest.mark.parametrize(
    ("kind", "facts", "name", "n", "dtype", "refused"),
    [
        # 1.1 times the needed bytes must be free; 400 bytes are unused in PyTorch's own reserve.
        ("cuda", {"free": 13_201 - 400}, "add", 1000, "float32", None),
        ("cuda", {"free": 13_200 - 400}, "add", 1000, "float32", OutOfMemoryError),
        ("xpu", {"free": 13_200 - 400}, "add", 1000, "float32", OutOfMemoryError),
        ("mps", {"free": 13_201}, "add", 1000, "float32", None),
        ("mps", {"free": 13_200}, "add", 1000, "float32", OutOfMemoryError),
        # Apple's GPUs have no float64; none of them emulates float16.
        ("mps", {}, "add", 8, "float64", InputError),
        ("cuda", {}, "matmul", 1024, "float16", None),
        # On a CPU, products of matrices and convolutions of more than 100 MFLOP are refused.
        *(("cpu", {}, name, 2**9, "float16", InputError)
          for name in ("matmul", "conv2d", "grouped_conv2d", "depthwise_conv2d")),
        *(("cpu", {}, name, 2**9, "float16", None) for name in ("linear", "attention", "add")),
        ("cpu", {}, "matmul", 368, "float16", None),  # 2 x 368^3 = 99.7 MFLOP
        ("cpu", {}, "matmul", 369, "float16", InputError),
        ("cuda:7", {}, "add", 8, "float32", DeviceError),
    ],
)  # fmt: skip
def test_what_a_device_takes(accelerator, kind, facts, name, n, dtype, refused):
    """Memory and number formats are checked before anything is allocated."""
    accelerator("cuda" if kind.startswith(("cpu", "cuda")) else kind, **facts)
    with pytest.raises(refused) if refused else contextlib.nullcontext():
        get(name)(n=n, dtype=dtype).check(kind)


def test_tf32_counts_where_the_settings_permit(accelerator, request):
    """Convolutions may use TF32 by default, products only when it is allowed; tolerances follow."""
    work = [get(name)(n=64) for name in ("matmul", "conv2d", "exp")]
    strict, settings = [one.tolerance for one in work], torch.backends.cuda.matmul
    accelerator("cuda")
    assert [w.arithmetic_on("cuda") for w in work] == ["float32", "tf32", "float32"]
    request.addfinalizer(
        lambda was=settings.fp32_precision: setattr(settings, "fp32_precision", was)
    )
    settings.fp32_precision = "tf32"
    found = [(w.arithmetic_on("cuda"), w.arithmetic_on("cpu"), w.tolerance) for w in work]
    assert [one[:2] for one in found] == [(name, "float32") for name in ("tf32", "tf32", "float32")]
    # Four roundings of 2^-11 in place of 2^-24 (NVIDIA, A100 whitepaper: ten bits).
    more = [one[2] - least for one, least in zip(found, strict, strict=True)]
    assert more == pytest.approx([4 * (2**-11 - 2**-24)] * 2 + [0])


def test_an_allocation_that_fails_is_an_error_of_ours():
    """When memory runs out although it seemed enough, the library's error becomes gpulab's."""
    full = mock.Mock(side_effect=torch.OutOfMemoryError("Tried to allocate 20 MiB"))
    with pytest.raises(OutOfMemoryError, match="add n=4"):
        dataclasses.replace(get("add"), make_inputs=full)(n=4).inputs("cpu")
