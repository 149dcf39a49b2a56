"""What cells hand to gpulab and print of what comes back, with stand-ins: a loop over sizes, two sides of a comparison, one number made."""

from __future__ import annotations

import ast
import builtins
import json
import linecache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from gpulab import kernels, models, units
from gpulab.lessons import content

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
Capsys = pytest.CaptureFixture[str]


def text_of(notebook: str, id: str) -> str:
    """The source of one cell."""
    cells = json.loads((FOLDER / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    (source,) = ("".join(cell["source"]) for cell in cells if cell["id"] == id)
    return source


def run(notebook: str, id: str, **names: Any) -> dict[str, Any]:
    """Run one cell on these names and return what is there afterwards."""
    source, file = text_of(notebook, id), f"<{id}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # a kernel's text is found, as in a notebook
    exec(compile(source, file, "exec"), names)
    return names


def seconds(value: float) -> str:
    """What stands for gpulab's own words for seconds."""
    return f"{value:g} s"


def ratio(value: float) -> str:
    """What stands for gpulab's own words for a ratio."""
    return f"{value:g}x"


def lessons(log: list[Any], **more: Any) -> SimpleNamespace:
    """Lessons that note what is revealed."""
    return SimpleNamespace(reveal=lambda id, value, **_: log.append((id, value)), **more)


@pytest.mark.parametrize(("id", "threads"), [("warps-run", 33), ("banks", 32)])
def test_each_thread_of_one_block_writes_its_number(id: str, threads: int) -> None:
    """33 threads are two warps, of one store each; 32 lanes on one column of a tile of 32 x 32 wait for each other: 32 passes."""
    log: list[Any] = []
    launched: list[Any] = []

    def simulate(*given: Any) -> Any:
        launched.append(given)
        return kernels.simulate(*given)

    gl = SimpleNamespace(kernels=SimpleNamespace(simulate=simulate), lessons=lessons(log))
    run("01_gpu_architecture", id, cuda=kernels.cuda, float32=kernels.float32, np=np, gl=gl)
    ((_, grid, block, out),), ((_, found),) = launched, log
    assert (grid, block, out.tolist()) == (1, threads, list(range(threads)))
    total = found.totals
    wanted = 2 if id == "warps-run" else 32
    assert (total.global_store_requests if id == "warps-run" else total.shared_wavefronts / total.shared_requests) == wanted
    assert not found.findings
    assert found.shared_bytes == (32 * 32 * 4 if id == "banks" else 0)


def test_both_branches_are_launched_alike(capsys: Capsys) -> None:
    """A thread for each of 256 elements, in blocks of two warps; each kernel's counts are printed, and both are compared."""
    log: list[Any] = []

    def simulate(kernel: str, grid: int, block: int, x: np.ndarray, out: np.ndarray) -> SimpleNamespace:
        assert (grid * block, block, x.tolist(), out.tolist()) == (256, 64, [1.0] * 256, [0.0] * 256)
        n = len(kernel)
        return SimpleNamespace(kernel=kernel, totals=SimpleNamespace(executed_warps=n, divergent_branches=n + 1, branches=n + 2))

    gl = SimpleNamespace(kernels=SimpleNamespace(simulate=simulate), lessons=lessons(log))
    run("01_gpu_architecture", "divergence-run", gl=gl, np=np, lanes_apart="a", warps_apart="bb")
    assert (
        capsys.readouterr().out == "a: 1 statements of warps, 2 of 3 tests divergent\nbb: 2 statements of warps, 3 of 4 tests divergent\n"
    )
    assert [(id, [one.kernel for one in pair]) for id, pair in log] == [("01.2", ["a", "bb"])]


def test_a_copy_is_told_for_five_sizes(capsys: Capsys) -> None:
    """From one byte to 64 MiB, among them the 1 KiB and the 64 KiB that the question asks about."""
    log: list[Any] = []
    link = SimpleNamespace(seconds=lambda nbytes: nbytes / 2)
    gl = SimpleNamespace(transfer=SimpleNamespace(link=lambda: link), units=units, lessons=lessons(log))
    run("02_data_transfer", "link", gl=gl, format_seconds=seconds)
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "1 B: 0.5 s", "1.00 KiB: 512 s", "64.0 KiB: 32768 s", "1.00 MiB: 524288 s", "64.0 MiB: 3.35544e+07 s",
    ]  # fmt: skip
    assert log == [("02.3", link)]


def test_a_layer_is_timed_for_five_batches(capsys: Capsys) -> None:
    """Of 4,096 features, the width that the exercise after it asks about; the time of a row is that of the batch over its rows."""
    made: list[dict[str, int]] = []

    def linear(**options: int) -> SimpleNamespace:
        made.append(options)
        return SimpleNamespace(run=None, inputs=lambda device: ())

    m = SimpleNamespace(median_seconds=64.0)
    point = SimpleNamespace(intensity_flops_per_byte=2.0, bound_by="memory")
    gl = SimpleNamespace(workloads=SimpleNamespace(get=lambda name: linear), measure=lambda *_, **__: m)
    roof = SimpleNamespace(place_workload=lambda work, taken: point if taken is m else None)
    run("03_compute_density", "linear", gl=gl, roof=roof, device=None, format_seconds=seconds)
    assert made == [{"n": n, "features": 4096} for n in (1, 4, 16, 64, 256)]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].split() for line in lines] == [["rows", str(n)] for n in (1, 4, 16, 64, 256)]
    assert lines[3].endswith("64 s,      1 s a row,      2 FLOP a byte, bound by memory")


