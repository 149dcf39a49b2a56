"""The recorder's own ranks: what a device is offered, real steps and collectives, ends without orphans, and the way back to a result."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpulab as gl
from gpulab import devices, recorder
from gpulab.devices import Device
from gpulab.errors import DeviceError, InputError
from gpulab.evidence import Badge
from gpulab.parallel import _scaling_step
from gpulab.recorder import _parallel, _rank_process
from gpulab.recorder._rank_process import RankProcesses
from gpulab.recordings import Entry, Recording, Timing

TIGHT = 8  # two deadlines of the machinery itself are far longer; a test that waits for them is wrong


@pytest.fixture(scope="module", name="two")
def _two() -> Iterator[RankProcesses]:
    """Two ranks for this file."""
    with RankProcesses(2) as started:
        yield started


def _gone(pids: tuple[int, ...]) -> bool:
    return not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)


def test_what_a_device_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU has one and two ranks in both modes, and collectives of two; four GPUs have 1, 2, 4 and NCCL; MPS has nothing."""
    cpu = devices.find("cpu")
    monkeypatch.setattr(_parallel.devices, "environment", lambda device: type("E", (), {"cores": 16})())
    steps = [(c.params["mode"], c.params["ranks"]) for c in _parallel._scaling_cases(cpu) if c.params["model"] == "mlp"]
    assert steps == [("strong", 1), ("strong", 2), ("weak", 1), ("weak", 2)]
    assert {c.params["ranks"] for c in _parallel._collective_cases(cpu)} == {2}
    assert {c.params["collective"] for c in _parallel._collective_cases(cpu)} == set(_parallel.COLLECTIVES)
    monkeypatch.setattr(_parallel.devices, "environment", lambda device: type("E", (), {"cores": 1})())
    assert {c.params["ranks"] for c in _parallel._scaling_cases(cpu)} == {1}
    assert list(_parallel._collective_cases(cpu)) == []
    monkeypatch.setattr(_parallel.devices, "available", lambda: [Device("cpu"), *(Device("cuda", k) for k in range(4))])
    assert _parallel.world_of(Device("cuda", 0)) == (4, "nccl")
    assert sorted({c.params["ranks"] for c in _parallel._scaling_cases(Device("cuda", 0))}) == [1, 2, 4]
    assert list(_parallel._scaling_cases(Device("mps"))) == []
    assert {"data-parallel scaling", "collectives"} <= {e.name for e in recorder.experiments()}


def test_parameter_bytes_by_hand() -> None:
    """Of the perceptron 256-512-512-10 in float32, counted without making it."""
    assert _parallel._parameter_bytes("mlp") == 4 * (256 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10)


def test_ranks_answer_in_order(two: RankProcesses) -> None:
    """A function runs on each rank, one result a rank in rank order, and a collective joins them."""
    assert two.run(os.getpid) == list(two.pids)
    assert two.run(_scaling_step.facts)[1]["threads"] == 1
    times = two.run(_scaling_step.collective_times, "all_reduce", 4096, 3)
    assert [len(mine) for mine in times] == [3, 3]
    assert all(seconds > 0 for seconds in _scaling_step.call_seconds(times))


@pytest.mark.parametrize("name", _parallel.COLLECTIVES)
def test_each_collective_runs(two: RankProcesses, name: str) -> None:
    """Each collective of the experiment works with gloo, also where the bytes do not divide by the ranks."""
    seconds = _scaling_step.call_seconds(two.run(_scaling_step.collective_times, name, 1030, 2))
    assert len(seconds) == 2
    assert min(seconds) > 0


