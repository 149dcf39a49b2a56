"""What the recorder's cases time, with a stand-in for ``measure`` that does the work once: the work, its bytes and FLOPs by hand."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from gpulab import training, workloads
from gpulab.compression._modules import Sparse
from gpulab.devices import Device
from gpulab.errors import DeviceError, InputError, OutOfMemoryError
from gpulab.kernels import ladder
from gpulab.recorder import (
    _catalogue,
    _ceilings,
    _compression,
    _foretell,
    _hierarchy,
    _ladders,
    _precision,
    _rank_process,
    _speedup,
    _tips,
    _transfers,
)  # fmt: skip

CPU, CUDA = Device("cpu"), Device("cuda", 0)


class Timed(NamedTuple):
    """What was given to ``measure``, and what the work returned."""

    result: Any
    args: tuple[Any, ...]
    said: dict[str, Any]


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each module's ``measure`` do its work once."""
    for module in (_catalogue, _ceilings, _compression, _ladders, _precision, _tips):
        monkeypatch.setattr(module, "measure", lambda work, *args, **said: Timed(work(*args), args, said))


@pytest.mark.parametrize(("number", "arrays", "value"), [(0, 2, 1.0), (1, 3, 4.0)])
def test_the_streams_of_the_ceilings(number: int, arrays: int, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of ones passes two arrays and a triad of ones, 1 + 3 x 1, three: each 4 bytes an element."""
    monkeypatch.setattr(_ceilings, "CPU_ARRAY_BYTES", 4096)
    case = list(_ceilings._ceiling_cases(CPU))[number]
    timed = case.time(0.5)
    assert len(timed.args) == arrays
    assert all(array.shape == (1024,) for array in timed.args)
    assert (timed.args[0] == value).all()
    assert timed.said["nbytes"] == case.params["nbytes"] == 4096 * arrays
    assert (timed.said["device"], timed.said["deadline"], timed.said["label"]) == (CPU, 0.5, case.params["operation"])


@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16"])
def test_the_products_of_the_ceilings(dtype: str) -> None:
    """Two random square matrices, 2 n^3 FLOPs, TF32 allowed for its own case alone and then as before."""
    before, allowed = torch.get_float32_matmul_precision(), []
    real = _ceilings.measure

    def look(work: Any, *args: Any, **said: Any) -> Timed:
        allowed.append(torch.get_float32_matmul_precision())
        return real(work, *args, **said)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ceilings, "measure", look)
        timed = _ceilings._gemm_case(CPU, dtype, 64).time(0.5)
    a, b = timed.args
    assert not torch.equal(a, b)
    torch.testing.assert_close(timed.result, a @ b, rtol=0.05, atol=0.5)
    assert (a.dtype, timed.said["flops"]) == (torch.bfloat16 if dtype == "bfloat16" else torch.float32, 2 * 64**3)
    assert allowed == ["high" if dtype == "tf32" else "highest"]
    assert torch.get_float32_matmul_precision() == before


def test_a_gpu_before_ampere_records_no_float32_as_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """A T4 (compute capability 7.5) has no TF32, whatever the switch says: the case is kept with that reason."""
    monkeypatch.setattr("gpulab.devices._facts.accelerator", lambda device: types.SimpleNamespace(compute_capability="7.5"))
    device: Any = types.SimpleNamespace(is_cpu=False, kind="cuda", name="Tesla T4")
    with pytest.raises(InputError, match=r"tf32: Tesla T4 has none here; expected compute capability 8\.0"):
        _ceilings._gemm_case(device, "tf32", 64).time(0.5)


def test_launches_are_captured_after_the_side_stream_has_warmed_them_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand additions by themselves; in a graph one on a side stream, a wait for it, the capture of a thousand, a replay."""
    log: list[str] = []

    @contextlib.contextmanager
    def inside(name: str) -> Iterator[None]:
        log.append(name)
        yield
        log.append(f"end of {name}")

    cuda = types.SimpleNamespace(
        CUDAGraph=lambda: types.SimpleNamespace(replay=lambda: log.append("replay")),
        Stream=lambda index: types.SimpleNamespace(synchronize=lambda: log.append("wait")),
        stream=lambda side: inside("side"),
        graph=lambda graph, stream: inside("capture"),
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch, "zeros", lambda *size, device: types.SimpleNamespace(add_=lambda by: log.append("add")))
    stream, graph = _ceilings._launch_cases(CUDA)
    stream.time(0.5)
    assert log == ["add"] * 1000
    log.clear()
    graph.time(0.5)
    assert log == ["side", "add", "end of side", "wait", "capture", *["add"] * 1000, "end of capture", "replay"]


def test_copies_and_the_hierarchy_are_asked_for_what_the_case_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Size, direction, memory and operation reach the measurement as they stand in the parameters."""
    asked: list[Any] = []
    monkeypatch.setattr(_transfers.transfer, "measure_copy", lambda *given, **named: asked.append((given, named)))
    monkeypatch.setattr(_hierarchy.hierarchy, "measure_chase", lambda *given, **named: asked.append((given, named)))
    monkeypatch.setattr(_hierarchy.hierarchy, "measure_stream", lambda *given, **named: asked.append((given, named)))
    _transfers._copy_case(CUDA, "to_host", "pinned", 12).time(0.5)
    _hierarchy._chase_case(CPU, 6144, 0).time(0.5)
    _hierarchy._stream_case(CPU, 8192, "read", 0).time(0.5)
    assert asked == [
        ((4096, "to_host", "pinned", CUDA), {"deadline": 0.5}),
        ((6144, CPU), {"deadline": 0.5}),
        ((8192, CPU, "read"), {"deadline": 0.5}),
    ]


def test_what_does_not_fit_is_told_before_a_smaller_size_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of 12 TB is refused, and not one element of the smaller one that would foretell its time is drawn."""
    monkeypatch.setattr(_catalogue, "refuse_long", lambda *given: pytest.fail("a smaller one was tried"))
    monkeypatch.setattr(_foretell.time, "perf_counter", lambda: pytest.fail("the clock was read"))
    with pytest.raises(OutOfMemoryError):
        _catalogue._case(CPU, workloads.get("matmul"), 2**20, "float32", 0).time(1.0)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks and arrays that a test can afford."""
    for name, value in (("_ROWS", 4), ("_WIDTH", 8), ("_LAYERS", 2), ("_ELEMENTS", 16), ("_CPU_BATCH", 2), ("_CHANNELS", 4), ("_SIDE", 4)):
        monkeypatch.setattr(_tips, name, value)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("tip", "without", "with_it"), [("no_grad", (True, False), (False, False)), ("inference_mode", (False, False), (False, True))]
)
def test_modes_without_gradients(tip: str, without: tuple[bool, bool], with_it: tuple[bool, bool]) -> None:
    """(Gradients are asked for, it is an inference tensor): as PyTorch's manual says of each mode; the values are the same."""
    found = [_tips._case(CPU, tip, form).time(0.5) for form in ("without", "with")]
    assert [(one.result.requires_grad, one.result.is_inference()) for one in found] == [without, with_it]
    torch.testing.assert_close(found[0].result, found[1].result)
    assert found[0].result.shape == (4, 8)
    assert [one.said["label"] for one in found] == [f"{tip}: without", f"{tip}: with"]


@pytest.mark.usefixtures("small")
def test_optimizers_and_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """set_to_none, foreach and the detection of anomalies are on in one form alone, and a step really changes the weights."""
    seen: list[Any] = []
    clear = torch.optim.Optimizer.zero_grad
    monkeypatch.setattr(
        torch.optim.Optimizer, "zero_grad", lambda self, set_to_none=True: (seen.append((self, set_to_none)), clear(self))[0]
    )

    def run(tip: str, form: str) -> Any:
        _tips._case(CPU, tip, form).time(0.5)
        return seen.pop()

    assert [run("set_to_none", form)[1] for form in ("without", "with")] == [False, True]
    assert [run("foreach", form)[0].defaults["foreach"] for form in ("without", "with")] == [False, True]
    assert run("foreach", "with")[1]
    detected: list[bool] = []
    monkeypatch.setattr(torch.optim.SGD, "step", lambda self: detected.append(torch.is_anomaly_enabled()))
    run("no_anomaly_detection", "without")
    run("no_anomaly_detection", "with")
    assert detected == [True, False]
    assert not torch.is_anomaly_enabled()
    monkeypatch.undo()
    weights: list[torch.Tensor] = []
    real = _tips._deep
    monkeypatch.setattr(
        _tips, "_deep", lambda device: weights.extend(real(device)[0].parameters()) or (torch.nn.Linear(8, 8), torch.ones(4, 8))
    )
    step = _tips._step(CPU, make=lambda parameters: weights.extend(given := list(parameters)) or torch.optim.SGD(given, lr=0.1))
    before = weights[-2].detach().clone()
    step()
    assert not torch.equal(before, weights[-2])


@pytest.mark.usefixtures("small")
def test_convolutions_before_a_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bias is in the form without the tip; cuDNN's choice is switched for the length of the measurement and put back."""
    made: list[bool] = []
    real = torch.nn.Conv2d
    monkeypatch.setattr(torch.nn, "Conv2d", lambda *given, bias, **named: made.append(bias) or real(*given, bias=bias, **named))
    for form in ("without", "with"):
        _tips._case(CPU, "no_bias_before_norm", form).time(0.5)
    assert made == [True, False]
    before, seen = torch.backends.cudnn.benchmark, []
    monkeypatch.setattr(_tips, "measure", lambda work, **said: seen.append(torch.backends.cudnn.benchmark))
    for form in ("without", "with"):
        _tips._case(CPU, "cudnn_autotune", form).time(0.5)
    assert seen == [False, True]
    assert torch.backends.cudnn.benchmark == before


@pytest.mark.usefixtures("small")
def test_arrays_made_with_and_without_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """as_tensor lies over NumPy's memory and tensor does not; zeros are made on the device or sent there; products in a loop or as one."""
    arrays: list[np.ndarray] = []
    real = np.ones
    monkeypatch.setattr(np, "ones", lambda *given, **named: arrays.append(real(*given, **named)) or arrays[-1])
    copied, shared = (_tips._case(CPU, "as_tensor", form).time(0.5).result for form in ("without", "with"))
    assert [one.data_ptr() == array.ctypes.data for one, array in zip((copied, shared), arrays, strict=True)] == [False, True]
    asked: list[object] = []
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *given, **named: asked.append(named.get("device")) or zeros(*given, **named))
    results = [_tips._case(CPU, "create_on_device", form).time(0.5).result for form in ("without", "with")]
    assert asked == [None, "cpu"]
    assert torch.equal(*results)
    looped, batched = (_tips._case(CPU, "one_call", form).time(0.5).result for form in ("without", "with"))
    assert torch.equal(torch.stack(looped), batched)
    assert batched.shape == (1000, 16, 16)
    assert (batched == 16).all()