@pytest.mark.parametrize("is_cpu", [True, False])
def test_the_most_that_an_h200_gains(is_cpu: bool, capsys: Capsys) -> None:
    """6 s here, 2 s there and 4 s of copies: 3 and 1; the CPU's roofs are the learner's own, or asked for beside a GPU's."""
    work = SimpleNamespace(label="it", nbytes=8)

    def placed(taken: float) -> SimpleNamespace:
        return SimpleNamespace(place_workload=lambda _: SimpleNamespace(attainable_seconds=taken))

    gl = SimpleNamespace(
        transfer=SimpleNamespace(link=lambda name: SimpleNamespace(seconds=lambda nbytes: nbytes / 2)),
        lessons=SimpleNamespace(five_works=lambda: {"it": work}),
        models=SimpleNamespace(roofline=lambda name: placed(6.0)),
    )
    own = placed(6.0 if is_cpu else 99.0)
    run("03_compute_density", "gains", gl=gl, roof=own, h200=placed(2.0), device=SimpleNamespace(is_cpu=is_cpu), format_ratio=ratio)
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["at", "most,", "H200", "against", "your", "CPU", "data", "there", "with", "copies"]
    assert line.split() == ["it", "3x", "1x"]


def test_what_the_memory_bound_operators_do(capsys: Capsys) -> None:
    """One of four has a quarter of the FLOPs and half of the bytes; under the learner's roofs two are, under a GPU's three or one.

    Of another maker's GPU no product in TF32 is recorded, so there is one number.
    """
    one = SimpleNamespace(flops=1.0, nbytes=4.0)
    bound = {"H200": [one], "mine": [one] * 2, ("far", "float32"): [one] * 3, ("far", "tf32"): [one], ("plain", "float32"): [one] * 2}

    def recorded(device: str, *formats: str) -> SimpleNamespace:
        tops = [SimpleNamespace(name=each) for each in formats]
        return SimpleNamespace(device=device, arithmetic=tops, evidence=SimpleNamespace(badge="RECORDED"))

    far = [recorded("far", "bfloat16", "tf32", "float32"), recorded("plain", "float16", "float32")]

    def memory_bound(roof: Any, name: str = "") -> list[Any]:
        return bound[roof.device, name] if roof in far else bound[roof]

    forward = SimpleNamespace(flops=4.0, nbytes=8.0, operators=[one] * 4, memory_bound=memory_bound)
    log: list[Any] = []
    gl = SimpleNamespace(models=SimpleNamespace(roofline=lambda name: name), lessons=lessons(log, gpu_roofs=lambda: far))
    run("03_compute_density", "reveal-operators", gl=gl, roof="mine", forward=forward)
    assert capsys.readouterr().out.splitlines() == [
        "memory-bound on an H200 (MODELLED): 1 of 4 operators, 25.0% of the FLOPs, 50% of the bytes",
        "memory-bound under your roofs: 2 of 4",
        "memory-bound under the roofs of far (RECORDED): 3 with float32, 1 with tf32",
        "memory-bound under the roofs of plain (RECORDED): 2 with float32",
    ]
    assert log == [("03.4", (forward, "H200"))]


