"""Two scripts of one training: a speed-up is one only with the same samples, all of them before the end, and the same accuracy."""

from __future__ import annotations

import contextlib
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from gpulab import _files, devices, training
from gpulab.errors import InputError
from gpulab.lessons import _nb09_script
from gpulab.lessons.content import Refused
from gpulab.training import Data, ScriptsResult, _scripts
from gpulab.training._scripts import _counting, samples_of

TASK = "digits-mlp"


def plain(model: Any, data: Any) -> None:
    """Train two epochs after eighty forward passes for nothing."""
    train(model, data, 16, idle=80)


def quick(model: Any, data: Any) -> None:
    """The same without the idle work."""
    train(model, data, 16)


def train(model: Any, data: Any, size: int, *, idle: int = 0, rate: float = 3e-3) -> None:
    """Two epochs in batches."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    with torch.no_grad():
        for _ in range(idle):
            model(data[slice(0, size)][0])
            torch.linalg.qr(torch.eye(60))
    for first in [*range(0, len(data), size)] * 2:
        images, labels = data[slice(first, first + size)]
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.fixture(scope="module", name="found")
def _found() -> ScriptsResult:
    return training.compare_scripts(plain, quick, TASK, items=32, seeds=2, device="cpu")


def test_a_real_speed_up_has_no_objection(found: ScriptsResult) -> None:
    """The same samples are counted (the idle passes keep no gradients), the same models come out, and the interval lies above 1."""
    assert found.samples == (64, 64)
    assert found.accuracy_difference == 0.0
    assert found.gain.verdict == "faster"
    assert found.objections == ()
    assert "as fast as plain" in found.sentence
    assert found.names == ("plain", "quick")


def test_one_that_is_slower_or_trains_less_is_no_speed_up() -> None:
    """Each objection in its own words."""
    turned = training.compare_scripts(quick, plain, TASK, items=32, seeds=1, device="cpu")
    assert any("No speed-up was shown" in words for words in turned.objections)

    def less(model: Any, data: Any) -> None:
        train(model, Data(*data[slice(0, len(data) // 2)]), 16)

    found = training.compare_scripts(plain, less, TASK, items=32, seeds=1, device="cpu")
    assert found.samples == (64, 32)
    assert "trains less" in found.objections[0]


def test_a_script_that_changes_its_data_changes_nobody_elses() -> None:
    """Each call gets the same numbers, though the one before made them twice as large in place; the task's own data stay as they are."""
    task, begins = training.task(TASK), set[tuple[int, float]]()
    kept = [whole.clone() for whole in (task.train.inputs, task.train.targets)]

    def scaled(model: Any, data: Any) -> None:
        begins.add((len(data), float(data.inputs.sum())))
        data.inputs.mul_(2.0)
        quick(model, data)
        data.targets.zero_()

    training.compare_scripts(scaled, quick, TASK, items=16, seeds=2, device="cpu", deadline=0.01)
    assert sorted(begins) == [(n, float(task.train.inputs[:n].sum())) for n in (16, len(task.train))]
    assert all(map(torch.equal, kept, (task.train.inputs, task.train.targets)))


def test_what_one_script_switches_on_is_off_for_the_other() -> None:
    """Threads, TF32, cuDNN's search: on for both, they would be no gain of the one that has them; and the caller's stay as they are."""

    def state() -> tuple[Any, ...]:
        return (
            torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.benchmark, torch.get_default_dtype(), torch.is_grad_enabled(),
        )  # fmt: skip

    seen, here = set[tuple[Any, ...]](), state()

    def switching(model: Any, data: Any) -> None:
        seen.add(state())
        quick(model, data)
        torch.set_num_threads(2)
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)

    training.compare_scripts(switching, quick, TASK, items=16, seeds=1, device="cpu", deadline=0.01, threads=1)
    assert seen == {(1, *here[1:])}
    assert state() == here


