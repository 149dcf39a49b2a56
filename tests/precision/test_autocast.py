"""Autocast's policy as observed, against PyTorch's documented lists and against its own registry of autocast kernels."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import subprocess

import numpy as np
import pytest
import torch
from torch import nn

from gpulab import networks, precision
from gpulab.devices import Device
from gpulab.errors import DeviceError, InputError
from gpulab.evidence import Badge, Evidence
from gpulab.precision import _autocast, _autocast_documents, _observe
from gpulab.precision._autocast_documents import LISTS
from gpulab.precision._dispatch import KernelTypes

# What the documentation's lists leave out, and why: the first two multiply by way of mm, which is on the list; the others are registered.
LEFT_OUT = {
    "cpu": {"multi_dot": "mm", "tensordot": "mm", "smooth_l1_loss": "smooth_l1_loss"},
    "cuda": {"conv_tbc": "conv_tbc", "linalg_vecdot": "linalg_vecdot", "huber_loss": "huber_loss"},
}


def _registered(operator: str, kind: str) -> bool:
    """Whether PyTorch has an autocast kernel of its own for an operator."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", f"Autocast{kind.upper()}")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_cpus_policy_is_the_documented_one(dtype: str) -> None:
    """About a hundred operators: the lists disagree only on what they leave out, and PyTorch's registry says why."""
    policy = precision.autocast_policy("cpu", dtype)
    assert policy.evidence.badge is Badge.MEASURED
    assert len(policy.rows) > 100
    assert {row.operator for row in policy.rows if row.policy is None} <= {"pdist"}  # PyTorch 2.13 has no narrow kernel of it
    for row in policy.disagreements:
        assert row.documented == "inputs"
        assert _registered(LEFT_OUT["cpu"][row.operator], "cpu")
    for name in ("linear", "conv2d", "matmul", "bmm", "scaled_dot_product_attention"):
        assert policy.row(name).policy == "lower"
        assert policy.row(name).float32_runs_in == dtype
    for name in ("cross_entropy", "mse_loss", "prod"):
        assert policy.row(name).policy == "float32"
        assert policy.row(name).lower_runs_in == "float32"
    assert set(policy.operators("widest")) == {"cat", "stack", "index_copy"}
    for name in ("layer_norm", "softmax", "gelu", "sum", "exp"):  # on the CPU these stay in the lower precision
        assert policy.row(name).policy == "inputs"


@pytest.mark.slow
def test_cudas_policy_without_cuda_is_the_documented_one() -> None:
    """PyTorch's dispatcher, asked with fake CUDA tensors, decides as its documentation says; what is left out there is registered."""
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA: the gpu test observes it")
    policy = precision.autocast_policy("cuda", "float16")
    assert policy.evidence.badge is Badge.MODELLED
    assert policy.observed
    assert not torch.is_autocast_enabled("cuda")  # it was asked in a process of its own
    for row in policy.disagreements:
        assert row.documented == "inputs"
        assert _registered(LEFT_OUT["cuda"][row.operator], "cuda")
    for name in ("layer_norm", "softmax", "exp", "sum", "cross_entropy"):
        assert policy.row(name).policy == "float32"
    for name in ("linear", "conv2d", "matmul"):
        assert policy.row(name).policy == "lower"
    seen = {row.operator for row in policy.rows if row.policy is not None}
    tried = {name for names in LISTS["cuda"].values() for name in names} & {row.operator for row in policy.rows}
    assert len(seen & tried) > 65


def test_an_operator_that_could_not_be_tried_stands_in_one_row() -> None:
    """It is under "could not be tried here", and under no policy: what the documentation would say of it was not seen."""
    policy = precision.autocast_policy("cuda", "float16")
    unseen = {row.operator for row in policy.rows if row.note}
    assert unseen
    assert not unseen & {name for words in ("lower", "float32", "widest", "inputs") for name in policy.operators(words)}
    _, rows = policy.table()
    assert sum("scaled_dot_product_attention" in row[2].split(", ") for row in rows) == 1