def test_the_kernel_with_a_race_is_the_one_to_mend() -> None:
    """What the notebook runs, statement by statement, is what exercise 04.6 begins with."""
    functions = [
        next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
        for text in (text_of("04_custom_kernels", "race"), content.exercise("04.6").stub)
    ]
    without_words = [[ast.unparse(line) for line in one.body if not isinstance(line, ast.Expr)] for one in functions]
    assert without_words[0] == without_words[1]


def test_one_small_step_is_compared_with_what_was_before() -> None:
    """Trained for a hundred steps, then one more at 1e-4; what was before is compared with what is after, in both formats."""
    import torch

    log: list[Any] = []
    model = torch.nn.Linear(1, 1, bias=False)

    def fit(task: Any, model: Any, device: str, **options: Any) -> None:
        log.append(options)
        with torch.no_grad():
            model.weight.fill_(len(log))

    gl = SimpleNamespace(
        training=SimpleNamespace(fit=fit),
        precision=SimpleNamespace(swallowed_updates=lambda a, b, name: (float(a[0]), float(b[0]), name)),
    )
    names = run("05_mixed_precision", "swallowed", gl=gl, task=SimpleNamespace(make_model=lambda seed: model))
    assert log == [{"steps": 100}, {"steps": 1, "learning_rate": 1e-4}]
    assert (names["in_bfloat16"], names["in_float16"]) == ((1.0, 2.0, "bfloat16"), (1.0, 2.0, "float16"))


def test_each_model_learns_from_the_digits_twice(capsys: Capsys) -> None:
    """19 batches of 64 are the 1,216 digits of the training set, two times, first as they are and then under autocast."""
    seen: list[Any] = []
    task = SimpleNamespace(train=list(range(1216)), make_model=lambda seed: object())
    gl = SimpleNamespace(training=SimpleNamespace(evaluate=lambda model, of: [one for one, *_ in seen].index(model)))
    run("05_mixed_precision", "small-run", gl=gl, task=task, train_small=lambda *given: seen.append(given))
    assert [autocast for *_, autocast in seen] == [False, True]
    assert {tuple(map(tuple, batches)) for _, batches, _ in seen} == {tuple(tuple(range(k, k + 64)) for k in range(0, 1216, 64)) * 2}
    assert capsys.readouterr().out == "float32:  0 \nautocast: 1\n"


