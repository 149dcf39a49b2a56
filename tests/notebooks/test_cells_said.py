"""What the words around a cell say that it does: the numbers they name, and the lines and figures that the reader is sent to look at."""

from __future__ import annotations

import ast
import builtins
import contextlib
import json
import linecache
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import gpulab
from gpulab import kernels

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
Capsys = pytest.CaptureFixture[str]
Log = list[tuple[str, tuple[Any, ...], dict[str, Any]]]
# How far the words that say what a cell does may be: in a question or its text before it, or in what explains it behind it.
BEFORE, AFTER = 6, 3


class Stand:
    """Stands for whatever a cell reads: what it is called with is noted, and it counts as two in a loop."""

    def __init__(self, name: str, log: Log) -> None:
        self._name, self._log = name, log

    def __getattr__(self, name: str) -> Stand:
        if name.startswith("__"):
            raise AttributeError(name)
        return Stand(f"{self._name}.{name}", self._log)

    def __call__(self, *given: Any, **named: Any) -> Stand:
        """Note the call; what comes back stands for its result."""
        self._log.append((self._name, given, named))
        return Stand(f"{self._name}()", self._log)

    def __getitem__(self, key: Any) -> Stand:
        self._log.append((f"{self._name}[]", (key,), {}))
        return Stand(f"{self._name}[{key!r}]", self._log)

    def __iter__(self) -> Iterator[Stand]:
        return iter([self[0], self[1]])

    def __len__(self) -> int:
        return 2

    def __enter__(self) -> Stand:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __repr__(self) -> str:
        return self._name

    def __format__(self, form: str) -> str:
        return self._name

    def __eq__(self, other: object) -> bool:
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(self._name)

    def __gt__(self, other: object) -> bool:
        return True

    def _with(self, *_: object) -> Stand:
        return Stand(f"of {self._name}", self._log)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __matmul__ = _with


def cells(notebook: str) -> list[dict[str, Any]]:
    """The cells of a notebook, each with its text as one string."""
    found = json.loads((FOLDER / f"{notebook}.ipynb").read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": re.sub(r"^%.*$", "", "".join(cell["source"]), flags=re.MULTILINE)} for cell in found]


def text_of(notebook: str, id: str) -> str:
    """The source of one cell, without magics."""
    (source,) = (cell["source"] for cell in cells(notebook) if cell["id"] == id)
    return str(source)


def words_near(notebook: str, id: str) -> str:
    """The prose and the questions around a cell, on one line."""
    all_cells = cells(notebook)
    (at,) = (k for k, cell in enumerate(all_cells) if cell["id"] == id)
    near = all_cells[max(at - BEFORE, 0) : at + 1 + AFTER]
    parts = [cell["source"] for cell in near if cell["cell_type"] == "markdown"]
    for cell in near:
        if cell["cell_type"] == "code" and "predict(" in cell["source"]:
            strings = [node.value for node in ast.walk(ast.parse(cell["source"])) if isinstance(node, ast.Constant)]
            parts.append(" ".join(value for value in strings if isinstance(value, str)))
    return " ".join(" ".join(parts).split())


def perform(notebook: str, id: str, **names: Any) -> tuple[Log, dict[str, Any]]:
    """Run a cell with stand-ins for whatever is not given, imports too; return what it called and its names."""
    text, log = text_of(notebook, id), list[Any]()

    def imported(name: str, into: Any = None, local: Any = None, some: Any = (), level: int = 0) -> Any:
        return Stand(name if some else name.partition(".")[0], log)

    tree = ast.parse(text)
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)} - set(vars(builtins))
    page = {name: Stand(name, log) for name in read} | names | {"__builtins__": {**vars(builtins), "__import__": imported}}
    exec(compile(text, f"<{id}>", "exec"), page)
    return log, page


def run(notebook: str, id: str, **names: Any) -> dict[str, Any]:
    """Run one cell on these names alone and return what is there afterwards."""
    text, file = text_of(notebook, id), f"<{id}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)  # a kernel's text is found, as in a notebook
    exec(compile(text, file, "exec"), names)
    return names


