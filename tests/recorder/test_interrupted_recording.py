"""A recording that is interrupted at random moments and continued: nothing lost, nothing twice, never half a file."""

from __future__ import annotations

import itertools
import pathlib
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from test_recorder import a_measurement

from gpulab import recorder, recordings
from gpulab.recorder import Case, Experiment, _registry, _run
from gpulab.timing import Measurement

CASES, INTERRUPTS = 60, 20
pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no signal of the user's own")


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raise KeyboardInterrupt in the block at a moment that nothing in it chooses, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    timer = threading.Timer(seconds, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # one that is on its way is too late
        timer.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An experiment of 60 cases of 2 ms each, and the log of those that were timed to their end."""
    log: list[int] = []

    def case(number: int) -> Case:
        def measure(deadline_seconds: float) -> Measurement:
            time.sleep(0.002)
            log.append(number)
            return a_measurement(median=(number + 1) * 1e-3)

        return Case({"case": number}, measure)

    monkeypatch.setattr(_registry, "_REGISTRY", {})
    recorder.register(Experiment("many", "sixty short cases", lambda device: [case(k) for k in range(CASES)]))
    return log


def kept(path: pathlib.Path) -> dict[str, tuple[float, ...]]:
    """The visits that the file holds, by case."""
    if not path.exists():
        return {}
    return {e.key: e.timing.visits_seconds or (e.timing.median_seconds,) for e in recordings.read(path).entries if e.timing is not None}


def test_an_interrupt_within_the_last_save_keeps_what_was_timed(
    timed: list[int], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands, so a run saves after its first case and at its end: the second save is cut off, and all sixty are kept."""
    saves, write = itertools.count(1), _run.write

    def cut_off(*given: Any) -> None:
        if next(saves) == 2:
            raise KeyboardInterrupt
        write(*given)

    monkeypatch.setattr(_run, "write", cut_off)
    with pytest.raises(KeyboardInterrupt):
        recorder.record(tmp_path / "r.json", device="cpu", only=["many"], visits=1, clock=lambda: 100.0)
    assert (len(timed), next(saves)) == (CASES, 4)
    assert len(kept(tmp_path / "r.json")) == CASES


@pytest.mark.parametrize("visits", [1, 3])
def test_twenty_random_interrupts(visits: int, timed: list[int], tmp_path: pathlib.Path) -> None:
    """The file is whole after each one and never has less; what it has is not timed again; at the end it has every visit, each once."""
    assert threading.current_thread() is threading.main_thread()
    options = {"device": "cpu", "only": ["many"], "minutes": 5, "visits": visits}
    recorder.record(tmp_path / "first.json", **options)  # loads the libraries, whose imports must not be cut
    timed.clear()
    chance, path, seen, interrupts = random.Random(5), tmp_path / "r.json", {}, 0
    while interrupts < INTERRUPTS and sum(map(len, seen.values())) < visits * CASES:
        before, done = dict(seen), len(timed)
        try:
            with interrupted_after(chance.uniform(0.003, 0.05)):
                recorder.record(path, **options)
        except KeyboardInterrupt:
            interrupts += 1
        seen = kept(path)
        assert all(seen[key][: len(had)] == had for key, had in before.items()), "nothing that was recorded is lost or changed"
        again = {f"many case={number}" for number in timed[done:]} & {key for key, had in before.items() if len(had) == visits}
        assert not again, "what the file has is not timed again"
    assert interrupts >= 5, "the machine was too fast for the test to say anything"
    recorder.record(path, **options)
    assert kept(path) == {f"many case={k}": (pytest.approx((k + 1) * 1e-3),) * visits for k in range(CASES)}
    assert len(timed) <= visits * CASES + interrupts, "at most the visit in flight is made once more"
    left = {found.name for found in tmp_path.iterdir() if not found.name.endswith(".lock")}
    assert left == {"first.json", "r.json"}, "no half-written file"