@pytest.mark.parametrize(("share", "rows"), [(0.9, 1), (0.5, 3)])
def test_a_pruned_layer_is_sparse_and_keeps_its_share(share: float, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 x 32 weights the asked share is zero and not stored; a dense layer of 2 x rows x 32^2 FLOPs alone says them."""
    monkeypatch.setattr(_compression, "_CPU_FEATURES", 32)
    models: list[Any] = []
    make = _compression._pruned(share)
    case = _compression._linear(CPU, "csr", "float32", lambda layer: models.append(make(layer)) or models[0], share, rows=rows)
    timed = case.time(0.5)
    (sparse,) = (part for part in models[0].modules() if isinstance(part, Sparse))
    assert len(sparse.values) == pytest.approx(1024 * (1 - share), abs=1)
    assert timed.result.shape == (rows, 32)
    assert not timed.result.requires_grad
    assert timed.said["flops"] is None
    dense = _compression._linear(CPU, "dense", "float32", lambda layer: layer, rows=rows).time(0.5)
    assert (dense.said["flops"], dense.said["label"]) == (2 * rows * 32**2, "linear, dense")


def test_a_ladder_with_each_technique_alone_upon_the_others_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three techniques, by hand: what each form uses."""
    three = [dataclasses.replace(training.techniques()[0], name=name) for name in "abc"]
    monkeypatch.setattr(_speedup, "_techniques", lambda: three)
    monkeypatch.setattr(_speedup, "_has", lambda device, technique: True)
    monkeypatch.setattr(_speedup, "_case", lambda device, form, name, used, rank: (form, name, "".join(one.name for one in used)))
    assert list(_speedup._cases(CUDA)) == [
        ("the script", "", ""),
        ("with all before it", "a", "a"), ("alone", "a", "a"), ("with all before it", "b", "ab"), ("alone", "b", "b"),
        ("with all before it", "c", "abc"), ("alone", "c", "c"),
        ("all but it", "a", "bc"), ("all but it", "b", "ac"), ("all but it", "c", "ab"),
    ]  # fmt: skip


def test_a_rung_is_launched_with_its_arguments_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiled product of n = 128: its grid and block, three arrays and n on the device, 2 n^3 FLOPs; the C++ one with its size last."""
    launched: list[tuple[Any, ...]] = []

    def launcher(*given: Any, **named: Any) -> Any:
        launched.append((*given, named))
        return lambda: "launched"

    monkeypatch.setattr(_ladders, "launcher", launcher)
    monkeypatch.setattr(_ladders, "cuda_launcher", launcher)
    monkeypatch.setattr(_ladders.arrays, "to_device", lambda a, device: ("there", device, np.shape(a)))
    rung = next(one for one in ladder.RUNGS if one.name == "matmul-tiled")
    timed = _ladders._python_case(CUDA, rung, 128).time(0.5)
    kernel, grid, block, *arrays, named = launched.pop()
    assert (kernel, (grid, block), named) == (rung.kernel, rung.launch(128), {})
    assert arrays == [("there", CUDA, np.shape(a)) for a in rung.arguments(128)]
    assert (timed.result, timed.said["flops"], timed.said["label"]) == ("launched", 2 * 128**3, "matmul-tiled")
    assert (timed.said["device"], timed.said["deadline"], timed.said["nbytes"]) == (CUDA, 0.5, rung.nbytes(128))
    cuda_rung = next(one for one in ladder.CUDA_RUNGS if one.name == "matmul-warp-tiled")
    case = _ladders._cuda_case(CUDA, cuda_rung, 128, ("-DDEPTH=8",))
    timed = case.time(0.5)
    source, kernel, grid, block, *arrays, size, named = launched.pop()
    assert (source, kernel, (grid, block)) == (cuda_rung.source, cuda_rung.kernel, cuda_rung.launch(128))
    assert arrays == [("there", CUDA, np.shape(a)) for a in cuda_rung.arguments(128)[:-1]]
    assert (size, named) == (cuda_rung.arguments(128)[-1], {"options": ("-DDEPTH=8",)})
    assert (timed.said["flops"], case.params["options"]) == (2 * 128**3, "-DDEPTH=8")


def test_the_librarys_product_is_the_catalogues(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, on the device: here on the CPU, against NumPy."""
    timed = _ladders._library_case(CPU, 32).time(0.5)
    a, b = (x.numpy() for x in timed.args)
    np.testing.assert_allclose(timed.result.numpy(), a @ b, rtol=1e-4, atol=1e-4)
    assert (timed.said["flops"], timed.said["nbytes"], timed.said["device"]) == (2 * 32**3, 3 * 4 * 32**2, CPU)


def test_a_product_in_8_bits_is_given_its_second_operand_by_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch._scaled_mm``'s manual: the first by rows, the second by columns, a scale each; TF32 is on for its own case alone."""
    given: list[Any] = []
    monkeypatch.setattr(torch, "_scaled_mm", lambda x, y, **named: given.append((x, y, named)))
    fn, operands = _precision._product(CPU, "float8_e4m3fn", 16)
    fn(*operands)
    ((x, y, named),) = given
    assert (x.dtype, y.dtype, named["out_dtype"]) == (torch.float8_e4m3fn, torch.float8_e4m3fn, torch.bfloat16)
    assert (x.stride(), y.stride()) == ((16, 1), (1, 16))
    assert float(named["scale_a"]) == float(named["scale_b"]) == 1
    allowed: list[bool] = []
    monkeypatch.setattr(
        _precision, "measure", lambda fn, *operands, **said: allowed.append(torch.backends.cuda.matmul.fp32_precision == "tf32")
    )
    for name in ("tf32", "float32"):
        _precision._case(CPU, name, 8).time(0.5)
    assert allowed == [True, False]


def test_a_rank_that_does_not_answer_is_named_after_the_time_given() -> None:
    """Of two ranks the second is silent: told by its number, soon after a twentieth of a second."""
    ranks = _rank_process.RankProcesses.__new__(_rank_process.RankProcesses)
    ranks.n = 2
    answered, theirs = _rank_process.Pipe()
    silent, other = _rank_process.Pipe()
    theirs.send((False, "here"))
    ranks._ends = [answered, silent]
    with contextlib.closing(theirs), contextlib.closing(other), pytest.raises(DeviceError, match="rank 1 did not answer within 0 s"):
        ranks._gather(0.05, "a test")