class Call(NamedTuple):
    """A call that is looked for: some of what it is given, by place and by name; ... stands for anything."""

    name: str
    given: tuple[Any, ...]
    named: dict[str, Any]

    def is_one(self, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Whether a call is such a one."""
        fits = len(given) >= len(self.given) and all(want in (..., have) for want, have in zip(self.given, given, strict=False))
        return name == self.name and fits and all(named.get(key) == want for key, want in self.named.items())


def call(name: str, *given: Any, **named: Any) -> Call:
    """A call that is looked for; a name of the page is written as a string."""
    return Call(name, given, named)


class Said(NamedTuple):
    """A cell, words that must stand near it, the calls that they mean, in this order, and how the printed lines begin."""

    notebook: str
    cell: str
    words: tuple[str, ...]
    calls: tuple[Call, ...] = ()
    lines: tuple[str, ...] | None = None


_MIB = 2**20
SAID = [
    Said("00_start_here", "root", ("the square roots of 16 million numbers",), (
        call("np.random.default_rng().random", 16_000_000), call("gl.measure", "np.sqrt", device="cpu"))),
    Said("00_start_here", "first", ("A Fourier transform of 1024 numbers",), (
        call("gl.workloads.get", "fft"), call("gl.workloads.get()", n=1024))),
    Said("01_gpu_architecture", "microscope", ("Look at it lane by lane",), (
        call("np.zeros", 256), call("gl.widgets.SimtMicroscope", "lanes_apart", 4, 64))),
    Said("01_gpu_architecture", "chains", ("One core follows 16 chains", "along one chain"), (
        call("gl.hierarchy.parallel", [1, 2, 4, 8, 16]), call("gl.figures.parallel_chains", "gl.hierarchy.parallel()"))),
    Said("01_gpu_architecture", "curve", ("The curve is what your program gets",), (
        call("gl.lessons.memory_curve"), call("gl.figures.latency", "gl.lessons.memory_curve()"))),
    Said("01_gpu_architecture", "bandwidth", ("one core reads the same working sets",), (
        call("gl.hierarchy.bandwidth"), call("gl.figures.bandwidth", "gl.hierarchy.bandwidth()"))),
    Said("01_gpu_architecture", "gpu-bandwidth", ("how far its curve lies above yours",), (
        call("gl.figures.bandwidth", "stream", beside="gl.lessons.gpu_streams()"),)),
    Said("01_gpu_architecture", "under-way", ("both curves of both machines",), (
        call("gl.lessons.under_way", "curve", "stream", "gpus", "gpu_streams"),)),
    Said("01_gpu_architecture", "explorer", ("Move the controls and watch which resource becomes the limiter",), (
        call("gl.widgets.OccupancyExplorer", threads_per_block=256, registers_per_thread=64, compute_capability="9.0"),)),
    Said("01_gpu_architecture", "spill", ("first for blocks of up to 256 threads, then 1024", "Compiled for compute capability 9.0"), (
        call("source.replace", "THREADS", "256"), call("gl.kernels.compile_cuda", arch="sm_90"),
        call("source.replace", "THREADS", "1024")), ("256 threads:", "1024 threads:")),
    Said("02_data_transfer", "one-step", ("65,536 numbers are little work",), (
        call("np.linspace", 0.1, 0.9, 65_536), call("gl.lessons.accelerator().reset"))),
    Said("02_data_transfer", "bill", ("Run the loop on both", "what the copies take of the accelerator's bill"), (
        call("gl.measure"), call("gpu.reset"), call("loop", "gpu", "a"), call("gpu.report")), ("on the CPU:",)),
    Said("02_data_transfer", "sweep", ("a measurement on your machine",), (
        call("gl.transfer.sweep", sizes=[4**k * 1024 for k in range(9)]), call("gl.figures.sweep", "gl.transfer.sweep()"))),
    Said("02_data_transfer", "fit", ("the line that fits those from pinned memory best",), (
        call("link.sweep().fit", "to_device", "pinned"),
        call("gl.figures.sweep", "link.sweep()", "link.sweep().fit()", beside="gl.lessons.recorded_sweeps()"))),
    Said("02_data_transfer", "pinned", ("64 MiB to the GPU",), (call("gl.lessons.pageable_against_pinned", 64 * _MIB),)),
    Said("02_data_transfer", "stale", ("starts a copy of 256 MiB", "looks at the buffer at once"), (
        call("gl.transfer.stale_read", 256 * _MIB),), ("old numbers when read at once:", "old numbers after waiting:")),
    Said("02_data_transfer", "overlap", ("the first chunk travels alone",), (
        call("gl.transfer.overlap", 64 * _MIB, chunks=4, link="pcie4"), call("gl.figures.overlap", "gl.transfer.overlap()"))),
    Said("02_data_transfer", "overlap-live", ("That was the model. Now for real",), (call("gl.transfer.overlap", 64 * _MIB, chunks=4),)),
    # Four layers of 1024 x 1024 numbers with their biases, of 4 bytes: 4 x 1024 x 1025 x 4 bytes = 16.02 MiB.
    Said("02_data_transfer", "trace", ("A network of about four million numbers takes 16 MiB", "with Adam, on a batch of 256"), (
        call("gl.networks.mlp", inputs=1024, hidden=1024, depth=4), call("torch.randn", 256, 1024),
        call("gl.memory.predict", optimizer="adam"), call("gl.memory.trace", optimizer="adam"),
        call("gl.figures.memory_timeline", "gl.memory.trace()")), ("predicted:", "traced:")),
    Said("03_compute_density", "setup", ("Everything is measured live on your GPU, or on your CPU",), (), ("This notebook measures on:",)),
    Said("03_compute_density", "measure-same", ("How many times as long as the product does the sum take?",), (), ("gl.measure()",) * 2),
    Said("03_compute_density", "gpu-library", ("The same functions on a recorded GPU",), (), (
        "recorded GPUs: 2", *("gl.lessons.recorded_under_roof()[0].points",) * 2, "gl.lessons.recorded_under_roof()[0].evidence.sentence",
        *("gl.lessons.recorded_under_roof()[1].points",) * 2, "gl.lessons.recorded_under_roof()[1].evidence.sentence")),
    Said("03_compute_density", "transformer", ("A transformer's forward pass", "a small transformer"), (
        call("gl.networks.transformer"), call("gl.networks.transformer().requires_grad_", False), call("gl.memory.traffic"))),
    Said("03_compute_density", "generated", ("`gl.kernels.generated` shows it",), (call("gl.kernels.generated", "torch.compile()", "x"),),
         ("gl.kernels.generated()",)),
    Said("03_compute_density", "gain", ("Now the race",), (call("gl.lessons.fusion_gain", "smooth", "fused", "x"),)),
    Said("04_custom_kernels", "formula", ("In NumPy it is one line",), (
        call("np.random.default_rng().standard_normal", 2**22), call("gl.measure", device="cpu"))),
    Said("04_custom_kernels", "kernel", ("1,000 elements in blocks of 128 need 8 blocks",), (
        call("x[]", slice(1000)), call("np.zeros", 1000), call("gl.kernels.simulate", ..., 8, 128)), ("as NumPy has it:",)),
    Said("04_custom_kernels", "grid-stride", ("each thread goes on by the width of the grid",), (
        call("gl.kernels.simulate", ..., 2, 128, "few", "y"),)),
    Said("04_custom_kernels", "bounds", ("Here is a kernel with a guard, and it is wrong all the same",), (
        call("few[]", slice(100)), call("np.zeros", 100), call("gl.kernels.simulate", ..., 1, 128))),
    Said("04_custom_kernels", "microscope", ("in blocks of 128 need 8 blocks", "the store in block 7 and warp 3, the last one"), (
        call("gl.widgets.SimtMicroscope", "gate_kernel", 8, 128, "few", "y", block_number=7, warp=3),)),
    Said("04_custom_kernels", "launch", ("1,000 elements in blocks of 128 need 8 blocks", "The same call with `launch`"), (
        call("gl.kernels.launch", "gate_kernel", 8, 128, "few", "y"),), ("run on the GPU:",)),
    # Its two tiles are of 8 x 128 numbers of 4 bytes, as the source above it says.
    Said("04_custom_kernels", "occupancy", ("Blocks of 256 threads with 127 registers each", "65,536 on compute capability 9.0"), (
        call("gl.models.occupancy", 256, 127, 2 * 8 * 128 * 4, compute_capability="9.0"),)),
    Said("04_custom_kernels", "spills", ("four blocks for each SM",), (
        call("vectorised.replace", "__launch_bounds__(256)", "__launch_bounds__(256, 4)"),
        call("gl.lessons.compiled", "vectorised.replace()"))),
    Said("05_mixed_precision", "setup", ("all of them train there, on one thread",), (call("torch.set_num_threads", 1),)),
    Said("05_mixed_precision", "naive", ("everything in float16, with Adam, for 30 steps",), (
        call("gl.training.fit", "task", steps=30), call("gl.training.fit", "task", steps=30, precision="pure-float16", loss_scale=1),
        call("gl.training.fit().losses[]", slice(None, None, 10))), ("float32, every tenth loss:", "float16, every loss:")),
    Said("05_mixed_precision", "scaled-naive", ("The naive float16 run again, with the loss times a scale",), tuple(
        call("gl.training.fit", "task", steps=30, precision="pure-float16", loss_scale=2**k) for k in (0, 8, 16)),
         ("loss x 1:", "loss x 256:", "loss x 65536:")),
    Said("05_mixed_precision", "tf32", ("By default it is off for matrix products and on for convolutions",), (
        call("gl.precision.tf32", matmul=True, convolution=True), call("gl.precision.tf32_switches")), ("inside:",)),
    Said("05_mixed_precision", "cpu-times", ("here are three formats on one core of your CPU",), (), ("gl.measure()",) * 3),
    Said("05_mixed_precision", "instrument", ("flip the last bit of the mantissa", "compare with bfloat16"), (
        call("gl.widgets.NumberFormats", value=0.1, format="float16", beside="bfloat16"),)),
    Said("05_mixed_precision", "ones", ("Start at 0 and add 1 ten thousand times, in float16",), (
        call("gl.precision.sum_error", [1.0] * 10_000, formats=["float16", "bfloat16"]),)),
    Said("05_mixed_precision", "rescued", ("Any seed will do", "Autocast to float16"), (
        call("gl.training.fit", steps=30, precision="float16", seed=0), call("gl.training.fit", steps=30, precision="float16", seed=1)),
         ("seed 0:", "seed 1:")),
    Said("05_mixed_precision", "window-figure", ("Here are all of them, as a histogram",), (call("gl.figures.gradient_window", "window"),),
         ("window.explanation",)),
    Said("05_mixed_precision", "scaling", ("Move the scale below", "every gradient is multiplied by 2^k"), (
        call("gl.widgets.LossScaling", format="float16", scale=1.0), call("gl.widgets.LossScaling().load", "gradients"))),
    Said("05_mixed_precision", "scaler", ('`loss_scale="dynamic"`', "a scale that is fixed and far too high"), (
        call("gl.training.fit", precision="float16", steps=30, loss_scale="dynamic"),
        call("gl.training.fit", precision="float16", steps=30, loss_scale=2**24)), ("scale dynamic:", "scale 16777216:")),
    Said("06_training_pipeline", "c10", ("every batch loads exactly as long as it just did",), (), ("p", "gl.training.replay()")),
    Said("06_training_pipeline", "c16", ("Two workers instead of none",), (), ("p", "two")),
    Said("06_training_pipeline", "c36", ("from pinned memory", "once with a host that goes on"), (
        call("gl.training.replay", "p", pinned=True), call("gl.training.replay", "p", pinned=True, read_loss=False),
        call("gl.figures.pipeline")), ("reads the loss:", "goes on:")),
    Said("06_training_pipeline", "c61", ("one with 8 images in a batch, one with 128",), (
        call("gl.training.race", "digits-cnn", {"batch_size": 8}, {"batch_size": 128}),)),
    Said("06_training_pipeline", "c64", ("learns from 32 windows of text at once",), (
        call("gl.training.task().train[]", list(range(32))), call("gl.memory.predict")), ("gl.memory.predict()",)),
    Said("06_training_pipeline", "c65", ("`gl.memory.trace` takes the step",), (
        call("gl.memory.trace", "transformer", "windows", optimizer="adam"), call("gl.figures.memory_timeline", "gl.memory.trace()")),
         ("predicted / measured:",)),
    Said("07_lighter_models", "train", ("Train the small convolutional network",), (
        call("gl.training.fit", "gl.training.task()", model="gl.training.task().make_model()"),)),
    Said("07_lighter_models", "prune", ("the 90 % that are smallest", "some more training of what is left"), (
        call("gl.compression.prune", "model", 0.9), call("gl.training.evaluate", "gl.compression.prune()", "job"),
        call("gl.training.fit", "job", model="gl.compression.prune()")),
         ("zeros:", "right after pruning:", "gl.training.evaluate()", "after fine-tuning:", "gl.training.fit().accuracy")),
    Said("07_lighter_models", "channels", ("Half of the channels of every convolution shall go",), (
        call("gl.compression.prune", "model", 0.5, structured=True), call("gl.training.fit", "job", model="gl.compression.prune()"),
        call("gl.compression.weigh"))),
    Said("07_lighter_models", "gradual", ("in one go with it, and in two steps", "without any training afterwards"), (), (
        "as trained", "not tuned", "tuned at the end", "in two steps")),
    Said("07_lighter_models", "changed", ("how many of the 500 test digits",), (
        call("gl.compression.quantize", "model.cpu()"), call("gl.lessons.changed_answers", "model", "gl.compression.quantize()")),
         ("gl.lessons.changed_answers() of 500 answers changed",)),
    Said("07_lighter_models", "aware", ("Try it at 2 bits", "rounds the weights in every forward pass while the network learns"), (
        call("gl.compression.quantize_aware", "start", bits=2), call("gl.training.fit", "hard", model="gl.compression.quantize_aware()"),
        call("gl.compression.quantize", "start", bits=2), call("gl.compression.finish", "gl.compression.quantize_aware()")),
         ("2 bits, rounded at the end", "2 bits, trained with rounding")),
    Said("07_lighter_models", "calibration", ("One is calibrated on 256 training images", "at a tenth of their brightness"), (
        call("job.train[]", slice(256)), call("gl.compression.quantize", "model.cpu()", activations="static"),
        call("gl.compression.quantize", "model.cpu()", activations="static"), call("gl.training.evaluate", ..., "job"),
        call("gl.training.evaluate", ..., "job")),
         ("calibrated on training images:", "gl.training.evaluate()", "calibrated on dim images:", "gl.training.evaluate()")),
    Said("07_lighter_models", "integers", ("Which is the fastest on your CPU, for 64 rows?", "float32; 8-bit weights"), (
        call("gl.networks.mlp", 1024), call("gl.compression.support", "cpu"),
        call("gl.compression.quantize", ..., "per-channel", "dynamic", arithmetic="integer"), call("torch.randn", 64, 1024),
        call("gl.compression.weigh")), ("gl.compression.support()",)),
    Said("07_lighter_models", "tied", ("the **tied** embedding",), (
        call("gl.networks.transformer", tied=False), call("gl.networks.transformer", tied=True)), ("tied=False", "tied=True")),
    Said("07_lighter_models", "shared", ("16 values need 4 bits", "Fine-tuning then moves the codebook"), (
        call("gl.compression.share_weights", "model", 16), call("gl.training.fit", "job", model="gl.compression.share_weights()")),
         ("as trained", "16 values", "90 % zeros", "90 % zeros, then 8 bits")),
    Said("07_lighter_models", "seeds", ("With two seeds the interval is wide", "pruning to 90 %"), (
        call("gl.compression.Recipe", zeros=0.9), call("gl.compression.Recipe", channels=0.5),
        call("gl.compression.diet", seeds=(0, 1)))),
    Said("08_parallelism", "setup", ("Four processes run on your machine",), (call("torch.set_num_threads", 1),), ("The four ranks",)),
    Said("08_parallelism", "reveal-sent", ("Four ranks hold 100 MB of gradients each", "with 1,024 ranks"), (
        call("gl.models.collective_cost", "all_reduce", 100e6, ranks=1024, algorithm="ring"),)),
    Said("08_parallelism", "slow", ("Rank 3 pauses longer than the others",), (call("ranks.recover"), call("ranks.recover().run")),
         ("rank 0:", "rank 1:")),
    Said("08_parallelism", "no-overlap", ("then with one bucket that holds all gradients",), (
        call("gl.parallel.train", "ranks", "ddp-no-overlap"), call("gl.figures.rank_timeline", "gl.parallel.train().timeline"))),
    Said("08_parallelism", "no-sync", ("inside `no_sync()` it waits for the last",), (call("gl.parallel.train", "ranks", "ddp-no-sync"),),
         ("ddp.strategy", "gl.parallel.train().strategy")),
    Said("08_parallelism", "split", ("so that the picture does not depend on",), (
        call("gl.parallel.run_schedule", "ranks", "split"), call("gl.figures.rank_timeline", "gl.parallel.run_schedule().timeline"))),
    Said("08_parallelism", "pipeline", ("The batch is cut into **microbatches**",), (
        call("gl.parallel.run_schedule", "ranks", "gpipe", microbatches=8),
        call("gl.figures.rank_timeline", "gl.parallel.run_schedule().timeline")), ("gl.parallel.run_schedule()",)),
    Said("08_parallelism", "pipeline-train", ("A real model in a pipeline, beside one process",), (
        call("gl.parallel.train", "ranks", "pipeline-1f1b", model="gl.networks.transformer()"),)),
    Said("08_parallelism", "tensor-bytes", ("The price is traffic *inside* each layer",), (call("gl.parallel.train", "ranks", "tensor"),),
         ("ddp.strategy", "gl.parallel.train().strategy")),
    Said("08_parallelism", "amdahl", ("Of a step of 100 ms, 10 ms do not get shorter",), (call("gl.models.amdahl", 0.1, seconds=0.1),)),
    Said("08_parallelism", "reveal-faster", ("How many times as fast is it on 16 ranks?",), (call("law.at", 16),)),
    Said("08_parallelism", "stop", ("Engines are processes; end them",), (call("ranks.stop"),), ("ranks",)),
    Said("09_speedup_ladder", "imports", ("What your device has is climbed live",), (), ("The ladder is climbed on:",)),
    Said("09_speedup_ladder", "pairs", ("Data on the device and prefetch", "Data on the device and a CUDA graph"), (
        call("gl.lessons.step_of_parts", "data on the device", "prefetch"),
        call("gl.lessons.step_of_parts", "data on the device", "CUDA graph")), ("gl.lessons.step_of_parts()",) * 2),
    Said("09_speedup_ladder", "gains", ("Look for techniques whose three marks lie apart",), (call("gl.figures.ladder_gains", "ladder"),),
         ("ladder.sentence",)),
    Said("09_speedup_ladder", "huge", ("Take 128 images instead of 16", "a name, a title, what it works on, and the options"), (
        call("gl.training.Technique", "huge", "batch of 128", "starting operators", {"batch_size": 128}),
        call("gl.training.ladder", "digits-cnn", ["gl.training.Technique()"])), ("speed:", "accuracy:")),
    Said("09_speedup_ladder", "reveal-graph", ("A transformer's training step", "on a recorded NVIDIA H200, replayed as a CUDA graph"), (
        call("gl.lessons.technique_gains", "nvidia-h200"), call("gl.lessons.technique_gains().of", "CUDA graph", "transformer"))),
    Said("09_speedup_ladder", "half", ("half of the data", "Both are timed on 64 items"), (
        call("gl.training.compare_scripts", "script", items=64),)),
    Said("10_rosetta", "five", ("Two matrices of 1,024 x 1,024 numbers",), (call("gl.lessons.five_times", n=1024),)),
    Said("10_rosetta", "sharded", ("One array on four devices",), (call("gl.lessons.sharded", 4),)),
]  # fmt: skip


@pytest.mark.parametrize("row", SAID, ids=[f"{row.notebook[:2]}-{row.cell}" for row in SAID])
def test_a_cell_does_what_the_words_around_it_say(row: Said, capsys: Capsys) -> None:
    """The numbers that the text names are those that the cell hands on, and what the reader shall look at is shown."""
    near = words_near(row.notebook, row.cell)
    assert [words for words in row.words if words not in near] == []
    made, _ = perform(row.notebook, row.cell)
    left = iter(made)
    for wanted in row.calls:
        assert any(wanted.is_one(*one) for one in left), wanted
    if row.lines is not None:
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        assert len(lines) == len(row.lines)
        assert [line[: len(begin)] for line, begin in zip(lines, row.lines, strict=True)] == list(row.lines)


# How much a cell works on and how long, where no text names it: enough to see what the text tells, within the notebook's minutes.
_MODEL = {"vocabulary": 1000, "width": 256, "heads": 4, "layers": 4, "context": 128}
SIZES = [
    Said("04_custom_kernels", "formula", (), (call("np.random.default_rng", 0), call("gl.measure", device="cpu", deadline=1))),
    Said("04_custom_kernels", "kernel", (), (call("np.allclose", "np.zeros()", "gate()", atol=1e-6),)),
    Said("04_custom_kernels", "launch", (), (call("np.allclose", "y", "gate()", atol=1e-6),)),
    Said("04_custom_kernels", "tiled-run", (), (
        call("np.random.default_rng", 1), call("np.random.default_rng().random", (64, 64)), call("np.allclose", rtol=1e-5))),
    Said("04_custom_kernels", "python-compiled", (), (call("gl.lessons.compiled", "gate_kernel", "few", "y"),)),
    Said("04_custom_kernels", "tensor", (), (call("gl.lessons.instructions", ..., "FFMA", "HMMA"),) * 2),
    Said("05_mixed_precision", "naive", (), (call("gl.training.fit().losses[slice(None, None, 10)].round", 3),)),
    Said("05_mixed_precision", "product", (), (call("torch.Generator().manual_seed", 0),)),
    Said("05_mixed_precision", "swallowed", (), (call("task.make_model", seed=0),)),
    Said("05_mixed_precision", "gradients", (), (call("task.make_model", seed=0), call("task.train[]", slice(256)))),
    Said("05_mixed_precision", "small-run", (), (call("task.make_model", seed=1),) * 2),
    Said("05_mixed_precision", "trace", (), (
        call("gl.networks.transformer", vocabulary=100, width=64, heads=4, layers=1, context=32), call("torch.randint", 0, 100, (4, 32)))),
    Said("05_mixed_precision", "memory", (), (call("gl.networks.transformer", **_MODEL), call("torch.randint", 0, 1000, (16, 128)))),
    Said("05_mixed_precision", "cpu-times", (), (call("gl.workloads.get()", n=256), call("gl.measure", device="cpu", deadline=0.7)) * 3),
    Said("05_mixed_precision", "race-of-formats", (), (
        call("gl.training.race", "task", {"precision": "float32"}, {"precision": "bfloat16"}, steps=60, device="cpu"),)),
    Said("06_training_pipeline", "c18", (), tuple(call("gl.training.pipeline", workers=n, steps=14) for n in (0, 1, 2, 4))),
    Said("06_training_pipeline", "c20", (), (call("gl.widgets.PipelineTimeline", workers=1),)),
    Said("06_training_pipeline", "c48", (), (
        call("torch.nn.Conv2d", 64, 64, 3, padding=1), call("torch.rand", 16, 64, 28, 28),
        call("gl.compare", devices=["device"], deadline=1))),
    Said("06_training_pipeline", "c52", (), (call("torch.rand", 4096, 256), call("torch.ones", 256), call("torch.zeros", 256))),
    Said("06_training_pipeline", "c61", (), (call("gl.training.race", steps=24, device="device"),)),
    Said("06_training_pipeline", "c70", (), (call("gl.training.race", "prose-transformer", {}, {"checkpoint": True}, steps=24),)),
    Said("06_training_pipeline", "c77", (), (call("gl.networks.mlp", 256, 256, 10, depth=8),)),
    Said("07_lighter_models", "train", (), (call("gl.training.task().make_model", seed=0),)),
    Said("07_lighter_models", "prune", (), (call("gl.training.fit", "job", epochs=4),)),
    Said("07_lighter_models", "channels", (), (call("gl.training.fit", "job", epochs=4),)),
    Said("07_lighter_models", "reveal-channels", (), (
        call("job.test[]", slice(1)), call("job.test[slice(None, 1, None)][]", 0), call("gl.compression.count", "half"))),
    Said("07_lighter_models", "gradual", (), (call("gl.training.task().make_model", seed=0),)),
    Said("07_lighter_models", "aware", (), (call("gl.training.fit", "hard", epochs=15),)),
    Said("07_lighter_models", "integers", (), (call("torch.manual_seed", 0), call("gl.networks.mlp", 1024, 1024, 1024))),
    Said("07_lighter_models", "tied", (), tuple(
        call("gl.networks.transformer", vocabulary=2000, width=64, layers=2, tied=tied) for tied in (False, True))),
    Said("07_lighter_models", "shared", (), (call("gl.training.fit", "job", epochs=2),)),
    Said("07_lighter_models", "seeds", (), (call("gl.compression.diet", "job", device="device", deadline=0.3),)),
    Said("08_parallelism", "ranks", (), (call("gl.parallel.cluster", n=4, timeout_seconds=10), call("gl.parallel.cluster().start"))),
    Said("08_parallelism", "sweep", (), (call("gl.parallel.sweep", "ranks", "all_reduce", deadline=4),)),
    Said("08_parallelism", "no-overlap", (), (call("gl.parallel.train", "ranks", "ddp-no-overlap", steps=6),)),
    Said("08_parallelism", "no-sync", (), (call("gl.parallel.train", "ranks", "ddp-no-sync", steps=6),)),
    Said("08_parallelism", "batch", (), (
        call("gl.parallel.global_batch", ranks=(1, 16), batch=16, epochs=5, rules=("unchanged", "linear with warm-up")),)),
    Said("08_parallelism", "pipeline-train", (), (
        call("gl.networks.transformer", 128, width=32, heads=4, layers=4, context=64), call("gl.parallel.train", "ranks", steps=6))),
    Said("08_parallelism", "tensor-bytes", (), (call("gl.parallel.train", "ranks", "tensor", steps=6),)),
    Said("08_parallelism", "shard", (), tuple(call("gl.parallel.train", "ranks", name, steps=6) for name in ("zero1", "zero2", "zero3"))),
    Said("08_parallelism", "amdahl", (), (call("gl.models.amdahl", 0.1, ranks=(1, 2, 4, 8, 16, 64, 1024)),)),
    Said("08_parallelism", "export", (), (call("ranks.export_script().read_text()[]", slice(900)),)),
    Said("09_speedup_ladder", "ladder", (), (call("gl.training.ladder", "digits-cnn", samples=6400, deadline=8),)),
    Said("09_speedup_ladder", "huge", (), (call("gl.training.ladder", "digits-cnn", samples=6400, deadline=5),)),
    Said("09_speedup_ladder", "half", (), (call("gl.training.compare_scripts", "script", items=64, seeds=1),)),
    Said("09_speedup_ladder", "report", (), (call("gl.training.speedup_report().read_text()[]", slice(1500)),)),
]  # fmt: skip


@pytest.mark.parametrize("row", SIZES, ids=[f"{row.notebook[:2]}-{row.cell}" for row in SIZES])
def test_how_much_a_cell_works_on_and_how_long(row: Said) -> None:
    """Seeds, shapes, steps and seconds that the reader does not meet in the text."""
    left = iter(perform(row.notebook, row.cell)[0])
    for wanted in row.calls:
        assert any(wanted.is_one(*one) for one in left), wanted


# A cell that shows recorded machines, the name that they come by, and what it prints where there are none.
NONE_YET: list[tuple[str, str, Callable[[list[Any]], dict[str, Any]], str]] = [
    ("01_gpu_architecture", "gpu-curve", lambda found: {"gl": _lessons(gpu_curves=found)}, "No GPU here, and none recorded yet."),
    ("01_gpu_architecture", "gpu-bandwidth", lambda found: {"gl": _lessons(gpu_streams=found)}, "No GPU here, and none recorded yet."),
    (
        "03_compute_density",
        "gpu-library",
        lambda found: {"gl": _lessons(recorded_under_roof=found), "specs": []},
        "recorded GPUs: none yet",
    ),
    ("08_parallelism", "gpu-ranks", lambda found: {"gl": _lessons(recorded_scalings=found)}, "A step on a GPU: not recorded yet."),
    (
        "09_speedup_ladder",
        "recorded-ladders",
        lambda found: {"gl": _lessons(recorded_ladders=found)},
        "A whole ladder on a GPU: not recorded yet.",
    ),
]


class _Found(SimpleNamespace):
    """A recorded machine."""

    def __str__(self) -> str:
        return "a recorded one"


def _lessons(**found: list[Any]) -> Any:
    """A package whose lessons find these machines, and which draws nothing."""
    drawn = SimpleNamespace(latency=lambda *_, **__: None, bandwidth=lambda *_, **__: None)
    link = SimpleNamespace(latency_seconds=0.0, bandwidth_bytes_per_second=1.0)
    return SimpleNamespace(
        lessons=SimpleNamespace(**{name: lambda *_, many=many: many for name, many in found.items()}), figures=drawn,
        transfer=SimpleNamespace(link=lambda name: link), models=SimpleNamespace(scaling=lambda *_: SimpleNamespace(points=[])),
    )  # fmt: skip


@pytest.mark.parametrize(("notebook", "cell", "page", "sentence"), NONE_YET, ids=[f"{row[0][:2]}-{row[1]}" for row in NONE_YET])
def test_a_cell_says_where_nothing_is_recorded(
    notebook: str, cell: str, page: Callable[[list[Any]], dict[str, Any]], sentence: str, capsys: Capsys
) -> None:
    """With none it says so in one line; with one it shows that, and not the sentence."""
    shared = {"curve": None, "stream": None}
    perform(notebook, cell, **shared, **page([]))
    assert capsys.readouterr().out.splitlines() == [sentence]
    evidence = SimpleNamespace(sentence="the sentence of its evidence")
    one = _Found(
        evidence=evidence,
        points=[SimpleNamespace(median_seconds=1.0, label="its point", seconds=1.0, bound_by="m", share_of_roof=1.0)],
        parameter_bytes=1,
    )
    perform(notebook, cell, format_seconds=str, **shared, **page([one]))
    shown = capsys.readouterr().out
    assert sentence not in shown
    assert "a recorded one" in shown or ("recorded GPUs: 1" in shown and "its point" in shown)


def test_two_ways_to_the_third_power(capsys: Capsys) -> None:
    """A million numbers of the array, each to the third power by either way; both measurements are shown."""
    results: list[Any] = []

    def measure(work: Callable[[], Any], label: str, **_: Any) -> str:
        results.append(work())
        return f"the time of {label}"

    run("00_start_here", "cubes", gl=SimpleNamespace(measure=measure), x=np.full(1_500_000, 2.0, np.float32))
    assert [(each.size, float(each.min()), float(each.max())) for each in results] == [(1_000_000, 8.0, 8.0)] * 2
    assert capsys.readouterr().out == "the time of a ** 3\nthe time of a * a * a\n"


def test_three_kernels_to_judge_by_eye() -> None:
    """With 4 blocks of 128: every other thread writes a 1, every other warp, the first hundred; 16, 0 and 1 of the warps diverge."""
    assert "4 blocks of 128 threads, so there are 16 warps" in words_near("01_gpu_architecture", "three")
    names, number = run("01_gpu_architecture", "three", cuda=kernels.cuda), np.arange(512)
    wanted = {"a": (number % 2 == 0, 16), "b": (number % 64 < 32, 0), "c": (number < 100, 1)}
    for name, (ones, divergent) in wanted.items():
        out = np.zeros(512, np.float32)
        found = kernels.simulate(names[name], 4, 128, out)
        assert (out == ones).all(), name
        assert found.totals.divergent_branches == divergent, name


def test_library_functions_get_larger_sizes_on_a_gpu() -> None:
    """The catalogue's last but one; the same ones of the recorded GPU, so that both tables show the same work; a CPU gets its own."""
    assert "A GPU gets larger sizes than a CPU" in words_near("03_compute_density", "library")
    asked: list[int | None] = []

    def spec(n: int | None = None) -> None:
        asked.append(n)

    spec.sizes = (1, 2, 3, 4, 5)  # type: ignore[attr-defined]
    for is_cpu, n in ((False, 4), (True, None)):
        gl = SimpleNamespace(workloads=SimpleNamespace(get=lambda name: spec), lessons=SimpleNamespace(under_roof=lambda works: works))
        names = run("03_compute_density", "library", gl=gl, device=SimpleNamespace(is_cpu=is_cpu))
        assert set(asked) == {n}
        assert len(asked) == 8
        asked.clear()
    gl.lessons.recorded_under_roof = lambda works: list(works)[:0]
    run("03_compute_density", "gpu-library", gl=gl, specs=names["specs"])
    assert asked == [4] * 8


def test_both_pieces_of_work_are_placed_with_their_own_times(capsys: Capsys) -> None:
    """Under one roof, with the ridge; both points are printed and drawn."""
    drawn: list[Any] = []
    roof = SimpleNamespace(
        ridge_flops_per_byte=lambda arithmetic: {"float32": 12.5}[arithmetic],
        place_workload=lambda work, taken: f"{work} in {taken}", with_points=lambda points: points,
    )  # fmt: skip
    gl = SimpleNamespace(figures=SimpleNamespace(roofline=drawn.append))
    run("03_compute_density", "two-points", gl=gl, roof=roof, product="product", total="sum", fast="1 s", slow="9 s")
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0].split()[5], lines[1:]) == ("12.5", ["product in 1 s", "sum in 9 s"])
    assert drawn == [["product in 1 s", "sum in 9 s"]]