def test_weights_are_scaled_to_the_end_of_the_format(capsys: Capsys) -> None:
    """With a rounding that doubles each number the error is 100 %, scaled or not; 448 is the largest number of float8_e4m3fn."""
    import torch

    given: list[Any] = []

    def round_to(x: Any, name: str) -> Any:
        given.append((float(x.abs().max()), name))
        return (2 * x).numpy()

    generator = torch.Generator().manual_seed(0)
    names = run(
        "05_mixed_precision", "fp8", gl=SimpleNamespace(precision=SimpleNamespace(round_to=round_to)), generator=generator, torch=torch
    )
    largest = float(names["weights"].abs().max())
    thousandths = 1e-3 * torch.randn(10_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert largest == pytest.approx(float(thousandths.abs().max())), "normal numbers of a thousandth"
    assert given == [(largest, "float8_e4m3fn"), (pytest.approx(448.0), "float8_e4m3fn")]
    assert capsys.readouterr().out.splitlines() == [
        "as it is         0.0% become zero, relative error 100.0%",
        f"{f'times {448 / largest:,.0f}':14}   0.0% become zero, relative error 100.0%",
    ]


def test_the_parts_of_a_memory_are_told_from_a_mebibyte_on(capsys: Capsys) -> None:
    """Three settings of one model, each with its peak and its larger parts."""
    mib = 2**20

    def predict(model: Any, tokens: Any, targets: Any, precision: str, device: str) -> SimpleNamespace:
        assert targets is tokens
        return SimpleNamespace(peak_bytes=5 * mib, peak_by_category={"weights": 4 * mib, "small": mib, "more": mib + 1})

    import torch

    gl = SimpleNamespace(networks=SimpleNamespace(transformer=lambda **_: None), memory=SimpleNamespace(predict=predict))
    run("05_mixed_precision", "memory", gl=gl, torch=torch)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["float32", "bfloat16", "pure-bfloat16"]
    assert {line[14:] for line in lines} == {"      5 MiB: weights 4, more 1"}


def test_five_precisions_are_compared_over_seeds(capsys: Capsys) -> None:
    """Three seeds each, of 40 steps; the largest peak of a precision's runs, where one is known, and how each run ended."""
    runs = [SimpleNamespace(peak_bytes=peak, ended=ended) for peak, ended in ((None, "diverged"), (7, "finished"))]
    over_seeds = SimpleNamespace(
        over_seeds=lambda task, **named: {(3, 40): SimpleNamespace(runs=runs, accuracy="90 %")}[named["seeds"], named["steps"]]
    )
    run("05_mixed_precision", "compare", gl=SimpleNamespace(training=over_seeds), task=None, format_bytes=lambda n: f"{n} B")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["float32", "bfloat16", "float16", "pure-bfloat16", "pure-float16"]
    assert {line[15:] for line in lines} == {"90 %, peak 7 B, diverged, finished"}


def test_the_waits_are_counted_over_eight_batches_of_64() -> None:
    """The first 512 digits, each once."""
    import torch

    class Items:
        def __getitem__(self, which: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tensor(which), torch.tensor(which)

    given: list[Any] = []
    model = torch.nn.Linear(1, 1)
    task = SimpleNamespace(make_model=lambda: model, train=Items())
    training = SimpleNamespace(task=lambda name: task, hidden_waits=lambda *parts, device: given.extend(parts))
    library = SimpleNamespace(optim=SimpleNamespace(Adam=lambda parameters: "the optimizer"))
    run("06_training_pipeline", "c33", gl=SimpleNamespace(training=training), torch=library, device="cpu", epoch="the epoch")
    epoch, of, optimizer, batches = given
    assert (epoch, of, optimizer) == ("the epoch", model, "the optimizer")
    assert [len(inputs) for inputs, _ in batches] == [64] * 8
    assert torch.cat([inputs for inputs, _ in batches]).tolist() == list(range(512))


def test_more_workers_are_told_one_by_one(capsys: Capsys) -> None:
    """None, one, two and four, as many steps each."""
    made: list[dict[str, int]] = []

    def pipeline(**options: int) -> Any:
        made.append(options)
        return SimpleNamespace(loading_seconds=options["workers"])

    run("06_training_pipeline", "c18", gl=SimpleNamespace(training=SimpleNamespace(pipeline=pipeline)), format_seconds=seconds)
    assert [one["workers"] for one in made] == [0, 1, 2, 4]
    assert len({one["steps"] for one in made}) == 1
    assert [line.partition("| ")[2] for line in capsys.readouterr().out.splitlines()] == [
        f"loading a batch takes a worker {n} s" for n in (0, 1, 2, 4)
    ]


def test_the_quickest_step_of_each_optimizer(capsys: Capsys) -> None:
    """Of the spans of the optimizer alone; the profile that was made before stands beside the fused one."""

    def profile(*took: float) -> SimpleNamespace:
        spans = [SimpleNamespace(name="optimizer", seconds=s) for s in took] + [SimpleNamespace(name="forward", seconds=0.5)]
        return SimpleNamespace(spans=spans, operators_per_step=float(len(took)))

    given: list[Any] = []
    gl = SimpleNamespace(training=SimpleNamespace(profile=lambda step, *args, device: (given.extend(args), profile(3.0, 2.0))[1]))
    library = SimpleNamespace(optim=SimpleNamespace(Adam=lambda parameters, **named: (parameters, named)))
    model = SimpleNamespace(parameters=lambda: "its own")
    names = {"seen": profile(6.0, 4.0, 5.0), "model": model, "training_step": None, "device": "cpu", "torch": library}
    run("06_training_pipeline", "c46", gl=gl, format_seconds=seconds, **names)
    assert given == [("its own", {"fused": True})]
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "not fused 3 operators a step, 4 s of the host in the optimizer", "fused 2 operators a step, 2 s of the host in the optimizer",
    ]  # fmt: skip


def test_four_ways_to_save_memory(capsys: Capsys) -> None:
    """32 windows as they are, a fourth of them, with checkpointing, and in half precision: each for its own part of windows and targets."""
    log: list[Any] = []

    def predict(model: Any, windows: Any, targets: Any, loss: Any, device: str, **option: Any) -> SimpleNamespace:
        log.append((len(windows), len(targets), option))
        return SimpleNamespace(peak_bytes=len(log), evidence=SimpleNamespace(badge="MODELLED"))

    names = {"transformer": None, "windows": [0] * 40, "following": [1] * 40, "loss_of": None}
    run(
        "06_training_pipeline", "c73", gl=SimpleNamespace(memory=SimpleNamespace(predict=predict)), format_bytes=lambda n: f"{n} B", **names
    )
    assert log == [(32, 32, {}), (8, 8, {}), (32, 32, {"checkpoint": True}), (32, 32, {"precision": "bfloat16"})]
    assert [line.rsplit(None, 3)[0].strip() for line in capsys.readouterr().out.splitlines()] == [
        "as it is", "accumulate=4", "checkpoint", "bfloat16",
    ]  # fmt: skip


class Told(MagicMock):
    """Stands for whatever a cell calls, and keeps the calls."""

    def __format__(self, form: str) -> str:
        return "told"


def calls_of(notebook: str, id: str) -> list[tuple[str, dict[Any, Any]]]:
    """What a cell calls, with what by position and by name: all that it does not make itself is told of."""
    text, everything = text_of(notebook, id), Told()
    everything.task.train.__getitem__.return_value = "inputs", "targets"
    read = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)} - set(vars(builtins))
    exec(compile(text, f"<{id}>", "exec"), {name: getattr(everything, name) for name in read})
    return [(name, {**dict(enumerate(given)), **named}) for name, given, named in everything.mock_calls]