def test_speed_that_costs_accuracy_is_named() -> None:
    """A model that hardly learned is surely worse than one that did."""

    def crawl(model: Any, data: Any) -> None:
        train(model, data, 16, rate=1e-9)

    found = training.compare_scripts(plain, crawl, TASK, items=32, seeds=2, device="cpu")
    assert found.accuracy_verdict == "lost"
    assert any("less accurate" in words for words in found.objections)


def test_a_moment_without_the_core_costs_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is held up for twice the usual seconds of both scripts' turns: the 20 samples of an interval are taken all the same."""
    monkeypatch.setattr(_scripts, "_LEAST_SECONDS", 0.05)
    monkeypatch.setattr(_scripts._Script, "seconds", lambda *_: 1e-6)
    calls = [0]

    def held(model: Any, data: Any) -> None:
        calls[0] += 1
        if calls[0] == 8:
            time.sleep(0.2)
        quick(model, data)

    found = training.compare_scripts(held, quick, TASK, items=16, seeds=1, device="cpu")
    assert found.evidence.samples >= 20
    assert found.gain.interval is not None
    hasty = training.compare_scripts(quick, quick, TASK, items=16, seeds=1, device="cpu", deadline=1e-6)
    assert (hasty.evidence.samples, hasty.gain.interval) == (1, None)  # the caller's deadline is the most


@pytest.mark.parametrize("pieces", [1, 4])
def test_a_script_that_returns_before_its_work_is_done_cannot_be_timed(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    """What a missing synchronisation is on a GPU, a thread is here: it trains at each watch, until all of it is done, and all counts."""
    started: list[threading.Thread] = []
    permits, done = threading.Semaphore(0), threading.Semaphore(0)

    def early(model: Any, data: Any) -> None:
        def later() -> None:
            size = len(data) // pieces
            for piece in range(pieces):
                permits.acquire()
                train(model, Data(*data[slice(piece * size, (piece + 1) * size)]), 16)
                done.release()

        started.append(threading.Thread(target=later, daemon=True))
        started[0].start()

    def sleep(seconds: float) -> None:
        if started and started[0].is_alive():
            permits.release()
            done.acquire()
            watches.append(seconds)
            if len(watches) == pieces:
                started[0].join()

    watches: list[float] = []
    stand_in = types.SimpleNamespace(sleep=sleep, monotonic=time.monotonic, perf_counter=time.perf_counter)
    monkeypatch.setattr(_scripts, "time", stand_in)
    with pytest.raises(InputError, match=r"early returned while it was still training \(64 samples"):
        training.compare_scripts(plain, early, TASK, items=32, seeds=1, device="cpu")
    assert len(watches) == pieces


class Watch:
    """A clock for what waits: 50 ms pass at each look, and no more than in truth once the gate is open."""

    def __init__(self, gate: threading.Event, opens: float) -> None:
        self.now, self.gate, self.opens = 0.0, gate, opens

    def monotonic(self) -> float:
        """Return the seconds that have passed."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let a little real time pass, for the threads."""
        self.now += 0.001 if self.gate.is_set() else 0.05
        if self.now >= self.opens:
            self.gate.set()
        time.sleep(0.001)


@pytest.mark.parametrize("opens", [0.0, 2.0, 8.0])
def test_a_thread_whose_first_step_comes_late_is_waited_for(monkeypatch: pytest.MonkeyPatch, opens: float) -> None:
    """Its core was taken away for seconds: what trains on is told so, and not that nothing was trained; all of its samples count."""
    job = training.task(TASK)
    little = Data(*job.train[slice(0, 32)])

    def script(gate: threading.Event) -> Any:
        def mine(model: Any, data: Any) -> None:
            threading.Thread(target=lambda: (gate.wait(30), train(model, data, 16))).start()

        return mine

    for asked in (lambda one: samples_of(one, job, little, devices.find("cpu")), lambda one: _nb09_script._tried(one, job)):
        gate = threading.Event()
        monkeypatch.setattr(_scripts, "time", Watch(gate, opens))
        with pytest.raises(
            (InputError, Refused), match=r"mine returned while it was still training \(64 samp|Your function returned while"
        ):
            asked(script(gate))


def test_a_thread_that_only_waits_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 s where one is left behind, 0.2 s where none is; the samples are those of the call."""
    done = threading.Event()
    watch = Watch(threading.Event(), 1e9)
    monkeypatch.setattr(_scripts, "time", watch)
    job = training.task(TASK)
    little = Data(*job.train[slice(0, 32)])

    def pool(model: Any, data: Any) -> None:
        threading.Thread(target=done.wait, daemon=True).start()
        train(model, data, 16)

    try:
        assert samples_of(pool, job, little, devices.find("cpu")) == 64
        assert watch.now == pytest.approx(10, abs=0.06)
        watch.now = 0.0
        assert samples_of(quick, job, little, devices.find("cpu")) == 64
        assert watch.now == pytest.approx(0.2, abs=0.06)
    finally:
        done.set()


class StandInGraph:
    """What ``torch.cuda.CUDAGraph`` is to its users: work that runs while it is captured is done at each replay."""

    def capture_begin(self) -> None:
        """Nothing to do: the tests' captured work has no effect of its own."""

    def capture_end(self) -> None:
        """Nothing to do."""

    def replay(self) -> None:
        """Nothing to do."""


def test_samples_of_a_cuda_graph_count_at_each_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches of 16 before the capture, 16 in it, and six replays: 32 + 6 * 16; of a second graph 3 samples, twice."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", StandInGraph)
    own = (StandInGraph.capture_begin, StandInGraph.capture_end, StandInGraph.replay)

    def graphed(model: Any, data: Any) -> None:
        images, _ = data[slice(0, 16)]
        for _ in range(2):
            model(images)
        one, other = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        for graph, inputs in ((one, images), (other, images[:3])):
            graph.capture_begin()
            model(inputs)
            graph.capture_end()
        for graph in [one] * 6 + [other] * 2:
            graph.replay()

    job = training.task(TASK)
    assert samples_of(graphed, job, Data(*job.train[slice(0, 32)]), devices.find("cpu")) == 32 + 6 * 16 + 2 * 3
    assert (StandInGraph.capture_begin, StandInGraph.capture_end, StandInGraph.replay) == own