def test_the_ridge_is_told_in_multiply_adds(capsys: Capsys) -> None:
    """A ridge of 10 FLOP a byte lies at 40: k multiply-adds are 2 k FLOP for 8 bytes."""
    assert "the ridge lies at 4 times as many multiply-adds as it has FLOP a byte" in words_near("03_compute_density", "sweep")
    run(
        "03_compute_density",
        "sweep",
        gl=SimpleNamespace(lessons=SimpleNamespace(arithmetic_sweep=lambda device: None)),
        ridge=10.0,
        device=None,
    )
    assert capsys.readouterr().out == "by the ridge: about 40 multiply-adds a number\n"


def test_every_thread_of_the_chunks_has_32_numbers() -> None:
    """As many numbers as 32 for each thread of the launch, read and written; the answer is of the kernel with chunks."""
    launched: list[Any] = []
    revealed: list[Any] = []

    def simulate(kernel: str, grid: int, block: int, x: np.ndarray, out: np.ndarray) -> str:
        launched.append((kernel, 32 * grid * block, x.size, out.size))
        return "the count"

    gl = SimpleNamespace(kernels=SimpleNamespace(simulate=simulate), lessons=SimpleNamespace(reveal=lambda *given: revealed.append(given)))
    run("04_custom_kernels", "reveal-chunks", gl=gl, np=np, gate_chunks="chunks", x=np.zeros(1 << 22, np.float32))
    assert (launched, revealed) == ([("chunks", 65_536, 65_536, 65_536)], [("04.3", "the count")])


