"""A wish to stop: what each rank is told before each step, and what becomes of the asking."""

from __future__ import annotations

import datetime
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from gpulab.parallel import _stop
from gpulab.parallel._stop import Agreed, Wish

HERE = (socket.gethostname(),) * 2


class Store:
    """The store at which ranks meet, with a log of what was set and for what somebody waited how long."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.waited: list[tuple[list[str], datetime.timedelta]] = []

    def set(self, key: str, value: str) -> None:
        """Keep a word."""
        self.kept[key] = value.encode()

    def wait(self, keys: list[str], timeout: datetime.timedelta) -> None:
        """Note the wait."""
        self.waited.append((keys, timeout))

    def get(self, key: str) -> bytes:
        """Return the word."""
        return self.kept[key]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    """The default store of this process."""
    made = Store()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: made)
    return made


def rank_of(size: int, rank: int, asked: Wish | None, monkeypatch: pytest.MonkeyPatch) -> Agreed:
    """What one of so many ranks asks."""
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "get_world_size", lambda: size)
    return Agreed(asked)


def test_ranks_take_one_more_step_after_the_wish_and_all_the_same(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 sees the wish before step 2, has said "go" for it already, and says "stop" for step 3; rank 1 hears just that."""
    asked = Wish(str(tmp_path / "stop"), "k", 7.0)
    zero, one = (rank_of(2, rank, asked, monkeypatch) for rank in (0, 1))
    assert [zero.go(0), zero.go(1)] == [True, True]
    (tmp_path / "stop").touch()
    assert [zero.go(2), zero.go(3)] == [True, False]
    assert {key: value for key, value in store.kept.items() if key != "k-4"} == {"k-1": b"go", "k-2": b"go", "k-3": b"stop"}
    assert [one.go(step) for step in range(4)] == [True, True, True, False]
    # Nobody has said anything of the first step; for each later one a rank waits as long as in a collective.
    assert store.waited == [([f"k-{step}"], datetime.timedelta(seconds=7)) for step in (1, 2, 3)]


def test_without_a_wish_and_without_others_nobody_is_told(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank alone hears its own word a step later and stores none; where nobody may wish, every step is taken."""
    alone = rank_of(1, 0, Wish(str(tmp_path / "stop"), "k", 1.0), monkeypatch)
    (tmp_path / "stop").touch()
    assert [alone.go(0), alone.go(1)] == [True, False]
    for rank in (0, 1):
        assert all(rank_of(2, rank, None, monkeypatch).go(step) for step in range(3))
    assert store.kept == {}
    assert store.waited == []


def _ranks(hosts: tuple[str, ...], interrupted: threading.Event) -> Any:
    return SimpleNamespace(hosts=hosts, timeout_seconds=3.0, interrupt=interrupted.set)


@pytest.mark.parametrize(("hosts", "far"), [(HERE, False), ((*HERE, "gpulab-elsewhere"), True)])
def test_the_answer_becomes_a_file_and_ranks_elsewhere_are_interrupted(hosts: tuple[str, ...], far: bool) -> None:
    """The file appears when the answer turns to yes; ranks of another machine, who cannot see it, are interrupted; nothing is left."""
    answer, interrupted = threading.Event(), threading.Event()
    with _stop.wish(answer.is_set, _ranks(hosts, interrupted)) as made:
        assert made is not None
        assert made.timeout_seconds == 3.0
        assert not made.made
        answer.set()
        watcher = next(thread for thread in threading.enumerate() if thread.name == "gpulab-stop")
        watcher.join(5)
        assert made.made
        assert interrupted.is_set() is far
    assert not Path(made.path).parent.exists()


def test_nobody_asks_after_the_block() -> None:
    """When the block is left, the thread that asked has ended, though the answer was no to the last."""
    with _stop.wish(lambda: False, _ranks(HERE, threading.Event())):
        watcher = next(thread for thread in threading.enumerate() if thread.name == "gpulab-stop")
        assert watcher.daemon  # it must not hold up an interpreter that wants to end
    assert not watcher.is_alive()


def test_the_block_waits_for_an_answer_that_is_being_given() -> None:
    """A ``stop`` that is in the middle of its answer is let finish, and what it raises then still comes out."""
    entered, leave = threading.Event(), threading.Event()

    def slow() -> bool:
        entered.set()
        leave.wait(5)
        raise ValueError("late")

    def block() -> None:
        with _stop.wish(slow, _ranks(HERE, threading.Event())):
            entered.wait(5)
            threading.Timer(0.05, leave.set).start()

    with pytest.raises(ValueError, match="late"):
        block()


def test_a_failing_answer_is_a_wish_and_comes_out_where_the_block_ends() -> None:
    """The ranks stop for it, and its owner gets the very error."""
    seen: list[bool] = []

    def block() -> None:
        with _stop.wish(lambda: bool(1 / 0), _ranks(HERE, threading.Event())) as made:
            for thread in threading.enumerate():
                if thread.name == "gpulab-stop":
                    thread.join(5)
            assert made is not None
            seen.append(made.made)

    with pytest.raises(ZeroDivisionError):
        block()
    assert seen == [True]


def test_where_nobody_is_asked_there_is_no_wish() -> None:
    """No thread, no file."""
    with _stop.wish(None, _ranks(HERE, threading.Event())) as made:
        assert made is None
        assert all(thread.name != "gpulab-stop" for thread in threading.enumerate())