def test_a_case_is_timed(two: RankProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step on two ranks is a measurement of real steps with its first call apart; a collective carries its bytes."""
    monkeypatch.setattr(_parallel.SESSION, "_ranks", two)
    monkeypatch.setattr(_parallel.SESSION, "_made", (2, "gloo"))
    monkeypatch.setattr(_parallel, "_IDLE_SECONDS", 3600.0)
    small = _scaling_step.StepModel("a small perceptron", functools.partial(gl.networks.mlp, 8, 16, 10), (8,), batch=12)
    monkeypatch.setattr(_parallel, "MODELS", {"small": small})
    _parallel._parameter_bytes.cache_clear()
    case = _parallel._step_case(devices.find("cpu"), "small", "strong", 2, 2, "gloo", 0)
    assert dict(case.params) == {"model": "small", "mode": "strong", "ranks": 2, "batch": 12, "parameter_bytes": 4 * (144 + 272 + 170)}
    m = case.time(0.02)
    assert m.median_seconds > 0
    assert m.first_call_seconds > 0
    assert m.evidence.samples == len(m.samples_seconds) >= 3
    m = _parallel._collective_case(devices.find("cpu"), "all_reduce", 8192, 2, "gloo", 0).time(0.02)
    assert m.bytes_per_second == pytest.approx(8192 / m.median_seconds)
    assert _parallel.SESSION._timer is not None
    _parallel.SESSION._timer.cancel()
    _parallel._parameter_bytes.cache_clear()


class Played:
    """Ranks that note what they are asked, and answer with what the next turn of each function is given here."""

    def __init__(self, answers: dict[Any, Iterator[Any]]) -> None:
        self.answers, self.asked = answers, list[tuple[Any, ...]]()

    def run(self, function: Any, *given: Any) -> Any:
        """Answer one call."""
        self.asked.append((function, *given))
        return next(self.answers.get(function, itertools.repeat(None)))

    @contextlib.contextmanager
    def lent(self, n: int, backend: str) -> Iterator[Played]:
        """Stand for the session's ranks."""
        self.asked.append((n, backend))
        yield self


@pytest.mark.parametrize(
    ("device", "mode", "each"), [(Device("cpu"), "strong", 1), (Device("cpu"), "weak", 1), (Device("cuda", 0), "weak", 10)]
)
def test_a_step_by_hand(monkeypatch: pytest.MonkeyPatch, device: Device, mode: str, each: int) -> None:
    """Two of three ranks step, and the slower one counts; a turn takes four, sampled until there are three; the job ends at the end."""
    step = _scaling_step
    seconds = iter([[1.0, 5.0, 3.0, 4.0], [2.0, 4.0, 3.0, 5.0], [99.0] * 4])
    turns = [SimpleNamespace(seconds={2: mine}) for mine in seconds]
    ranks = Played({step.first_seconds: iter([[7.0, 8.0, 9.0]]), step.turns: iter([turns])})
    monkeypatch.setattr(_parallel, "SESSION", SimpleNamespace(ranks=ranks.lent))
    here = gl.devices.environment("cpu")
    monkeypatch.setattr(_parallel.devices, "environment", lambda device: here)
    monkeypatch.setattr(Device, "name", "a processor")
    m = _parallel._step_case(device, "mlp", mode, 2, 3, "gloo", 0).time(0.0)
    (_, token, spec), model = ranks.asked[1], step.MODELS["mlp"]
    assert spec == step.StepSpec(model, model.batch, mode == "weak", (2,), steps_a_sample=each)
    assert ranks.asked == [
        (3, "gloo"), (step.begin, token, spec), (step.first_seconds, token), (step.turns, token, 1, 4), (step.end, token),
    ]  # fmt: skip
    assert (m.label, m.samples_seconds.tolist()) == (f"{mode} scaling, mlp, 2 ranks", [2.0, 4.0, 3.0, 5.0])
    assert (m.median_seconds, m.launch_seconds, m.first_call_seconds, m.calls_per_sample) == (3.5, 3.5, 7.0, each)
    assert (m.flops, m.nbytes, m.with_transfer_seconds, m.evidence.samples) == (None, None, None, 4)
    assert (m.interval_seconds is None) == m.has_note("no-interval")


def test_a_collective_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call apart, then turns of eight until there are three and the time is up; a call is over when the last rank is."""
    clock = iter([0.0, 1.0, 2.0, 3.0])
    monkeypatch.setattr(_parallel, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    times = [[[9.0], [8.0]], [[1.0], [2.0]], [[4.0], [3.0]], [[5.0, 6.0], [1.0, 1.0]], [[7.0], [7.0]]]
    ranks = Played({_scaling_step.collective_times: iter(times)})
    monkeypatch.setattr(_parallel, "SESSION", SimpleNamespace(ranks=ranks.lent))
    monkeypatch.setattr(_scaling_step, "call_seconds", lambda of_ranks: np.max(of_ranks, axis=0).tolist())
    m = _parallel._collective_case(Device("cpu"), "all_gather", 4096, 2, "gloo", 0).time(2.0)
    asked = [(_scaling_step.collective_times, "all_gather", 4096, repeats) for repeats in (1, 8, 8, 8, 8)]
    assert ranks.asked == [(2, "gloo"), *asked]
    assert (m.label, m.first_call_seconds) == ("all_gather of 4096 bytes, 2 ranks", 9.0)
    assert m.samples_seconds.tolist() == [2.0, 4.0, 5.0, 6.0, 7.0]
    assert (m.nbytes, m.calls_per_sample, m.median_seconds) == (4096.0, 1, 5.0)


def test_ranks_are_kept_for_the_next_case_and_end_after_three_idle_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started once for as many of one kind; anew where the number is another, where they died, and after a case that failed."""
    log: list[Any] = []

    class Ranks:
        def __init__(self, n: int, backend: str) -> None:
            self.pids: tuple[int, ...] = (n,)
            log.append((n, backend))

        def close(self) -> None:
            log.append(f"end of {self.pids[0] if self.pids else 'dead'}")

    class Timer:
        def __init__(self, seconds: float, function: Any) -> None:
            self.seconds, self.function, self.daemon = seconds, function, False

        def start(self) -> None:
            log.append((self.seconds, self.daemon))

        def cancel(self) -> None:
            log.append("cancel")

    monkeypatch.setattr(_parallel, "RankProcesses", Ranks)
    monkeypatch.setattr(_parallel.threading, "Timer", Timer)
    session = _parallel._Session()

    def told(n: int) -> list[Any]:
        log.clear()
        with session.ranks(n, "gloo") as lent:
            session.close()  # not while a case uses them
            lent.pids = () if n == 4 else lent.pids
        return log.copy()

    idle = (3.0, True)
    assert told(2) == [(2, "gloo"), idle]
    assert told(2) == ["cancel", idle]
    assert told(4) == ["cancel", "end of 2", (4, "gloo"), idle]
    assert told(4) == ["cancel", "end of dead", (4, "gloo"), idle]
    log.clear()
    with pytest.raises(KeyboardInterrupt), session.ranks(2, "nccl"):
        raise KeyboardInterrupt
    assert log == ["cancel", "end of dead", (2, "nccl"), "end of 2"]
    assert told(2)[-2:] == [(2, "gloo"), idle]
    assert session._timer is not None
    session._timer.function()
    session.close()
    assert log[-1] == "end of 2"
    assert log.count("end of 2") == 1


def test_two_thousand_turns_are_the_most() -> None:
    """Where a turn brings nothing, or the time is never up; three samples are enough where it is up at once."""
    turns: list[int] = []
    assert len(_parallel._until(0.0, lambda: turns.append(1) or [])) == 0
    assert len(turns) == 2000
    assert _parallel._until(0.0, lambda: [1.0]).tolist() == [1.0] * 3
    assert _parallel._until(0.0, lambda: [1.0, 2.0]).tolist() == [1.0, 2.0] * 2


def test_the_terminals_ctrl_c_is_the_recorders_alone(two: RankProcesses) -> None:
    """A terminal sends SIGINT to the whole group in front of it: the first one lets the case in flight end, so no rank is in that group."""
    assert len(two.pids) == 2
    assert all(os.getpgid(pid) != os.getpgrp() for pid in two.pids)


def test_failures_end_all_ranks() -> None:
    """A rank that raises is named with its words, and none is left; ranks that are closed leave nothing either."""
    ranks = RankProcesses(1)
    pids = ranks.pids
    with pytest.raises(DeviceError, match=r"rank 0 failed in turns: KeyError"):
        ranks.run(_scaling_step.turns, "no such job", 1, 1)
    assert ranks.pids == ()
    assert _gone(pids)


def test_a_dead_rank_is_named_at_once(two: RankProcesses) -> None:
    """A rank that is killed is named, within seconds and not after the timeout of a collective; the file's ranks end here."""
    pids, begin = two.pids, time.monotonic()
    os.kill(pids[1], 9)
    with pytest.raises(DeviceError, match="rank 1 died"):
        two.run(_scaling_step.collective_times, "all_reduce", 4096, 50)
    assert time.monotonic() - begin < TIGHT
    assert _gone(pids)


def test_a_dead_rank_is_named_where_anothers_error_came_first() -> None:
    """The survivor's broken connection is read before the death, which shows a moment later; whoever died is named."""
    ranks, deaths = RankProcesses(2), iter([None, None, None, None, None, -9])
    answered = ranks._processes[0]

    class Dying:
        """Shows that it ended at the sixth look."""

        def poll(self) -> int | None:
            return next(deaths)

        def __getattr__(self, name: str) -> object:
            return getattr(dying, name)

    dying = ranks._processes[1]
    ranks._processes[1] = Dying()  # type: ignore[call-overload]
    with pytest.raises(DeviceError, match="rank 1 died in turns"):
        ranks.run(_scaling_step.turns, "no such job", 1, 1)
    assert answered.poll() is not None


def test_a_recorder_that_was_held_up_still_looks_for_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its sleeps takes 0.6 s in place of 10 ms, and the death shows at the sixth look; where nobody dies, fifty are enough."""
    clock, deaths = [100.0], iter([None] * 5 + [-9])
    stalled = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: clock.__setitem__(0, clock[0] + 0.6))
    monkeypatch.setattr(_rank_process, "time", stalled)
    ranks = RankProcesses.__new__(RankProcesses)  # no process is started: what is looked at is made up
    ranks._processes = [SimpleNamespace(poll=lambda: None), SimpleNamespace(poll=lambda: next(deaths))]  # type: ignore[list-item]
    assert ranks._dead() == 1
    ranks._processes.pop()
    begin = clock[0]
    assert ranks._dead() is None
    assert clock[0] - begin == pytest.approx(50 * 0.6)


def test_ranks_end_with_their_recorder() -> None:
    """A recorder that is killed leaves no rank behind: their pipes close."""
    code = (
        "import sys, time\nfrom gpulab.recorder._rank_process import RankProcesses\nr = RankProcesses(1)\n"
        "print(*r.pids, flush=True)\ntime.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        pids = tuple(map(int, process.stdout.readline().split()))
        assert len(pids) == 1
        assert not _gone(pids)
    finally:
        process.kill()
        process.wait()
    until = time.monotonic() + TIGHT
    while not _gone(pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert _gone(pids)


def test_a_bare_machine_needs_no_ipyparallel() -> None:
    """The recorder and its parallel cases load where ipyparallel and cloudpickle are missing."""
    code = (
        "import sys\nsys.modules['ipyparallel'] = sys.modules['cloudpickle'] = sys.modules['zmq'] = None\n"
        "from gpulab import devices, recorder\n"
        "print(len(list(recorder.experiments(['data-parallel scaling'])[0].cases(devices.find('cpu')))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 4


# The way back.


def _timing(median: float) -> Timing:
    samples = np.array([0.99 * median, median, 1.01 * median])
    return Timing(samples, 3, median, (0.99 * median, 1.01 * median), median, median, None, 1, None, None, ())


def _recording(kind: str, entries: list[Entry]) -> Recording:
    environment = gl.evidence.Environment("2026-01-02T03:04:05+00:00", "Linux", "a CPU", 2, 2**30, "made-up GPU", kind, None, "3.11", {})
    return Recording("made-up", environment, {}, {}, "0.1.0", tuple(entries))


def _steps(mode: str, medians: dict[int, float]) -> list[Entry]:
    common = {"model": "mlp", "mode": mode, "batch": 240, "parameter_bytes": 4_000_000}
    return [Entry("data-parallel scaling", {**common, "ranks": k}, _timing(t)) for k, t in medians.items()]


def test_recorded_scaling_by_hand() -> None:
    """100, 55 and 35 ms on 1, 2 and 4 ranks: speed-ups 1.82 and 2.86; the ratio's interval is 1.01 / 0.99 to the power 1 / sqrt 2."""
    reduces = [
        Entry("collectives", {"collective": "all_reduce", "nbytes": n, "ranks": 4}, _timing(6 * (50e-6 + n / 4 / 1e9)))
        for n in (4096, 65536, 2**20, 2**24)
    ]
    found = gl.parallel.recorded_scaling(_recording("cuda", [*_steps("strong", {1: 0.1, 2: 0.055, 4: 0.035}), *reduces]))
    assert found is not None
    assert [p.speedup for p in found.points] == pytest.approx([1.0, 0.1 / 0.055, 0.1 / 0.035])
    low, high = found.at(4).speedup_interval or (0.0, 0.0)
    assert np.log(high / found.at(4).speedup) == pytest.approx(0.01 * np.sqrt(2), rel=0.01)
    assert np.log(found.at(4).speedup / low) == pytest.approx(0.01 * np.sqrt(2), rel=0.01)
    assert found.at(4).predicted_seconds == pytest.approx(0.025 + 6 * (50e-6 + 1e6 / 1e9), rel=0.01)
    assert found.evidence.badge is Badge.RECORDED
    assert (found.processors, found.at(2).batch) == (4, 120)


def test_what_was_not_recorded_is_none() -> None:
    """Without such entries there is nothing to show; weak scaling counts each rank's samples; no link without recorded collectives."""
    assert gl.parallel.recorded_scaling(_recording("cuda", [])) is None
    recording = _recording("cuda", _steps("weak", {1: 0.1, 2: 0.125}))
    assert gl.parallel.recorded_scaling(recording) is None
    assert gl.parallel.recorded_scaling(recording, "cnn", "weak") is None
    (later,) = [dataclasses.replace(one, params={**one.params, "model": "of-a-later-version"}) for one in _steps("weak", {1: 0.1})]
    assert gl.parallel.recorded_scaling(_recording("cuda", [later]), mode="weak") is None
    weak = gl.parallel.recorded_scaling(_recording("cuda", [later, *recording.entries]), mode="weak")
    assert weak is not None
    assert weak.at(2).speedup == pytest.approx(1.6)
    assert weak.prediction is None
    with pytest.raises(InputError, match="no recording"):
        gl.parallel.recorded_scaling("nvidia-h200")  # type: ignore[arg-type]