def test_the_race_gives_the_right_sum_and_a_finding(capsys: Capsys) -> None:
    """256 ones are 256 under the microscope all the same, and the findings name the race."""
    assert "The result is right." in words_near("04_custom_kernels", "race-run")
    block_sum = run("04_custom_kernels", "race", cuda=kernels.cuda, float32=kernels.float32)["block_sum"]
    names = run("04_custom_kernels", "race-run", np=np, gl=SimpleNamespace(kernels=kernels), block_sum=block_sum)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "the sum of 256 ones: 256.0"
    assert (names["ones"].size, names["total"].size) == (256, 1)
    assert len(names["raced"].findings) > 0
    assert lines[1:] == "\n".join(map(str, names["raced"].findings)).splitlines()
    assert {finding.kind for finding in names["raced"].findings} == {"race"}


def test_the_tiled_product_is_launched_with_a_thread_for_each_element(capsys: Capsys) -> None:
    """Blocks of 32 x 32, as many as the matrix of n x n has; a kernel that gives the product passes, one that is wrong does not."""
    assert "tiles of 32 x 32" in words_near("04_custom_kernels", "tiled-run")
    for off, passes in ((0.0, "True"), (1e-3, "False")):

        def simulate(kernel: str, grid: Any, block: Any, a: np.ndarray, b: np.ndarray, c: np.ndarray, off: float = off) -> None:
            assert block == (32, 32)
            assert tuple(32 * n for n in grid) == a.shape == b.shape == c.shape
            c[:] = (a @ b) * (1 + off)

        run("04_custom_kernels", "tiled-run", np=np, gl=SimpleNamespace(kernels=SimpleNamespace(simulate=simulate)), matmul_tiled="tiled")
        assert capsys.readouterr().out == f"as NumPy has it: {passes}\n"