@pytest.mark.gpu
def test_cudas_policy_is_the_documented_one() -> None:
    """On a GPU the operators really run; the lists disagree only on what they leave out, attention's product among it."""
    policy = precision.autocast_policy("cuda", "float16")
    assert policy.evidence.badge is Badge.MEASURED
    assert _registered("scaled_dot_product_attention", "cuda")
    allowed = {*LEFT_OUT["cuda"], "multi_dot", "tensordot", "scaled_dot_product_attention"}
    assert {row.operator for row in policy.disagreements} <= allowed
    assert policy.row("layer_norm").policy == "float32"


@pytest.mark.parametrize(("kind", "composites"), [("cpu", {"_convolution"}), ("cuda", set())])
def test_the_lists_are_registered(kind: str, composites: set[str]) -> None:
    """Every listed operator that PyTorch's registry knows by its plain name has an autocast kernel there (_convolution by an overload)."""
    missing, known = set(), 0
    for operator in (name for names in LISTS[kind].values() for name in names):
        try:
            known += 1
            if not _registered(operator, kind):
                missing.add(operator)
        except RuntimeError:  # a name of the Python side, or one with overloads only
            known -= 1
    assert missing <= composites
    assert known > 60


def test_the_lists_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """For an XPU that is not there, and where the dispatcher cannot be asked, the documented lists stand, MODELLED with their source."""
    xpu = precision.autocast_policy("xpu")
    assert not xpu.observed
    assert xpu.evidence.badge is Badge.MODELLED
    assert "pytorch.org" in (xpu.evidence.source or "")
    assert "layer_norm" in xpu.operators("float32")
    if torch.cuda.is_available():
        return

    def fail(*args: object, **named: object) -> None:
        raise OSError("no second process")

    _autocast._all_without_device.cache_clear()
    monkeypatch.setattr(subprocess, "run", fail)
    policy = precision.autocast_policy("cuda")
    assert not policy.observed
    assert "layer_norm" in policy.operators("float32")
    assert policy.row("linear").agrees is None
    assert "dispatcher" not in policy.evidence.sentence  # nobody asked it
    assert policy.evidence.assumptions == "PyTorch does what its documentation says"


def test_a_dispatcher_that_failed_once_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that could not be started, was too slow, died silently or spoke no JSON is no answer; one answer is enough."""
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA: no second process is asked")
    answer = json.dumps({"linear": ["lower", "float16", "float16", ""]})
    moments = iter([OSError("no process"), subprocess.TimeoutExpired("python", 1), "", "Segmentation fault", f"a warning\n{answer}"])

    def run(command: list[str], **named: object) -> subprocess.CompletedProcess[str]:
        moment = next(moments)
        if isinstance(moment, Exception):
            raise moment
        return subprocess.CompletedProcess(command, 0, moment)

    monkeypatch.setattr(_autocast, "_all_without_device", functools.cache(_autocast._all_without_device.__wrapped__))
    monkeypatch.setattr(subprocess, "run", run)
    policies = [precision.autocast_policy("cuda", "float16", ["linear"]).row("linear").policy for _ in range(6)]
    assert policies == [None, None, None, None, "lower", "lower"]


def test_a_model_under_autocast() -> None:
    """In a small transformer on the CPU the products run in bfloat16; norms take what they get; the embedding stays float32."""
    model = networks.transformer(50, 16, 2, 1, context=8)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    trace = precision.autocast_trace(model, tokens, dtype="bfloat16", device="cpu")
    assert {"addmm", "mm"} & set(trace.ran_in("bfloat16"))
    assert "embedding" in trace.ran_in("float32")
    assert trace.casts > 4
    assert all(p.dtype is torch.float32 for p in model.parameters())
    plain = precision.autocast_trace(lambda x: x + 1, torch.ones(2))
    assert (plain.ran_in("float32"), plain.casts) == (("add",), 0)


def test_casts_are_counted() -> None:
    """By hand: a linear layer casts input, weight and bias; the second layer's input has the type already, so two more."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert precision.autocast_trace(model, torch.ones(2, 4), dtype="bfloat16").casts == 5