def question(notebook: str, id: str) -> str:
    """What a prediction asks."""
    cells = json.loads((FOLDER / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code" and f'predict("{id}"' in text:
            call = next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
            return str(ast.literal_eval(call.args[1]))
    raise KeyError(id)


# Notebook, question, its words, the cell that answers it, and what that cell has to do to be an answer.
ASKED: list[tuple[str, str, tuple[str, ...], str, list[tuple[str, dict[Any, Any]]]]] = [
    ("04_custom_kernels", "04.16", ("256 threads with 127 registers",), "occupancy", [("gl.models.occupancy", {0: 256, 1: 127})]),
    ("05_mixed_precision", "05.1", ("everything in float16", "30 steps"), "naive",
     [("gl.training.fit", {"steps": 30}), ("gl.training.fit", {"steps": 30, "precision": "pure-float16", "loss_scale": 1})]),
    ("05_mixed_precision", "05.5", ("naive float16 run", "times a scale"), "scaled-naive",
     [("gl.training.fit", {"steps": 30, "precision": "pure-float16", "loss_scale": 1})]),
    ("05_mixed_precision", "05.6", ("After 400 steps", "float16"), "gradients",
     [("gl.training.fit", {"steps": 400}), ("gl.precision.gradient_window", {1: "float16"})]),
    ("06_training_pipeline", "06.3", ("Two workers instead of none",), "c5", [("gl.training.pipeline", {"workers": 0})]),
    ("06_training_pipeline", "06.3", ("Two workers instead of none",), "c15", [("gl.training.pipeline", {"workers": 2})]),
    ("06_training_pipeline", "06.11", ("With checkpointing",), "c70", [("gl.training.race", {1: {}, 2: {"checkpoint": True}})]),
    ("07_lighter_models", "07.1", ("90 % of the weights are zero",), "prune", [("gl.compression.prune", {1: 0.9})]),
    ("07_lighter_models", "07.4", ("Half of the channels",), "channels", [("gl.compression.prune", {1: 0.5, "structured": True})]),
    ("07_lighter_models", "07.9", ("64 rows",), "integers", [("torch.randn", {0: 64})]),
    ("08_parallelism", "08.7", ("four ranks",), "ranks", [("gl.parallel.cluster", {"n": 4})]),
    ("08_parallelism", "08.6", ("16 ranks instead of one", "its 16 digits"), "batch",
     [("gl.parallel.global_batch", {"ranks": (1, 16), "batch": 16})]),
    ("09_speedup_ladder", "09.8", ("A batch of 128",), "huge", [("gl.training.Technique", {3: {"batch_size": 128}})]),
    ("10_rosetta", "10.3", ("4,096 x 4,096",), "columns", [("gl.lessons.column_loop", {0: 4096})]),
    ("10_rosetta", "10.5", ("64 MiB",), "feeding", [("gl.lessons.feeding", {0: 64 * 2**20})]),
    ("10_rosetta", "10.7", ("32, 32, 32, 17, 32, 17, 64 and 1 rows",), "retraces",
     [("gl.lessons.retraces", {0: [32, 32, 32, 17, 32, 17, 64, 1]})]),
]  # fmt: skip


@pytest.mark.parametrize(("notebook", "id", "words", "cell", "wanted"), ASKED, ids=[f"{row[1]}-{row[3]}" for row in ASKED])
def test_a_cell_does_what_its_question_says(notebook: str, id: str, words: tuple[str, ...], cell: str, wanted: list[Any]) -> None:
    """The numbers of the question are those of the cell below it: else the answer would be another question's."""
    assert all(each in question(notebook, id) for each in words)
    made = calls_of(notebook, cell)
    for name, given in wanted:
        assert any(called == name and {key: mine.get(key) for key in given} == given for called, mine in made), name


def test_a_ring_of_1024_ranks_and_a_tenth_that_stays(capsys: Capsys) -> None:
    """By hand: each sends 2 x 1023 / 1024 of the data; of 100 ms 10 stay, so 16 ranks take 10 + 90 / 16 ms and are 6.4 times as fast."""
    log: list[Any] = []
    gl = SimpleNamespace(models=models, lessons=lessons(log))
    run("08_parallelism", "reveal-sent", gl=gl)
    assert log == [("08.2", pytest.approx(2 * 1023 / 1024))]
    (point,) = (p for p in run("08_parallelism", "amdahl", gl=gl)["law"].points if p.ranks == 16)
    assert (point.seconds, point.speedup) == (pytest.approx(0.010 + 0.090 / 16), pytest.approx(6.4))
    assert all(words in question("08_parallelism", "08.11") for words in ("a step of 100 ms, 10 ms", "16 ranks"))
    sweep = SimpleNamespace(message=lambda: (1.0, 1e6))
    run("08_parallelism", "ways", gl=gl, sweep=sweep)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[1]) for line in lines] == [
        (way, size) for way in ("direct", "tree", "ring") for size in ("100,000,000", "1,000")
    ]
    # 1 s a message and 1 MB/s: 6 and 2,046 messages of a 4th and a 1,024th of 1 kB around a ring, 4 and 20 whole ones in a tree.
    assert [[line[3], line[6]] for line in lines if line[1] == "1,000"][1:] == [["4.0040", "20.0200"], ["6.0015", "2046.0020"]]