def test_only_the_epsilon_is_another_one(capsys: Capsys) -> None:
    """Adam at the task's own rate with an epsilon of 1e-4, which float16 holds; steps, format and scale are those of the run that died."""
    assert "give Adam one that float16 holds, and change nothing else" in words_near("05_mixed_precision", "epsilon-proof")
    torch = SimpleNamespace(optim=SimpleNamespace(Adam=lambda parameters, **options: (parameters, options)))
    naive = [one for one in perform("05_mixed_precision", "naive")[0] if one[0] == "gl.training.fit"][-1]
    made, page = perform("05_mixed_precision", "epsilon-proof", torch=torch)
    ((_, given, options),) = (one for one in made if one[0] == "gl.training.fit")
    assert options.pop("optimizer") is page["adam"]
    assert (given, options) == naive[1:]
    assert page["adam"]("its own") == ("its own", {"lr": gpulab.training.task("digits-mlp").learning_rate, "eps": 1e-4})
    assert capsys.readouterr().out.splitlines()[-1].startswith("epsilon 1e-4: ")


def test_each_element_of_the_product_is_a_long_sum() -> None:
    """Of a thousand products and more, in both tables; else nothing would be lost that could be seen."""
    assert "a matrix product, whose every element is a sum" in words_near("05_mixed_precision", "product")
    shapes: list[Any] = []
    precision = SimpleNamespace(matmul_error=lambda a, b, **_: shapes.append((a, b)))
    torch = SimpleNamespace(rand=lambda *shape, **_: shape, Generator=lambda: SimpleNamespace(manual_seed=lambda seed: None), float64=None)
    names = run("05_mixed_precision", "product", torch=torch, gl=SimpleNamespace(precision=precision))
    run("05_mixed_precision", "tf32-error", gl=SimpleNamespace(precision=precision), a=names["a"], b=names["b"])
    assert shapes == [((32, 1024), (1024, 32))] * 2


