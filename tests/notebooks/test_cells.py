"""What cells work out by themselves, with numbers whose answer is known: a cell that runs can still compute the wrong thing."""

from __future__ import annotations

import ast
import dataclasses
import json
import linecache
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpulab
from gpulab import kernels
from gpulab.kernels import ladder
from gpulab.kernels._compile import _libraries
from gpulab.units import plural

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
# The kernels of notebook 01, by the group of threads that takes a branch together.
GROUPS = {"apart": 1, "together": 32}


def run(notebook: str, id: str, **names: Any) -> dict[str, Any]:
    """Run one cell on these names and return what is there afterwards."""
    run_in(names, notebook, id)
    return names


def run_in(names: dict[str, Any], notebook: str, id: str) -> None:
    """Run one cell in a page's own names, which the functions of its other cells see too."""
    cells = json.loads((FOLDER / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    (source,) = ("".join(cell["source"]) for cell in cells if cell["id"] == id)
    file = f"<{id}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # a kernel's text is found, as in a notebook
    exec(compile(source, file, "exec"), names)


def seconds(value: float) -> str:
    """What stands for gpulab's own words for seconds."""
    return f"{value:g} s"


def test_means_of_three_neighbours(capsys: pytest.CaptureFixture[str]) -> None:
    """1 to 13 s: (1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11, 12), and the last is left over."""
    run("00_start_here", "means", root=SimpleNamespace(samples_seconds=np.arange(1.0, 14.0)), format_seconds=seconds)
    assert capsys.readouterr().out.startswith("4 means of three: from 2 s to 11 s\n")


def test_the_spread_of_ten_calls_in_percent() -> None:
    """From 2 to 5 s: the slowest takes 150 % longer."""
    revealed: list[tuple[str, float]] = []
    gl = SimpleNamespace(lessons=SimpleNamespace(reveal=lambda id, value: revealed.append((id, value))))
    run("00_start_here", "reveal-spread", times=[3.0, 2.0, 5.0, 4.0], gl=gl)
    assert revealed == [("00.4", pytest.approx(150.0))]


@pytest.mark.parametrize("id", list(GROUPS))
def test_both_kernels_do_the_same_work_apart_from_who_takes_which_branch(id: str) -> None:
    """Doubled and one more, or tripled and one less, in turns of one thread or of one warp."""
    names = run("01_gpu_architecture", id, cuda=kernels.cuda)
    kernel = names["lanes_apart" if id == "apart" else "warps_apart"]
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    kernels.simulate(kernel, 2, 64, x, out)
    assert list(out) == [2 * k + 1 if k // GROUPS[id] % 2 == 0 else 3 * k - 1 for k in range(128)]


def test_columns_are_summed_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    """By hand, and the strides of 4-byte numbers in three rows of two, stored by rows and by columns."""
    names = run("10_rosetta", "columns-loop", np=np)
    assert capsys.readouterr().out == "[3. 3.] strides in bytes: (8, 4) (4, 12)\n"
    assert list(names["sum_columns"](np.array([[1, 2, 3], [10, 20, 30]]))) == [11, 22, 33]


# The cells that ask for NVIDIA's compiler, each after those that it needs.
_COMPILING = [("01_gpu_architecture", ("spill-source", "spill")), ("10_rosetta", ("compile",))]
_COMPILING += [("04_custom_kernels", cells) for cells in (("cpp",), ("vectorised", "registers"), ("vectorised", "spills"), ("tensor",))]


@pytest.mark.parametrize("system", ["darwin", "win32"])
@pytest.mark.parametrize(("notebook", "cells"), _COMPILING, ids=lambda value: value if isinstance(value, str) else value[-1])
def test_without_nvidias_compiler_a_notebook_goes_on(
    notebook: str, cells: tuple[str, ...], system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRTC has no macOS build, and may be missing elsewhere: Run All would end at the first cell that raises."""
    monkeypatch.setattr(_libraries, "find_library", lambda name: None)
    monkeypatch.setattr(sys, "platform", system)
    names: dict[str, Any] = {"gl": gpulab, "ladder": ladder}
    for cell in cells:
        names = run(notebook, cell, **names)


def ticking(log: list[str], step: float = 1.0) -> SimpleNamespace:
    """A clock for a cell: each look is logged, and comes a step after the last one."""
    return SimpleNamespace(perf_counter=lambda: (log.append("look"), log.count("look") * step)[1])


def queue_that_logs(log: list[str]) -> SimpleNamespace:
    """A queue for a cell: what is asked of it is logged."""
    return SimpleNamespace(
        submit=lambda function, *_: log.append("submit" if callable(function) else "nothing"), synchronize=lambda: log.append("wait")
    )


ROOT = SimpleNamespace(median_seconds=6.0)


def test_the_trap_does_not_wait_and_the_honest_clock_does(capsys: pytest.CaptureFixture[str]) -> None:
    """First two seconds for the call alone, a third of the CPU's; then the queue is emptied, and the clock read when the work is done."""
    log: list[str] = []
    gl = SimpleNamespace(lessons=SimpleNamespace(WorkQueue=lambda: queue_that_logs(log)))
    words: dict[str, Any] = {"np": np, "x": None, "root": ROOT, "format_seconds": seconds, "format_ratio": lambda ratio: f"{ratio:g}x"}
    run("00_start_here", "trap", gl=gl, time=ticking(log, 2.0), **words)
    assert (log, capsys.readouterr().out) == (["look", "submit", "look"], "2 s: 3x as fast as the CPU. Is that true?\n")
    log.clear()
    run("00_start_here", "wait", queue=queue_that_logs(log), time=ticking(log), **words)
    assert log == ["wait", "look", "submit", "wait", "look"]
    assert capsys.readouterr().out == "worker: 1 s\nCPU:    6 s\n"


def test_the_claim_is_both_arrays_over_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    """50 bytes read and 50 written in 2 s are 50 a second: ten times what a memory of 5 bytes a second does."""
    ceilings = SimpleNamespace(bandwidth=lambda: 5.0)
    x = np.zeros(50, np.uint8)
    run("00_start_here", "claim-rate", x=x, seconds=2.0, ceilings=ceilings, format_bytes_per_second=lambda rate: f"{rate:g}")
    assert capsys.readouterr().out == "claimed:          50\nyour main memory: 5\nThe claim is 10.0 times what your memory does.\n"


@pytest.mark.parametrize(
    ("notebook", "id"), [("00_start_here", "root"), ("00_start_here", "implausible"), ("04_custom_kernels", "formula")]
)
def test_a_function_of_each_number_reads_and_writes_it(notebook: str, id: str) -> None:
    """float32: 4 bytes in and 4 out for each number."""
    given: dict[str, Any] = {}
    gl = SimpleNamespace(measure=lambda *_, **named: given.update(named))
    names = run(notebook, id, gl=gl, np=np, x=np.zeros(10, np.float32), queue=queue_that_logs([]))
    assert given["nbytes"] == 8 * names["x"].size


def test_ten_calls_are_timed_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten times, each the difference of its own two looks, with a call between them."""
    log: list[str] = []
    library = SimpleNamespace(sqrt=lambda x: log.append("call"))
    names = run("00_start_here", "ten", time=ticking(log), np=library, x=None, format_seconds=seconds)
    assert names["times"] == [1.0] * 10
    assert log == ["look", "call", "look"] * 10
    assert capsys.readouterr().out == "1 s, " * 9 + "1 s\n"


@pytest.mark.parametrize(("interval", "says"), [((1.0, 2.0), "yours: 2.0"), (None, "yours: no interval: measure both again")])
def test_a_speedup_needs_both_intervals(interval: tuple[float, float] | None, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The powers take 4 s, the product 2 s; without an interval of one of them the learner's ratio is not asked for."""
    power, product = SimpleNamespace(s=4.0, interval_seconds=(1.0, 2.0)), SimpleNamespace(s=2.0, interval_seconds=interval)
    compared: dict[str, Any] = {}
    gl = SimpleNamespace(compare=lambda runs, devices: compared.update(runs))
    run("00_start_here", "speedup-use-cell", power=power, product=product, speedup=lambda a, b: a.s / b.s, gl=gl, a=np.array([3.0]))
    assert capsys.readouterr().out.startswith(says)
    assert [fn()[0] for fn in compared.values()] == [27.0, 27.0]


def test_the_loop_sends_computes_and_fetches_a_hundred_times() -> None:
    """One step takes 0.5 to 3.9 * 0.5 * 0.5 = 0.975; the CPU's loop has as many."""
    names = run("02_data_transfer", "loop")
    assert names["step"](0.5) == 0.975
    log: list[str] = []
    device = SimpleNamespace(
        to_device=lambda a: (log.append("send"), a)[1], run=lambda fn, a: (log.append("run"), fn(a))[1],
        to_host=lambda a: (log.append("fetch"), a)[1],
    )  # fmt: skip
    names["step"] = lambda v: v + 1
    assert names["loop"](device, 0) == 100
    assert log == ["send", "run", "fetch"] * 100
    gpu = SimpleNamespace(reset=lambda: None, report=lambda: None)
    gl = SimpleNamespace(measure=lambda fn, a, **_: fn(a))
    assert run("02_data_transfer", "bill", gl=gl, gpu=gpu, a=0, step=lambda v: v + 1, loop=lambda *_: None)["cpu"] == 100


def test_a_step_of_the_accelerator_is_the_bill_over_its_calls(capsys: pytest.CaptureFixture[str]) -> None:
    """20 calls after the first one, 40 s in all: 2 s."""
    log: list[str] = []
    bill = SimpleNamespace(compute_seconds=40.0, calls=20, evidence=SimpleNamespace(badge="MODELLED"))
    gpu = SimpleNamespace(
        run=lambda fn, a: log.append("run"), to_device=lambda a: a, reset=lambda: log.append("reset"), report=lambda: bill
    )
    gl = SimpleNamespace(measure=lambda *_, **__: ROOT, lessons=SimpleNamespace(accelerator=lambda: gpu))
    run("02_data_transfer", "one-step", gl=gl, np=np, step=None, format_seconds=seconds)
    assert log == ["run", "reset", *["run"] * 20]
    assert capsys.readouterr().out == "CPU (MEASURED): 6 s\naccelerator (MODELLED): 2 s\n"


@pytest.mark.parametrize(("badge", "points"), [("MEASURED", "mine"), ("MODELLED", "made")])
def test_the_fit_is_of_the_learners_own_sweep_where_it_was_measured(badge: str, points: str) -> None:
    """Else of the model's own points."""
    kept = SimpleNamespace(fit=lambda direction, memory: (direction, memory))
    sweeps = {"mine": kept, "made": SimpleNamespace(fit=kept.fit)}
    link = SimpleNamespace(evidence=SimpleNamespace(badge=badge), sweep=lambda noise_ratio: sweeps["made"])
    gl = SimpleNamespace(figures=SimpleNamespace(sweep=lambda *_, **__: None), lessons=SimpleNamespace(recorded_sweeps=list))
    names = run("02_data_transfer", "fit", sweep=sweeps["mine"], link=link, gl=gl)
    assert names["points"] is sweeps[points]
    assert names["best"] == ("to_device", "pinned")


def test_the_smooth_function_of_three_operators() -> None:
    """relu(2 x + 1) of -1, 0 and 1."""
    import torch

    gl = SimpleNamespace(memory=SimpleNamespace(traffic=lambda *_: None))
    smooth = run("03_compute_density", "smooth", torch=torch, device="meta", gl=gl)["smooth"]
    assert smooth(torch.tensor([-1.0, 0.0, 1.0])).tolist() == [0.0, 1.0, 3.0]


def test_every_gate_of_the_notebook_is_a_sigmoid() -> None:
    """(1 + tanh(0.8 x)) / 2 is 1 / (1 + exp(-1.6 x)): NumPy's form, a thread for each number, a stride of the grid, and in chunks."""
    import math

    x = np.linspace(-3, 3, 100, dtype=np.float32)
    wanted = x / (1 + np.exp(-1.6 * x.astype(np.float64)))
    gl = SimpleNamespace(measure=lambda *_, **__: None)
    assert run("04_custom_kernels", "formula", gl=gl, np=np)["gate"](x) == pytest.approx(wanted, abs=1e-6)
    gl = SimpleNamespace(kernels=SimpleNamespace(simulate=lambda *_: None))
    shared = {"cuda": kernels.cuda, "float32": np.float32, "math": math, "np": np, "gl": gl, "gate": lambda x: 0.0, "few": x, "y": x}
    for id, name in (("kernel", "gate_kernel"), ("grid-stride", "gate_stride"), ("chunks", "gate_chunks")):
        y = np.zeros(100, np.float32)
        kernel = run("04_custom_kernels", id, x=np.zeros(1000, np.float32), **shared)[name]
        found = kernels.simulate(kernel, 4 if id == "kernel" else 2, 32, x, y)
        assert y == pytest.approx(wanted, abs=1e-6), id
        assert not found.findings
    assert found.totals.global_load_requests == 32, "one for each number of a thread's chunk"


def test_the_kernel_without_an_end_reads_one_too_far() -> None:
    """Of 100 numbers the last thread reads number 100, and only that is found."""
    gl = SimpleNamespace(kernels=kernels)
    names = run("04_custom_kernels", "bounds", cuda=kernels.cuda, gl=gl, np=np, few=np.arange(1000, dtype=np.float32) ** 2)
    out = np.zeros(99, np.float32)
    kernels.simulate(names["difference"], 1, 99, np.arange(100, dtype=np.float32) ** 2, out)  # each thread has a neighbour
    assert list(out) == [2 * k + 1 for k in range(99)]
    (finding,) = names["ends"].findings
    assert (finding.kind, finding.index) == ("bounds", (100,))


def test_the_product_of_tiles_is_numpys() -> None:
    """Two tiles in each direction, on matrices that are not symmetric."""
    kernel = run("04_custom_kernels", "tiled", cuda=kernels.cuda, float32=kernels.float32)["matmul_tiled"]
    a, b = (np.random.default_rng(k).random((64, 64), dtype=np.float32) for k in range(2))
    c = np.zeros((64, 64), np.float32)
    found = kernels.simulate(kernel, (2, 2), (32, 32), a, b, c)
    assert c == pytest.approx(a @ b, rel=1e-5)
    assert found.shared_bytes == 2 * 32 * 32 * 4  # one tile of each, of 4-byte numbers
    assert not found.findings, "two barriers"


def test_small_losses_and_a_large_rate_cancel() -> None:
    """In float32 a millionth of the loss at a million times the rate 0.1 is plain descent at 0.1."""
    import torch
    from torch.nn.functional import cross_entropy

    x, y = torch.linspace(-1, 1, 12).reshape(4, 3), torch.tensor([0, 1, 1, 0])
    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    train = run("05_mixed_precision", "small", torch=torch, cross_entropy=cross_entropy)["train_small"]
    train(models[0], [(x, y), (x, y)], False)
    for _ in range(2):
        models[1].zero_grad()
        cross_entropy(models[1](x), y).backward()
        for p in models[1].parameters():
            p.data -= 0.1 * p.grad
    for mine, plain in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(mine, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("ends", "word"), [(("diverged", "finished"), "yes, with the right scale"), (("diverged",) * 2, "no, whatever the scale")]
)
def test_an_epsilon_is_mended_if_one_run_came_to_its_end(ends: tuple[str, ...], word: str) -> None:
    """Of several scales one is enough."""
    said: list[tuple[str, str]] = []
    gl = SimpleNamespace(lessons=SimpleNamespace(reveal=lambda id, value: said.append((id, value))))
    run("05_mixed_precision", "reveal-epsilon", ends=dict(enumerate(ends)), gl=gl)
    assert said == [("05.5", word)]


def test_what_a_faster_accelerator_gains_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """A step of 3 s with 2 s of computing: half of that is 1 s, and without any the step takes 1 s, a third."""
    p, said = SimpleNamespace(step_seconds=3.0, compute_seconds=2.0), []
    gl = SimpleNamespace(
        training=SimpleNamespace(replay=lambda p, compute_seconds: compute_seconds),
        lessons=SimpleNamespace(reveal=lambda id, value, **_: said.append((id, value))),
    )
    run("06_training_pipeline", "c10", p=p, gl=gl)
    run("06_training_pipeline", "c34", waits=SimpleNamespace(count=16, evidence=None), batches=[0] * 8, gl=gl)
    assert said == [("06.2", (p, 1.0)), ("06.6", 2.0)]
    capsys.readouterr()
    run("06_training_pipeline", "c12", p=p, format_seconds=seconds)
    assert capsys.readouterr().out.splitlines()[1:] == ["- without computing:   1 s", "so the best accelerator gains at most 3.00x"]


def test_an_epoch_adds_up_losses_and_right_answers() -> None:
    """Two batches of which the model gets 2 and 1 of 2 right; each loss is PyTorch's."""
    import torch
    from torch.nn.functional import cross_entropy

    scores = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    batches = [(scores, torch.tensor([0, 1])), (scores, torch.tensor([0, 0]))]
    steps: list[str] = []
    optimizer = SimpleNamespace(zero_grad=lambda: steps.append("zero"), step=lambda: steps.append("step"))
    model = torch.nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(2))
    total, right = run("06_training_pipeline", "c30", torch=torch, cross_entropy=cross_entropy)["epoch"](model, optimizer, batches)
    assert right == 3
    assert total == pytest.approx(sum(float(cross_entropy(scores, labels)) for _, labels in batches))
    assert steps == ["zero", "step"] * 2
    wanted = torch.eye(2, requires_grad=True)  # the optimizer forgets nothing here, so both batches add up
    both = torch.stack([cross_entropy(scores @ wanted.T, labels) for _, labels in batches]).sum()
    assert model.weight.grad is not None
    assert torch.allclose(model.weight.grad, torch.autograd.grad(both, wanted)[0])


def test_the_profile_of_the_plain_optimizer_stays_that_of_the_plain_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Its cell run again, after the fused one was seen, steps with the first optimizer; the two rows would be the same otherwise."""
    import contextlib

    stepped: list[str] = []

    def optimizer(name: str) -> SimpleNamespace:
        return SimpleNamespace(zero_grad=lambda: None, step=lambda: stepped.append(name))

    def profile(step: Any, *args: Any, device: Any) -> SimpleNamespace:
        step(*args)
        return SimpleNamespace(operators_per_step=1.0, spans=[SimpleNamespace(name="optimizer", seconds=1.0)])

    fake = SimpleNamespace(optim=SimpleNamespace(Adam=lambda parameters, fused: optimizer("fused")))
    names: dict[str, Any] = {
        "gl": SimpleNamespace(training=SimpleNamespace(profile=profile)), "torch": fake, "optimizer": optimizer("plain"), "device": None,
        "batches": [(None, None)], "record_function": lambda name: contextlib.nullcontext(), "format_seconds": seconds,
        "cross_entropy": lambda scores, labels: SimpleNamespace(backward=lambda: None),
        "model": type("Model", (), {"__call__": lambda self, images: None, "parameters": lambda self: []})(),
    }  # fmt: skip
    for cell in ("c41", "c42", "c46", "c42", "c46"):
        run_in(names, "06_training_pipeline", cell)
    assert stepped == ["plain", "fused", "plain", "fused"]
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["not", "fused"] * 2


def test_the_step_that_is_profiled_finds_its_own_network_after_the_whole_notebook() -> None:
    """Run again after Run All, its cells read the names of the cells above them: no later cell may have given one of these away."""
    cells = json.loads((FOLDER / "06_training_pipeline.ipynb").read_text(encoding="utf-8"))["cells"]
    code = {cell["id"]: ast.parse("".join(cell["source"])) for cell in cells[2:] if cell["cell_type"] == "code"}
    names = {id: [node for node in ast.walk(tree) if isinstance(node, ast.Name)] for id, tree in code.items()}
    made = {id: {node.id for node in nodes if isinstance(node.ctx, ast.Store)} for id, nodes in names.items()}
    read = {node.id for id in ("c41", "c42", "c46") for node in names[id] if isinstance(node.ctx, ast.Load)} - made["c46"]
    order = list(code)
    assert "model" in read & made["c33"]
    assert not read & set().union(*(made[id] for id in order[order.index("c46") + 1 :]))


def test_the_block_that_is_compiled_by_hand() -> None:
    """Of the row (0, 1, 5): its norm y has the mean 2 and the variance 14 / 3 taken out; then x + y / (1 + exp(-1.702 y))."""
    import torch

    device = type("Meta", (), {"is_cpu": True, "__str__": lambda _: "meta"})()
    block = run("06_training_pipeline", "c52", torch=torch, device=device)["block"]
    found = block(torch.tensor([[0.0, 1.0, 5.0]]), torch.ones(3), torch.zeros(3))
    wanted = [x + y / (1 + np.exp(-1.702 * y)) for x in (0, 1, 5) for y in [(x - 2) / np.sqrt(14 / 3)]]
    assert found[0].tolist() == pytest.approx(wanted, abs=1e-4)


def test_the_network_is_calibrated_where_the_images_are() -> None:
    """Trained again on a GPU it lies there, and refuses images from main memory; the task's images lie there, all and dimmed."""
    given: list[tuple[str, float]] = []
    model = SimpleNamespace(cpu=lambda: "on the CPU")
    gl = SimpleNamespace(
        compression=SimpleNamespace(quantize=lambda model, calibration, **_: given.append((model, float(calibration[0])))),
        training=SimpleNamespace(evaluate=lambda *_: None),
    )
    run("07_lighter_models", "calibration", gl=gl, model=model, job=SimpleNamespace(train=np.array([[5.0]])))
    assert given == [("on the CPU", 5.0), ("on the CPU", 0.5)]


@pytest.mark.parametrize("id", ["weigh-masked", "channels"])
def test_models_are_weighed_where_the_notebook_trains(id: str) -> None:
    """After Run All the network lies on the CPU, where its weights were rounded: run again, a cell must not leave the GPU for it."""
    asked: list[str | None] = []

    def weigh(models: dict[str, str], on: str, device: str | None = None) -> None:
        asked.append(device)

    gl = SimpleNamespace(
        compression=SimpleNamespace(prune=lambda model, amount, structured: "on the CPU", weigh=weigh),
        training=SimpleNamespace(fit=lambda job, **_: None),
    )
    run("07_lighter_models", id, gl=gl, model="on the CPU", pruned="on the GPU", job="digits", device="cuda:0")
    assert asked == ["cuda:0"]


def test_one_core_is_not_told_as_several(capsys: pytest.CaptureFixture[str]) -> None:
    """The last line of notebook 08's first cell, on a machine with one core and on one with 16."""
    (cell,) = (c for c in json.loads((FOLDER / "08_parallelism.ipynb").read_text(encoding="utf-8"))["cells"] if c["id"] == "setup")
    for cores, words in ((1, "1 core"), (16, "16 cores")):
        machine = SimpleNamespace(processor=SimpleNamespace(usable_cores=cores))
        exec(cell["source"][-1], {"gl": SimpleNamespace(machine=lambda machine=machine: machine), "plural": plural})
        assert capsys.readouterr().out == f"The four ranks of this notebook will share {words}.\n"


def test_two_reasons_for_several_devices_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """16 bytes for each of 7e9 parameters; 5.88e21 FLOP at 40 % of 989 TFLOP/s, and all of it at 1 GFLOP/s."""
    said: list[float] = []
    evidence = SimpleNamespace(Evidence=SimpleNamespace(modelled=lambda *_: None))
    gl = SimpleNamespace(evidence=evidence, lessons=SimpleNamespace(reveal=lambda id, value, **_: said.append(value)))
    names = run("08_parallelism", "two", gl=gl, format_bytes=lambda n: f"{n:g}")
    assert said == [112e9]
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [["memory:", "1.12e+11"], ["time:", "172"]]
    assert names["days"] == pytest.approx(5.88e21 / 3.956e14 / 86_400)
    roof = SimpleNamespace(
        arithmetic_roof=lambda name: SimpleNamespace(flops_per_second=1e9), device="far", evidence=SimpleNamespace(sentence="said.")
    )
    for roofs, line in (([roof], "recorded GPUs: 1"), ([], "recorded GPUs: none yet")):
        capsys.readouterr()
        gl.lessons.gpu_roofs = lambda arithmetic, roofs=roofs: roofs if arithmetic == "bfloat16" else None
        numbers = {"parameters": names["parameters"], "tokens": names["tokens"]}
        run("08_parallelism", "two-recorded", gl=gl, format_flops_per_second=lambda rate: f"{rate:g}", **numbers)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == line
        assert lines[1:] == (["far: 68055556 days, if all of it ran at 1e+09", "said."] if roofs else [])


def test_the_ranks_share_a_batch_and_average_their_gradients() -> None:
    """Of step 3's numbers 192 to 255 each rank has a fourth, none twice; a sum over four equal gradients is four times one."""
    parts: list[list[int]] = []
    for rank in range(4):
        dist = SimpleNamespace(get_rank=lambda rank=rank: rank, get_world_size=lambda: 4, all_reduce=lambda grad: grad.__imul__(4))
        names = run("08_parallelism", "average", dist=dist)
        parts.append(names["my_part"](3))
    assert sorted(k for part in parts for k in part) == list(range(192, 256))
    assert {len(part) for part in parts} == {16}
    p = SimpleNamespace(grad=np.array([1.0, 2.0]))
    names["average_gradients"](SimpleNamespace(parameters=lambda: [p]))
    assert list(p.grad) == [1.0, 2.0]


def test_the_losses_of_the_ranks_are_averaged_by_step() -> None:
    """Two ranks whose losses are k and k + 2: k + 1."""
    said: list[Any] = []
    ranks = SimpleNamespace(run=lambda fn: [[float(k) for k in range(20)], [k + 2.0 for k in range(20)]])
    gl = SimpleNamespace(lessons=SimpleNamespace(reveal=lambda id, value: said.append(value)))
    alone = [0.0] * 20
    run("08_parallelism", "by-hand", ranks=ranks, data_parallel=None, alone=alone, gl=gl)
    assert said == [([k + 1.0 for k in range(20)], alone)]


def test_who_fails_in_which_cell() -> None:
    """Rank 2 leaves out its second all-reduce; rank 1 dies; rank 3 is the slow one."""
    import torch

    took: dict[int, list[float]] = {}
    died: list[int] = []
    for rank in range(4):
        calls: list[str] = []
        dist = SimpleNamespace(get_rank=lambda rank=rank: rank, all_reduce=lambda x, calls=calls: calls.append("reduce"))
        ranks = SimpleNamespace(run=lambda fn: fn(), log=[], ready=True)
        ranks.recover = lambda ranks=ranks: ranks
        gl = SimpleNamespace(errors=SimpleNamespace(RankError=KeyError))
        run("08_parallelism", "skipped", dist=dist, ranks=ranks, torch=torch, gl=gl)
        assert len(calls) == (2 if rank == 2 else 3)
        names = run(
            "08_parallelism", "slow", dist=dist, ranks=SimpleNamespace(recover=lambda: SimpleNamespace(run=str), log=[]), torch=torch
        )
        names["time"] = SimpleNamespace(sleep=took.setdefault(rank, []).append)
        names["one_is_slow"]()
        names = run(
            "08_parallelism", "dead", dist=dist, ranks=SimpleNamespace(recover=lambda: SimpleNamespace(run=str)), torch=torch, gl=gl
        )
        names["os"] = SimpleNamespace(_exit=lambda code, rank=rank: died.append(rank))
        names["dies"]()
    assert died == [1]
    assert took == {0: [0.1] * 5, 1: [0.1] * 5, 2: [0.1] * 5, 3: [0.3] * 5}


@pytest.mark.parametrize(("ready", "asked"), [(True, ["run"]), (False, ["recover", "run"])])
def test_the_hang_can_be_provoked_again(ready: bool, asked: list[str]) -> None:
    """After the first one the ranks are out of step, and would refuse a call."""
    log: list[str] = []
    ranks = SimpleNamespace(ready=ready, run=lambda fn: log.append("run"))
    ranks.recover = lambda: (log.append("recover"), ranks)[1]
    run("08_parallelism", "skipped", ranks=ranks, gl=SimpleNamespace(errors=SimpleNamespace(RankError=KeyError)))
    assert log == asked


def test_promised_gains_multiply_to_nearly_twelve(capsys: pytest.CaptureFixture[str]) -> None:
    """3 * 2 * 1.3 * 1.5."""
    run("09_speedup_ladder", "multiply")
    assert capsys.readouterr().out == "11.7x\n"


def test_the_beginners_script_sees_each_item_once_an_epoch() -> None:
    """35 items in batches of 16, 16 and 3, for three epochs; half of the items for the half."""
    import torch

    sizes: list[int] = []

    class Model(torch.nn.Linear):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            sizes.append(len(images))
            assert images[:, 0].tolist() == [float(k) for k in range(int(images[0, 0]), int(images[0, 0]) + len(images))]
            return super().forward(images)

    data = [(torch.tensor([float(k), 1.0]), torch.tensor(k % 2)) for k in range(35)]
    run("09_speedup_ladder", "script", torch=torch, device="cpu")["script"](Model(2, 2), data)
    assert sizes == [16, 16, 3] * 3
    seen: list[Any] = []
    training = SimpleNamespace(Data=lambda *parts: parts, compare_scripts=lambda *given, **_: seen.append(given))
    names = run("09_speedup_ladder", "half", gl=SimpleNamespace(training=training), script=lambda model, part: seen.append(part))
    names["half"](None, list(range(10)))
    assert seen[0] == (names["script"], names["half"])
    assert seen[1] == tuple(range(5))


@pytest.mark.parametrize(("state", "scripts"), [("passed", ["raced"]), ("wrong", [])])
def test_only_a_script_that_passed_goes_into_the_report(state: str, scripts: list[str]) -> None:
    """What is wrong is not raced; what passed is raced against the script."""
    page = SimpleNamespace(read_text=lambda encoding=None: "")
    given: list[Any] = []
    training = SimpleNamespace(
        compare_scripts=lambda *both: {(1, 2): "raced"}[both], speedup_report=lambda *parts: (given.extend(parts), page)[1]
    )
    passed = SimpleNamespace(state=state)
    run("09_speedup_ladder", "report", gl=SimpleNamespace(training=training), script=1, mine=2, passed=passed, ladder="all")
    assert given[1:] == ["all", *scripts]


def test_a_file_that_gpulab_wrote_is_read_as_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both are UTF-8; Windows' own encoding would show the middle dot of a badge line as two other characters."""
    given: list[str | None] = []

    class Windows(type(Path())):  # type: ignore[misc]
        def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
            given.append(encoding)
            return str(super().read_text(encoding or "cp1252", errors))

    file = Windows(tmp_path / "page.md")
    file.write_text("> MEASURED \u00b7 n = 24", encoding="utf-8")
    training, ranks = SimpleNamespace(speedup_report=lambda *_: file), SimpleNamespace(export_script=lambda *_: file)
    run("09_speedup_ladder", "report", gl=SimpleNamespace(training=training), passed=SimpleNamespace(state="wrong"), ladder=None)
    run("08_parallelism", "export", ranks=ranks, data_parallel=None)
    assert capsys.readouterr().out == "> MEASURED \u00b7 n = 24 ...\n" * 2
    assert given == ["utf-8"] * 2


def test_the_answer_on_the_h200_is_the_h200s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question of 09.10 names it; a machine of the class, recorded beside it, comes before it in the alphabet."""
    own = gpulab.recordings.load("nvidia-h200")
    other = dataclasses.replace(own, name="a100", environment=dataclasses.replace(own.environment, device="NVIDIA A100"))
    monkeypatch.setattr(gpulab.recordings, "readable", lambda: {"a100": other, "nvidia-h200": own})
    seen, said = gpulab.lessons.technique_gains(), list[Any]()
    lessons = SimpleNamespace(
        technique_gains=gpulab.lessons.technique_gains, reveal=lambda id, gain, evidence: said.append(evidence.device)
    )
    run("09_speedup_ladder", "reveal-graph", gl=SimpleNamespace(lessons=lessons), seen=seen)
    assert said == ["NVIDIA H200"]
    assert {row[0] for row in seen.rows} == {"a100", "nvidia-h200"}
    assert {row[0] for row in gpulab.lessons.technique_gains("nvidia-h200").rows} == {"nvidia-h200"}


@pytest.mark.parametrize(("lacks", "says"), [("", "can be tried here"), ("a GPU", "a GPU")])
def test_a_technique_says_what_it_lacks(lacks: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Or that it can be tried."""
    technique = SimpleNamespace(title="it", mends="all", lacks=lambda device: lacks)
    run("09_speedup_ladder", "techniques", gl=SimpleNamespace(training=SimpleNamespace(techniques=lambda: [technique])), device=None)
    assert capsys.readouterr().out.rstrip().endswith(says)