def test_observing_changes_nothing() -> None:
    """Autocast is off afterwards and the random generator stands where it stood."""
    state = torch.get_rng_state()
    precision.autocast_policy("cpu", operators=["dropout", "linear"])
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: precision.autocast_policy("cpu", "float8"), InputError, "expected one of: bfloat16, float16"),
        (lambda: precision.autocast_policy("cpu", operators=["nonsense"]), InputError, "'nonsense' is unknown"),
        (lambda: precision.autocast_policy("abacus"), (InputError, DeviceError), "abacus"),
        (lambda: precision.autocast_policy("cpu", operators=["add"]).row("mul"), InputError, "expected one of: add"),
        (lambda: precision.autocast_policy("cpu", operators=["add"]).operators("upper"), InputError, "expected one of: lower"),
        (lambda: precision.autocast_trace(5), InputError, "expected a module"),
        (lambda: precision.autocast_trace(nn.Linear(2, 2), torch.ones(3)), InputError, "the run raised"),
    ],
)
def test_bad_input_is_named(call, error, says: str) -> None:
    """One sentence."""
    with pytest.raises(error, match=says):
        call()


def test_a_policy_in_a_table_and_in_one_line() -> None:
    """Four operators as PyTorch lists them; one on which the list says something else, and one that could not be tried."""
    seen = precision.autocast_policy("cpu", "bfloat16", ["linear", "mse_loss", "cat", "relu"])
    assert repr(seen) == "<autocast to bfloat16 on cpu, observed: 1 lower, 1 float32, 1 widest, 1 inputs>"
    assert seen.evidence.samples == 1
    usual = [
        ("runs in the lower precision", "1", "linear"), ("runs in float32", "1", "mse_loss"),
        ("runs in the widest of its inputs", "1", "cat"), ("left alone: the type of its inputs", "1", "relu"),
    ]  # fmt: skip
    assert seen.table() == (("autocast to bfloat16 on cpu", "operators", "which"), usual)
    odd = precision.AutocastRow("odd", "float32", "inputs"), precision.AutocastRow("none", None, "lower", note="no kernel")
    fake = dataclasses.replace(seen, rows=(*seen.rows, *odd), evidence=Evidence.modelled("a dispatcher", "PyTorch"))
    assert fake.table()[1][4:] == [
        ("not as documented: odd", "", "runs in float32; the list: left alone: the type of its inputs"),
        ("could not be tried here", "1", "none"),
    ]
    assert repr(fake) == "<autocast to bfloat16 on cpu, as PyTorch dispatches: 1 lower, 2 float32, 1 widest, 1 inputs>"
    listed = precision.autocast_policy("xpu", operators=["linear", "cat"])
    assert repr(listed) == "<autocast to float16 on xpu, as documented: 1 lower, 0 float32, 0 widest, 1 inputs>"
    assert [row.note for row in listed.rows] == ["no xpu device here"] * 2
    assert len(listed.table()[1]) == 2


def test_rocm_has_cudas_lists() -> None:
    """As PyTorch's documentation of HIP says of torch.cuda; an operator under the list's other name is found."""
    assert _autocast_documents.documented("rocm", "layer_norm") == "float32"
    assert _autocast_documents.every_operator("rocm") == _autocast_documents.every_operator("cuda")
    assert _autocast_documents.documented("cpu", "cross_entropy") == "float32"