def test_the_traced_transformer_reads_whole_windows_of_its_vocabulary(capsys: Capsys) -> None:
    """Numbers of tokens up to the vocabulary, windows as long as the context; the types of the parameters are printed beside the trace."""
    made = {name: (given, named) for name, given, named in perform("05_mixed_precision", "trace")[0]}
    (low, high, (_, length)), network = made["torch.randint"][0], made["gl.networks.transformer"][1]
    assert (low, high, length) == (0, network["vocabulary"], network["context"])
    assert network["width"] % network["heads"] == 0
    assert made["gl.precision.autocast_trace"] == (
        ("gl.networks.transformer()", "torch.randint()"), {"dtype": "bfloat16", "device": "cpu"})  # fmt: skip
    assert "dtype" in capsys.readouterr().out


def test_a_product_is_as_large_as_its_label_says() -> None:
    """256 x 256, in three formats."""
    made, _ = perform("05_mixed_precision", "cpu-times")
    sizes = [named["n"] for name, _, named in made if name == "gl.workloads.get()"]
    labels = [named["label"].split()[:3] for name, _, named in made if name == "gl.measure"]
    assert labels == [[str(n), "x", str(n)] for n in sizes]
    assert len(labels) == 3


def test_the_answer_on_small_losses_is_that_of_autocast() -> None:
    """The question is of autocast to float16, not of float32."""
    revealed: list[Any] = []
    gl = SimpleNamespace(lessons=SimpleNamespace(reveal=lambda *given: revealed.append(given)))
    run("05_mixed_precision", "reveal-small", gl=gl, accuracies={False: "float32", True: "autocast"})
    assert revealed == [("05.8", "autocast")]