def graphed_callables(model: Any, data: Any) -> None:
    """Make CUDA graphs of a model, which warms up three times by itself, and take four batches through them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = data[slice(0, 16)][0].to(device)
    torch.cuda.make_graphed_callables(model.to(device), (inputs,))
    for _ in range(4):
        model(inputs).sum().backward()


def test_a_model_made_of_cuda_graphs_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own function, which refuses a module with hooks, on graphs that stand in: 3 * 16 in warming up, and 4 * 16, each once."""

    @contextlib.contextmanager
    def capture(graph: StandInGraph, **named: Any) -> Any:
        graph.capture_begin()
        yield
        graph.capture_end()

    monkeypatch.setattr(torch.cuda.graphs, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name, one in {
        "CUDAGraph": StandInGraph,
        "graph": capture,
        "synchronize": lambda: None,
        "Stream": lambda: None,
        "stream": lambda stream: contextlib.nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, one)
    job = training.task(TASK)
    assert samples_of(graphed_callables, job, Data(*job.train[slice(0, 32)]), devices.find("cpu")) == 3 * 16 + 4 * 16


def test_a_call_is_over_when_the_device_is() -> None:
    """The script returns, then the device is waited for, then the call is over."""
    seen: list[str] = []
    where = types.SimpleNamespace(torch_type="cpu", kind="cpu", index=0, is_cpu=True, synchronize=lambda: seen.append("waited"))
    one = _scripts._Script("it", lambda model, data: seen.append("returned"), training.task(TASK), where)  # type: ignore[arg-type]
    one._call(None, Data(torch.zeros(2), torch.zeros(2)))  # type: ignore[arg-type]
    assert seen == ["returned", "waited"]


@pytest.mark.gpu
def test_a_model_made_of_cuda_graphs_is_counted_on_a_gpu() -> None:
    """The same on a GPU, with real graphs."""
    job = training.task("prose-transformer")  # needs no scikit-learn
    assert samples_of(graphed_callables, job, Data(*job.train[slice(0, 32)]), devices.find("cuda")) == 3 * 16 + 4 * 16


@pytest.mark.parametrize("compiled", [False, True])
def test_counting_leaves_the_model_as_it_was(compiled: bool) -> None:
    """A compiled model is counted as well; afterwards a model has its own class, and what enters it is counted no more."""
    model = kept = torch.nn.Linear(4, 2)
    if compiled:
        model = torch.compile(kept, backend="eager")  # type: ignore[assignment]
    with _counting(model) as seen:
        model(torch.ones(3, 4))
        with torch.no_grad():
            model(torch.ones(5, 4))
        assert isinstance(kept, torch.nn.Linear)
        assert not kept._forward_pre_hooks
        assert not kept._forward_hooks
    model(torch.ones(7, 4))
    assert seen == [3]
    assert type(kept) is torch.nn.Linear


@pytest.mark.parametrize(
    ("after", "options", "words"),
    [
        (5, {}, "after is 5"),
        (lambda model, data: None, {}, "took no sample through the model"),
        (lambda model, data: model(data), {}, "script raised TypeError|script raised AttributeError"),
        (plain, {"items": 0}, "items is 0"),
        (plain, {"seeds": 0}, "seeds is 0"),
        (plain, {"deadline": -1}, "deadline is -1"),
        (plain, {"deadline": 0}, "deadline is 0; expected a number above 0"),
        (plain, {"threads": "two"}, "threads is 'two'"),
    ],
)
def test_what_cannot_be_compared(after: Any, options: Any, words: str) -> None:
    """One sentence."""
    with pytest.raises(InputError, match=words):
        training.compare_scripts(quick, after, TASK, **{"items": 16, "seeds": 1, "device": "cpu", **options})


@pytest.mark.parametrize("kind", ["md", "html"])
def test_the_page_has_machine_techniques_intervals_accuracy_and_badges(found: ScriptsResult, tmp_path: Path, kind: str) -> None:
    """One file with all of it; text is escaped; nothing else is left in the folder."""
    ladder = training.ladder(TASK, ["waits", "graph"], device="cpu", seeds=1, samples=320, turns=20)
    page = training.speedup_report(tmp_path / f"page.{kind}", ladder, found, title="A <b> & more")
    text = page.read_text()
    for words in (
        ladder.environment.device,
        "fewer waits",
        str(ladder.together),
        str(found.gain),
        "MEASURED",
        "MODELLED",
        "CUDA graph",
        "points",
    ):
        assert words in text
    assert ("A &lt;b&gt; &amp; more" in text) == (kind == "html")
    assert [file.name for file in tmp_path.iterdir()] == [f"page.{kind}"]


def test_a_page_may_go_into_the_home(found: ScriptsResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook no shell writes the ~ out."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert training.speedup_report("~/page.md", found) == tmp_path / "page.md"
    assert (tmp_path / "page.md").is_file()


def test_a_page_is_whole_or_not_there(found: ScriptsResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves the old page as it was; another ending, no result and junk are refused."""
    page = training.speedup_report(tmp_path / "page.md", found)
    before = page.read_text()

    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_files, "write_atomically", full)
    with pytest.raises(InputError, match="could not be written"):
        training.speedup_report(page, found, title="new")
    assert page.read_text() == before
    for arguments, words in (
        (("page.txt", found), r"\.md or \.html"),
        (("page.md",), "no result"),
        (("page.md", 5), "5 was given"),
        ((3, found), "path is 3"),
    ):
        with pytest.raises(InputError, match=words):
            training.speedup_report(*arguments)