def test_a_device_without_lists_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apple's GPU has none; an AMD GPU has CUDA's."""
    monkeypatch.setattr(_autocast.devices, "find", Device)
    assert _autocast._place("rocm") == ("rocm", Device("rocm"))
    with pytest.raises(InputError, match="no documented lists for mps; expected one of cuda, xpu, cpu"):
        _autocast._place("mps")
    assert [_autocast._usual(kind) for kind in ("cpu", "cuda", "xpu")] == ["bfloat16", "float16", "float16"]


def test_a_trace_in_a_table_and_in_one_line() -> None:
    """By hand: one layer casts three tensors and multiplies once; a partial has no name of its own."""
    trace = precision.autocast_trace(nn.Linear(4, 4), torch.ones(2, 4), device="cpu")
    assert repr(trace) == "<Linear under autocast: 1 operator in bfloat16, 0 in float32, 3 casts>"
    assert trace.table() == (
        ("operator", "calls", "given", "gives"),
        [("_to_copy (cast)", "3", "float32", "bfloat16"), ("addmm", "1", "bfloat16", "bfloat16")],
    )
    assert trace.evidence.samples == 1
    assert [precision.autocast_trace(fn, torch.ones(2)).label for fn in (torch.exp, functools.partial(torch.add, 1))] == ["exp", "function"]


def test_what_computes_is_seen_and_what_does_not_is_not() -> None:
    """Storage, views, whole numbers and copies of one type are no kernels; a cast is one that changes the type; a complex one has parts."""
    x = torch.ones(2, 2)
    with KernelTypes() as seen:
        torch.empty_like(x)
        x.t().detach()
        wide = x.double()
        wide.to(torch.float64, copy=True)
        torch.arange(3) + 1
        torch.complex(x, x)
        x @ x
        (x > 0).float()
    assert seen.every == [
        ("_to_copy", ["float32"], ["float64"]), ("complex", ["float32", "float32"], ["float32"]),
        ("mm", ["float32", "float32"], ["float32"]), ("gt", ["float32"], []),
    ]  # fmt: skip
    assert [name for name, _, _ in seen.kernels] == ["complex", "mm", "gt"]


@pytest.mark.parametrize(
    ("kernels", "seen"),
    [
        # What each run's kernels were given and gave: float32 inputs, lower inputs, the first lower and the others float32.
        ({"high": "hh", "low": "hh", "mixed": None}, ("lower", "float16", "float16")),
        ({"high": "ff", "low": "ff", "mixed": None}, ("float32", "float32", "float32")),
        ({"high": "ff", "low": "hf", "mixed": None}, ("float32", "float32", "float32")),
        ({"high": "ff", "low": "hh", "mixed": "ff"}, ("widest", "float32", "float16")),
        ({"high": "ff", "low": "hh", "mixed": "hf"}, ("inputs", "float32", "float16")),
        ({"high": "ff", "low": "hh", "mixed": None}, ("inputs", "float32", "float16")),
    ],
)  # fmt: skip
def test_a_policy_follows_from_what_the_kernels_were_given(
    kernels: dict[str, str | None], seen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lower where float32 inputs became lower; float32 where lower ones did not stay; the widest where mixed ones became float32."""
    types = {"h": "float16", "f": "float32"}

    class Fake:
        """Stands in for the mode: one kernel as told."""

        def __enter__(self) -> Fake:
            return self

        def __exit__(self, *_: object) -> None:
            given, gave = told[-1]
            self.kernels = [("op", [types[given]], [types[gave]])]

    told: list[str] = []

    def op(a: torch.Tensor, b: torch.Tensor) -> None:
        one, other = a.dtype, b.dtype
        which = "high" if one is other is torch.float32 else "low" if one is other else "mixed"
        assert (one, other) == (torch.float16, torch.float32) or which != "mixed"
        if kernels[which] is None:
            raise RuntimeError("expected scalar type Float but found Half")
        told.append(str(kernels[which]))

    monkeypatch.setattr(_observe, "KernelTypes", Fake)
    monkeypatch.setattr(_observe, "CASES", {"op": (op, ((2,), (3,)))})
    shapes: list[tuple[int, ...]] = []

    def make(wanted: list[tuple[int, ...]], dtypes: list[torch.dtype]) -> list[torch.Tensor]:
        shapes.extend(wanted)
        return [torch.ones(shape, dtype=dtype) for shape, dtype in zip(wanted, dtypes, strict=True)]

    assert _observe.observe("op", make, torch.float16) == (*seen, "")
    assert shapes == [(2,), (3,)] * 3