def test_three_points_in_a_row_waste_two_thirds(capsys: Capsys) -> None:
    """32 lanes that read every third float use 128 of 12 x 32 bytes."""
    log: list[Any] = []
    run("04_custom_kernels", "reveal-points", gl=SimpleNamespace(models=models, lessons=lessons(log)))
    assert capsys.readouterr().out == "128 of 384 bytes used\n"
    assert [(id, points.sectors) for id, points in log] == [("04.17", 12)]


def test_one_rank_alone_learns_as_by_hand() -> None:
    """Twenty batches of 64 and plain descent at 0.1; with all of each batch for its part, the ranks' function gives the same losses."""
    import torch
    from torch.nn.functional import cross_entropy

    class Train:
        def __getitem__(self, chosen: list[int]) -> Any:
            numbers = torch.tensor(chosen, dtype=torch.float32)
            return torch.stack([torch.sin(numbers), torch.cos(numbers)], 1), (numbers % 3).long()

    def make_model(seed: int) -> Any:
        torch.manual_seed(seed)
        return torch.nn.Linear(2, 3)

    job = SimpleNamespace(make_model=make_model, train=Train(), loss=lambda model, batch: cross_entropy(model(batch[0]), batch[1]))
    parts = [list(range(64 * step, 64 * step + 64)) for step in range(20)]
    model, losses = make_model(0), []
    for part in parts:
        loss = job.loss(model, job.train[part])
        losses.append(loss.item())
        with torch.no_grad():
            for p, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
                p.sub_(0.1 * gradient)
    gl = SimpleNamespace(training=SimpleNamespace(task=lambda name: job))
    assert run("08_parallelism", "alone", gl=gl, torch=torch)["alone"] == pytest.approx(losses, rel=1e-5)
    names = run("08_parallelism", "data-parallel", gl=gl, torch=torch)
    averaged: list[bool] = []
    names["my_part"] = parts.__getitem__
    names["average_gradients"] = lambda model: averaged.append(all(p.grad is not None for p in model.parameters()))
    assert names["data_parallel"]() == pytest.approx(losses, rel=1e-5)
    assert averaged == [True] * 20, "once in each step, behind the backward pass"