@pytest.mark.parametrize("is_cpu", [True, False])
def test_one_convolution_in_both_layouts(is_cpu: bool) -> None:
    """Both layers are alike, with the same weights, and keep the size of the images; a GPU gets more of them."""
    made, page = perform("06_training_pipeline", "c48", device=_Device(is_cpu))
    layers = [(given, named) for name, given, named in made if name == "torch.nn.Conv2d"]
    assert layers[0] == layers[1]
    (source, _, kernel), padding = layers[0][0], layers[0][1]["padding"]
    assert 2 * padding == kernel - 1
    (images, channels, *size) = next(given for name, given, _ in made if name == "torch.rand")
    assert (channels, size[0]) == (source, size[1])
    assert (images <= 16) == is_cpu
    assert any(name.endswith("load_state_dict") and "state_dict()" in str(given[0]) for name, given, _ in made)
    assert [given[0] for name, given, _ in made if name == "gl.compare"] == [page["layouts"]]
    assert list(page["layouts"]) == ["channels first", "channels last"]


class _Device(SimpleNamespace):
    """A device that is a CPU, or a GPU."""

    def __init__(self, is_cpu: bool) -> None:
        super().__init__(is_cpu=is_cpu)

    def __str__(self) -> str:
        return "cpu" if self.is_cpu else "cuda:0"


def test_the_loss_of_the_language_model_is_over_every_token() -> None:
    """Two windows of three tokens with five scores each: PyTorch's mean over the six of them."""
    import torch
    from torch.nn.functional import cross_entropy

    _, page = perform("06_training_pipeline", "c64", cross_entropy=cross_entropy)
    scores, wanted = torch.randn(2, 3, 5), torch.tensor([[0, 1, 2], [3, 4, 0]])
    one_by_one = [cross_entropy(scores[i, j][None], wanted[i, j][None]) for i in range(2) for j in range(3)]
    assert float(page["loss_of"](scores, wanted)) == pytest.approx(float(sum(one_by_one)) / 6)


def test_a_step_that_runs_out_of_memory_leaves_no_gradients() -> None:
    """It goes forward and backward through a network for its inputs, then forgets the gradients; 64 MiB come on top of what there is."""
    import torch

    steps: list[str] = []

    class Network(torch.nn.Linear):
        def zero_grad(self, set_to_none: bool = True) -> None:
            steps.append("nothing to forget" if self.weight.grad is None else "forget")

    network, limits = Network(256, 10), list[Any]()
    shapes: list[Any] = []

    def mlp(*shape: int, depth: int) -> Network:
        shapes.append(shape)
        return network

    gl = SimpleNamespace(
        networks=SimpleNamespace(mlp=mlp),
        memory=SimpleNamespace(limit=lambda *given, **named: limits.append((given, named))),
    )
    assert "lets the tensors of a block take 64 MiB" in words_near("06_training_pipeline", "c77")
    run("06_training_pipeline", "c77", gl=gl, torch=torch)["train_step"](3)
    assert (shapes[0][0], limits, steps) == (256, [(("64 MiB", "cpu"), {"on_top": True})], ["forget"])


def test_the_three_timelines_show_the_same_steps() -> None:
    """They are the same for everybody, and are compared with one another: three whole timelines, as many steps of each."""
    drawn = [perform("08_parallelism", f"timeline-{letter}")[0] for letter in "abc"]
    assert [[given for name, given, _ in one if name == "gl.lessons.hang"] for one in drawn] == [[("A",)], [("B",)], [("C",)]]
    assert [[named for name, _, named in one if name == "gl.figures.rank_timeline"] for one in drawn] == [[{"steps": 3}]] * 3


def test_the_memory_of_a_rank_is_told_for_each_stage(capsys: Capsys) -> None:
    """Plain data parallelism and three stages, with each part that the text names; the traffic of each below it, counted or not."""

    def trained(name: str) -> SimpleNamespace:
        report = SimpleNamespace(most_by_category={"gradients": 7}, wire_bytes=None if name == "zero2" else 5, ring_bytes=6, calls="calls")
        return SimpleNamespace(reports=[report], evidence=SimpleNamespace(badge=SimpleNamespace(value="MEASURED")))

    gl = SimpleNamespace(parallel=SimpleNamespace(train=lambda ranks, name, **_: trained(name)))
    names = run("08_parallelism", "shard", gl=gl, ranks=None, ddp=trained("ddp"), format_bytes=lambda n: f"{n}B")
    parts = "parameters 0B, gradients 7B, optimizer 0B, communication 0B, activations 0B, MEASURED"
    stages = ("ddp", "zero1", "zero2", "zero3")
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [f"{name} {parts}" for name in stages]
    run("08_parallelism", "wire", sharded=names["sharded"], format_bytes=lambda n: f"{n}B")
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        f"{name} calls: as rings 6B, on the wire {'not counted here' if name == 'zero2' else '5B'} MEASURED" for name in stages
    ]


def test_two_links_decide_what_a_rank_waits_for(capsys: Capsys) -> None:
    """Over each link its own latency and bandwidth, and the step and parameters of the recorded machine; a line for each."""
    far = _Found(points=[SimpleNamespace(median_seconds=0.25)], parameter_bytes=400, evidence=SimpleNamespace(sentence="On it."))
    given: list[Any] = []
    links = {name: SimpleNamespace(latency_seconds=k, bandwidth_bytes_per_second=10 * k) for k, name in ((1, "nvlink4"), (2, "pcie5-x16"))}

    def scaling(step: float, nbytes: int, latency: float, bandwidth: float, ranks: tuple[int, ...]) -> SimpleNamespace:
        given.append((step, nbytes, latency, bandwidth))
        return SimpleNamespace(points=[SimpleNamespace(ranks=n, speedup=n / 2, exposed_seconds=0.5) for n in ranks])

    gl = SimpleNamespace(
        lessons=SimpleNamespace(recorded_scalings=lambda: [far]), models=SimpleNamespace(scaling=scaling),
        transfer=SimpleNamespace(link=links.__getitem__),
    )  # fmt: skip
    run("08_parallelism", "gpu-ranks", gl=gl, format_ratio=lambda r: f"{r:g}x", format_seconds=lambda s: f"{s:g} s")
    assert given == [(0.25, 400, 1, 10), (0.25, 400, 2, 20)]
    gains = "2 ranks 1x (0.5 s waited), 8 ranks 4x (0.5 s waited), 64 ranks 32x (0.5 s waited)"
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "a recorded one", "On it.", f"MODELLED, nvlink4 : {gains}", f"MODELLED, pcie5-x16: {gains}",
    ]  # fmt: skip


def test_the_rank_with_the_largest_number_is_the_last(capsys: Capsys) -> None:
    """Each rank says its own number and the largest of all, by an all-reduce of maxima; every rank's line is printed."""
    ranks, biggest = SimpleNamespace(run=lambda function: ["one", "another"]), [1]
    numbers = {"torch": SimpleNamespace(tensor=lambda value: SimpleNamespace(item=lambda: biggest[0])), "ranks": ranks}

    def all_reduce(tensor: Any, op: str) -> None:
        assert op == "MAX"
        biggest[0] = 3

    dist = SimpleNamespace(get_rank=lambda: 1, all_reduce=all_reduce, ReduceOp=SimpleNamespace(MAX="MAX"))
    assert run("08_parallelism", "run", dist=dist, **numbers)["where_am_i"]() == "I am rank 1; the last one is 3"
    assert capsys.readouterr().out == "one\nanother\n"


def test_three_steps_are_told_of_the_twenty(capsys: Capsys) -> None:
    """The first, the tenth and the last, counted from 1; the loss of one process beside the mean of the ranks."""
    ranks = SimpleNamespace(run=lambda function: [[float(k) for k in range(20)], [k + 1.0 for k in range(20)]])
    gl = SimpleNamespace(lessons=SimpleNamespace(reveal=lambda *_: None))
    run("08_parallelism", "by-hand", ranks=ranks, data_parallel=None, alone=[k / 4 for k in range(20)], gl=gl)
    assert [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()] == [
        "step 1: one process 0.000000, four ranks 0.500000", "step 10: one process 2.250000, four ranks 9.500000",
        "step 20: one process 4.750000, four ranks 19.500000",
    ]  # fmt: skip