def test_what_cannot_be_run_or_has_no_kernel_has_no_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PyTorch's words in its row; of what only moves numbers nothing is seen."""

    def refuses(x: torch.Tensor) -> None:
        raise NotImplementedError("no kernel for Half")

    monkeypatch.setattr(_observe, "CASES", {"refuses": (refuses, ((2,),)), "view": (lambda x: x.view(1, 2), ((2,),))})
    make = lambda shapes, dtypes: [torch.ones(s, dtype=d) for s, d in zip(shapes, dtypes, strict=True)]  # noqa: E731
    assert _observe.observe("refuses", make, torch.float16) == (None, "", "", "NotImplementedError: no kernel for Half")
    assert _observe.observe("view", make, torch.float16) == (None, "", "", "no kernel that takes floating-point numbers was seen")


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_a_dispatcher_without_a_device_is_asked_of_each_operator_in_the_lower_type(
    low: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autocast of CUDA is switched on with that type; transforms and linear algebra, which need a device, are not asked."""
    from torch._subclasses import fake_tensor

    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(torch, "set_autocast_enabled", lambda *given: asked.append(("on", *given)))
    monkeypatch.setattr(torch, "set_autocast_dtype", lambda *given: asked.append(("in", *given)))
    monkeypatch.setattr(fake_tensor, "FakeTensorMode", lambda **_: contextlib.nullcontext())
    real = torch.empty
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: asked.append((device, shape, dtype)) or real(shape, dtype=dtype))

    def observe(name: str, make: object, given: torch.dtype) -> tuple[str, str, str, str]:
        assert given is low
        if name == "matmul":
            assert [x.shape for x in make([(2, 3), (3, 2)], [torch.float32, low])] == [(2, 3), (3, 2)]  # type: ignore[operator]
        return ("seen", "", "", "")

    monkeypatch.setattr(_observe, "observe", observe)
    found = _observe._fake(low)
    assert asked == [("on", "cuda", True), ("in", "cuda", low), ("cuda", (2, 3), torch.float32), ("cuda", (3, 2), low)]
    assert found.pop("scaled_dot_product_attention") == (None, "", "", "which kernel it takes depends on the GPU")
    assert set(found.values()) == {("seen", "", "", "")}
    left = set(_observe.CASES) - set(found) - {"scaled_dot_product_attention"}
    assert left == {name for name in _observe.CASES if name.startswith(("fft_", "linalg_"))} - {"linalg_vecdot"}


def _rows(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(1, keepdims=True)


def _by_channel(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return 1 + (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)  # a scale of one, and a shift of one


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1))


_TURNS = np.array([1.0, -1.0, 1.0, -1.0])
# What an operator computes, written from its definition; of those that are called with more than the network's numbers.
IN_NUMPY = {
    "pow": lambda x: x**3, "sum": lambda x: x.sum(1), "mean": lambda x: x.mean(1), "prod": lambda x: x.prod(1),
    "cumsum": lambda x: x.cumsum(1), "cumprod": lambda x: x.cumprod(1), "softmax": _rows, "log_softmax": lambda x: np.log(_rows(x)),
    "softmin": lambda x: _rows(-x), "layer_norm": lambda x: _by_channel(x, (1,)), "group_norm": lambda x: _by_channel(x, (2, 3)),
    "batch_norm": lambda x: _by_channel(x, (0, 2, 3)), "quantile": np.median, "nanquantile": np.median, "tensordot": np.matmul,
    "multi_dot": lambda a, b, c: a @ b @ c, "renorm": lambda x: x / np.maximum(1, np.sqrt((x**2).sum(1, keepdims=True))),
    "kl_div": lambda a, b: (b * (np.log(b) - a)).sum() / 4, "cross": np.cross, "embedding": lambda w: w[:3],
    "margin_ranking_loss": lambda a, b: np.maximum(0, -_TURNS * (a - b)).mean(),
    "cosine_embedding_loss": lambda a, b: np.where(_TURNS > 0, 1 - _cosine(a, b), _cosine(a, b)).mean(),
    "cross_entropy": lambda x: -np.log(np.diag(_rows(x))).mean(), "nll_loss": lambda x: -np.diag(x).mean(),
    "cat": lambda a, b: np.concatenate([a, b]), "stack": lambda a, b: np.stack([a, b]),
    "index_copy": lambda a, b: np.concatenate([b, a[1:]]), "index_put": lambda a, b: np.concatenate([b, a[1:]]),
    "scatter_add": lambda a, b: np.concatenate([a[:1] + b, a[1:]]), "addmm": lambda a, b, c: a + b @ c,
    "baddbmm": lambda a, b, c: a + b @ c, "addr": lambda a, b, c: a + np.outer(b, c),
    "bilinear": lambda a, b, w: np.einsum("ni,oij,nj->no", a, w, b),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(IN_NUMPY))
def test_an_operator_is_called_as_its_name_says(name: str) -> None:
    """By NumPy: a case that tried another axis, or its inputs the other way round, would say what another operator does."""
    function, shapes = _observe.CASES[name]
    inputs = [torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) + 0.25 for k, shape in enumerate(shapes)]
    arrays = [x.numpy().copy() for x in inputs]
    # The weights and statistics that a case makes itself are float32, as those of a model are.
    found = function(*(x.float() for x in inputs)) if name.endswith("_norm") else function(*inputs)
    np.testing.assert_allclose(found.double().numpy(), IN_NUMPY[name](*arrays), rtol=1e-5, atol=1e-6)


# Sides by hand: a kernel of 3 takes 2 away, transposed it adds them; pools halve, paddings add one on each side.
RESULTS = {
    "conv1d": (2, 4, 6), "conv2d": (2, 4, 6, 6), "conv3d": (2, 4, 4, 4, 4), "conv_transpose1d": (2, 4, 10),
    "conv_transpose2d": (2, 4, 10, 10), "conv_transpose3d": (2, 4, 8, 8, 8), "conv_tbc": (6, 2, 4),
    "scaled_dot_product_attention": (1, 2, 4, 8), "max_pool2d": (2, 3, 4, 4),
    "avg_pool2d": (2, 3, 4, 4), "adaptive_avg_pool2d": (2, 3, 1, 1), "max_pool3d": (2, 3, 3, 3, 3), "avg_pool3d": (2, 3, 3, 3, 3),
    "adaptive_avg_pool3d": (2, 3, 2, 2, 2), "adaptive_max_pool3d": (2, 3, 2, 2, 2), "reflection_pad2d": (2, 3, 10, 10),
    "replication_pad2d": (2, 3, 10, 10), "grid_sample": (2, 3, 4, 4), "bmm": (3, 4, 4), "mm": (4, 4), "mv": (4,), "linear": (4, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RESULTS))
def test_the_shape_that_an_operator_gives(name: str) -> None:
    """Small, and of more than one channel, item and place."""
    function, shapes = _observe.CASES[name]
    assert tuple(function(*map(torch.ones, shapes)).shape) == RESULTS[name]


def test_what_is_left_to_chance_and_to_the_corner() -> None:
    """Half of the numbers are dropped and the others doubled; a sample at the corner -1 lies half outside of its pixel both ways."""
    dropped = _observe.CASES["dropout"][0](torch.ones(100, 100))
    assert set(dropped.flatten().tolist()) == {0.0, 2.0}
    image = torch.rand(2, 3, 8, 8)
    sampled = _observe.CASES["grid_sample"][0](image, torch.full((2, 1, 1, 2), -1.0))
    torch.testing.assert_close(sampled[:, :, 0, 0], image[:, :, 0, 0] / 4)
    assert _observe.CASES["scaled_dot_product_attention"][1] == ((1, 2, 4, 8),) * 3