@pytest.mark.parametrize(("room", "outcome"), [(4000, "it fits"), (1000, "out of memory again")])
def test_which_batches_are_tried_in_too_little_room(room: int, outcome: str, capsys: Capsys) -> None:
    """8,192, then 1,024 inside the except block and behind it, as the question says; what fits is told."""
    tried: list[int] = []

    def train_step(batch: int) -> None:
        tried.append(batch)
        if batch > room:
            raise MemoryError

    names: dict[str, Any] = {
        "torch": SimpleNamespace(OutOfMemoryError=MemoryError), "train_step": train_step, "small": MagicMock(live_bytes=7),
        "format_bytes": lambda n: f"{n} B",
    }  # fmt: skip
    assert all(words in question("06_training_pipeline", "06.13") for words in ("batch of 8192", "a batch of 1024"))
    assert run("06_training_pipeline", "c81", **names)["outcome"] == outcome
    assert tried == [8192, 1024]
    run("06_training_pipeline", "c78", **names)
    assert "kept" not in run("06_training_pipeline", "c86", **names)
    assert tried == [8192, 1024, 8192, 8192]
    if room == 4000:
        capsys.readouterr()
        run("06_training_pipeline", "c84", **names)
        assert tried[4:] == [8192, 1024]
        assert capsys.readouterr().out == "held behind the except block: 7 B\na batch of 1024 fits\n"