def test_the_larger_batch_learns_from_as_many_samples() -> None:
    """A batch of 128, from the same samples as the first ladder."""
    counts = [
        [named["samples"] for name, _, named in perform("09_speedup_ladder", cell)[0] if name == "gl.training.ladder"]
        for cell in ("ladder", "huge")
    ]
    assert "A batch of 128, from the same samples" in words_near("09_speedup_ladder", "huge")
    assert counts[0] == counts[1] != []


WINDOWS = [("03_compute_density", "transformer"), ("05_mixed_precision", "memory")]


@pytest.mark.parametrize(("notebook", "cell"), WINDOWS, ids=[row[0][:2] for row in WINDOWS])
def test_a_transformer_reads_whole_windows(notebook: str, cell: str) -> None:
    """Its tokens fill the context, and its width is that of whole heads."""
    made = {name: (given, named) for name, given, named in perform(notebook, cell)[0]}
    (low, high, (_, length)), network = made["torch.randint"][0], made["gl.networks.transformer"][1]
    assert (low, length, high) == (0, network["context"], network.get("vocabulary", 1000))
    assert network["width"] % network["heads"] == 0


# A cell whose text says that something fails: the error, words of the text, and what is printed before the error's own.
FAILS = [
    ("01_gpu_architecture", "spill", "GpulabError", "which needs no GPU for it", ""),
    ("02_data_transfer", "share-error", "CopyRequiredError", "copies nothing", ""),
    ("04_custom_kernels", "launch", "GpulabError", "Without a GPU you get one sentence", ""),
    ("08_parallelism", "skipped", "RankError", "one rank leaves out one collective", "RankError: "),
    ("08_parallelism", "dead", "RankError", "a rank dies", "RankError: "),
    ("10_rosetta", "tf-refused", "DeviceError", "refuses instead", ""),
]


@pytest.mark.parametrize(("notebook", "cell", "kind", "words", "before"), FAILS, ids=[f"{row[0][:2]}-{row[1]}" for row in FAILS])
def test_the_sentence_of_an_error_is_shown(notebook: str, cell: str, kind: str, words: str, before: str, capsys: Capsys) -> None:
    """The error that the text announces is caught, and its sentence printed; its kind too where a rank failed."""
    assert words in words_near(notebook, cell)
    error = type(kind, (Exception,), {})

    def fails(*_: Any, **__: Any) -> Any:
        raise error("what failed, and what to do")

    gl = SimpleNamespace(
        errors=SimpleNamespace(**{kind: error}), share=fails, to_device=fails, kernels=SimpleNamespace(launch=fails, compile_cuda=fails)
    )
    ranks = SimpleNamespace(ready=True, run=fails)
    ranks.recover = lambda: ranks
    perform(notebook, cell, gl=gl, ranks=ranks)
    assert set(capsys.readouterr().out.splitlines()) == {f"{before}what failed, and what to do"}


@pytest.mark.parametrize(
    ("cell", "lines"),
    [
        ("c78", ["64 MiB are full"]),
        ("c81", ["still held inside the except block: 7 B"]),
        ("c84", ["held behind the except block: 7 B", "a batch of 1024 fits"]),
        ("c86", ["held by the error that has a name: 7 B", "held without it:                   7 B"]),
    ],
)
def test_what_is_held_where_is_told(cell: str, lines: list[str], capsys: Capsys) -> None:
    """The error's own words, and what the small device holds: inside the block, behind it, with a name for the error and without."""

    class Small(SimpleNamespace):
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    def train_step(batch: int) -> None:
        if batch > 1024:
            raise MemoryError("64 MiB are full")

    torch = SimpleNamespace(OutOfMemoryError=MemoryError)
    run("06_training_pipeline", cell, torch=torch, train_step=train_step, small=Small(live_bytes=7), format_bytes=lambda n: f"{n} B")
    assert capsys.readouterr().out.splitlines() == lines


def test_a_step_is_marked_in_its_three_parts() -> None:
    """Gradients are forgotten first; then forward, backward and the optimizer, each under its own mark."""
    log: list[str] = []

    @contextlib.contextmanager
    def record_function(name: str) -> Iterator[None]:
        log.append(f"{name}:")
        yield

    def cross_entropy(scores: str, labels: str) -> SimpleNamespace:
        assert (scores, labels) == ("scores of images", "labels")
        log.append("loss")
        return SimpleNamespace(backward=lambda: log.append("gradients"))

    optimizer = SimpleNamespace(zero_grad=lambda: log.append("forget"), step=lambda: log.append("update"))
    shared = {
        "batches": [("images", "labels")],
        "model": "scores of {}".format,
        "cross_entropy": cross_entropy,
        "record_function": record_function,
    }
    run("06_training_pipeline", "c41", optimizer=optimizer, **shared)["training_step"]()
    assert log == ["forget", "forward:", "loss", "backward:", "gradients", "optimizer:", "update"]


def test_the_script_is_what_its_text_and_the_ladder_call_it() -> None:
    """Model and batches go to the device, each step forgets, goes backward, updates and reads its loss; Adam at the rate of the task."""
    assert "reads each loss" in words_near("09_speedup_ladder", "script")
    log: list[Any] = []

    class Thing(SimpleNamespace):
        def to(self, device: str) -> Thing:
            log.append((self.name, device))
            return self

    def adam(parameters: str, lr: float) -> SimpleNamespace:
        log.append((parameters, lr))
        return SimpleNamespace(zero_grad=lambda: log.append("forget"), step=lambda: log.append("update"))

    def cross_entropy(scores: str, labels: Thing) -> SimpleNamespace:
        assert (scores, labels.name) == ("scores", "batch")
        return SimpleNamespace(backward=lambda: log.append("gradients"), item=lambda: log.append("read"))

    class Model(Thing):
        def __call__(self, images: Thing) -> str:
            return "scores"

        def parameters(self) -> str:
            return "its own"

    torch = SimpleNamespace(
        optim=SimpleNamespace(Adam=adam), stack=lambda items: Thing(name="batch"),
        nn=SimpleNamespace(functional=SimpleNamespace(cross_entropy=cross_entropy)),
    )  # fmt: skip
    run("09_speedup_ladder", "script", torch=torch, device="gpu")["script"](Model(name="model"), [(0, 0)] * 16)
    rate = gpulab.training.task("digits-cnn").learning_rate
    step = [("batch", "gpu"), ("batch", "gpu"), "forget", "gradients", "update", "read"]
    assert log == [("model", "gpu"), ("its own", rate), *step * 3]


def test_every_rank_pauses_before_each_collective() -> None:
    """As many all-reduces as pauses; the ends of all runs of the naive network are kept for the answer."""
    made, page = perform("08_parallelism", "slow")
    del made[:]
    page["one_is_slow"]()
    names = [name for name, *_ in made if name in ("time.sleep", "dist.all_reduce")]
    assert names == ["time.sleep", "dist.all_reduce"] * 5
    assert [given for name, given, _ in made if name == "torch.ones"] == [(1000,)] * 5
    made, page = perform("08_parallelism", "dead")
    page["dies"]()
    assert "dist.all_reduce" in [name for name, *_ in made], "the others come to theirs"
    assert list(perform("05_mixed_precision", "scaled-naive")[1]["ends"]) == [1, 256, 65_536]