def test_fewer_bits_with_a_scale_for_each_channel_or_for_all(capsys: Capsys) -> None:
    """Four rows; the columns are the two ways to scale, in the order of the heading, in percent."""
    made = {(kind, bits): bits / 10 - (kind == "per-tensor") / 20 for kind in ("per-channel", "per-tensor") for bits in (8, 4, 3, 2)}
    gl = SimpleNamespace(
        compression=SimpleNamespace(quantize=lambda model, kind, bits: (kind, bits)),
        training=SimpleNamespace(evaluate=lambda each, job: SimpleNamespace(ratio=made[each], interval=(0.0, made[each] + 0.1))),
    )
    run("07_lighter_models", "bits", gl=gl, start=None, hard=None)
    head, *rows = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines())
    assert head == "bits per channel per tensor"
    assert rows == [
        "8 80.0 % [0.0, 90.0] 75.0 % [0.0, 85.0]", "4 40.0 % [0.0, 50.0] 35.0 % [0.0, 45.0]",
        "3 30.0 % [0.0, 40.0] 25.0 % [0.0, 35.0]", "2 20.0 % [0.0, 30.0] 15.0 % [0.0, 25.0]",
    ]  # fmt: skip


def test_the_codes_of_the_narrowest_channel(capsys: Capsys) -> None:
    """Largest weights of 2 and 1.98: with one scale the second channel ends at 127 x 0.99 = 126; what has no weights is left out."""
    import torch

    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, -2.0], [1.98, 0.25]]))
    gl = SimpleNamespace(compression=SimpleNamespace(finish=lambda model: torch.nn.Sequential(layer, torch.nn.ReLU())))
    run("07_lighter_models", "ranges", gl=gl, model=None, torch=torch)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("1.980 to 2.000; with one scale the narrowest channel uses codes up to 126")


def test_both_ways_to_prune_have_the_same_zeros_and_the_same_training() -> None:
    """At the end four of five weights are zero, after ten epochs: in one go, or half of the weights and half of the epochs first."""
    made = calls_of("07_lighter_models", "gradual")
    zeros = [given[1] for name, given in made if name == "gl.compression.prune"]
    epochs = [given.get("epochs") for name, given in made if name == "gl.training.fit"]
    assert (zeros, epochs) == ([0.8, 0.5, 0.8], [None, 10, 5, 5])


def test_what_still_counts_at_the_end_comes_first(capsys: Capsys) -> None:
    """By what the rest loses without it; then what each learned, and why some were left out."""

    def gain(ratio: float, verdict: str) -> Any:
        return type("Gain", (SimpleNamespace,), {"__str__": lambda self: f"{self.ratio}x"})(ratio=ratio, verdict=verdict)

    def rung(title: str, ratio: float, same: bool) -> SimpleNamespace:
        learned = type("Learned", (SimpleNamespace,), {"__str__": lambda self: f"learned {title}"})(same_losses=same)
        return SimpleNamespace(title=title, alone=gain(9.0, "faster"), removed=gain(ratio, "slower"), learned=learned)

    left = [SimpleNamespace(title="c", reason="None here.", alone=None), SimpleNamespace(title="d", reason="Nor here.", alone="4x")]
    ladder = SimpleNamespace(rungs=[rung("a", 1.5, False), rung("b", 2.5, True)], left_out=left, start_accuracy=SimpleNamespace(mean=0.905))
    for cell in ("still", "accuracy", "left-out"):
        run("09_speedup_ladder", cell, ladder=ladder)
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "b alone faster at the end 2.5x slower", "a alone faster at the end 1.5x slower",
        "the script 90.5 %", "a learned a", "b learned b (same losses)",
        "c None here.", "d Nor here. Alone: 4x.",
    ]  # fmt: skip
