"""A call that waits for ranks, with ranks and a clock made by hand: when it is sure, how long it waits, and what it says then."""

from __future__ import annotations

import concurrent.futures
import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest
import torch

from gpulab.errors import CollectiveTimeoutError, InputError, RankDiedError, RankError, StoppedError
from gpulab.parallel import CollectiveCall, _call, _payload
from gpulab.parallel._call import Call, show_printed
from gpulab.parallel._outcome import Outcome, Sight, State

TICK = 0.05  # of the clock by hand, at each look


def collective(number: int = 0, name: str = "all_reduce", group: tuple[int, ...] = (0, 1)) -> CollectiveCall:
    """A collective in flight."""
    return CollectiveCall(number, name, f"c10d.{name}_", "float32", 4000, 4000, group, None, 0.0, None, "", 0.0)


def outcome(rank: int, state: State = "returned", calls: Sequence[CollectiveCall] = (), **changed: Any) -> Outcome:
    """What a rank answers."""
    sight = Sight(rank, state, len(calls), changed.pop("collective", None), changed.pop("where", ""), changed.pop("error", ""))
    return Outcome(sight, b"", changed.pop("pickled", b""), changed.pop("trace", ""), changed.pop("printed", ""), tuple(calls))


class Job(concurrent.futures.Future):
    """A rank's answer, as ipyparallel gives it: a future with what the rank tells meanwhile."""

    data: Any = None

    def get(self, seconds: float) -> Any:
        """Return what came, or raise it; who asks knows that it is there, and waits a second for it at most."""
        assert seconds <= 1.0
        return self.result(seconds)


class Machine:
    """Engines, their answers at set times, and the clock, which runs only while somebody waits."""

    def __init__(self, n: int) -> None:
        self.now, self.waits, self.looks = 100.0, 0, 0
        self.interrupts: list[tuple[float, list[int]]] = []
        self.ids, self.client = tuple(range(n)), self
        self.jobs = {engine: Job() for engine in self.ids}
        self.dead: dict[int, str] = {}
        self.plan: list[tuple[float, Callable[[], object]]] = []
        self.on_interrupt: Callable[[int], object] = lambda rank: self.answers(rank, outcome(rank, "interrupted"))

    def __getitem__(self, engine: int) -> Any:
        return self

    def apply_async(self, function: object, payload: bytes) -> Job:
        """Return the next rank's job."""
        self.asked = getattr(self, "asked", -1) + 1
        return self.jobs[self.asked]

    def deaths(self) -> dict[int, str]:
        """Return who has ended."""
        self.looks += 1
        assert self.looks < 400, "somebody looks all the time, and waits for nothing"
        return dict(self.dead)

    def interrupt(self, indices: Sequence[int]) -> None:
        """Note when whom."""
        self.interrupts.append((round(self.now - 100.0, 2), list(indices)))
        for rank in indices:
            self.on_interrupt(rank)

    def answers(self, rank: int, answer: Outcome | Exception) -> None:
        """Let a rank answer now."""
        if isinstance(answer, Exception):
            self.jobs[rank].set_exception(answer)
        else:
            self.jobs[rank].set_result(cloudpickle.dumps(answer))

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        """Let something happen so long after the call began."""
        self.plan.append((100.0 + seconds, action))

    def pass_time(self, seconds: float) -> None:
        """Let what is due in these seconds happen."""
        self.waits += 1
        self.now += seconds
        due, self.plan = [one for one in self.plan if one[0] <= self.now + 1e-9], [one for one in self.plan if one[0] > self.now + 1e-9]
        for _, action in due:
            action()

    def call(self, limit_seconds: float | None = None, timeout_seconds: float = 20.0) -> Call:
        """Begin the call."""
        return Call(self, b"", timeout_seconds, limit_seconds)  # type: ignore[arg-type]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Two ranks."""
    made = Machine(2)

    class Clock:
        monotonic = staticmethod(lambda: made.now)
        sleep = staticmethod(made.pass_time)

    monkeypatch.setattr(_call, "time", Clock)
    monkeypatch.setattr(concurrent.futures, "wait", lambda jobs, timeout: made.pass_time(timeout))
    return made


def waited(machine: Machine, call: Call, stop: threading.Event | None = None) -> tuple[RankError | None, float]:
    """Wait for a call; return what went wrong, and how long it took by the clock."""
    error = call.wait(stop or threading.Event())
    return error, round(machine.now - 100.0, 2)


def test_answers_are_taken_as_they_come_and_the_core_is_left_to_the_ranks(machine: Machine) -> None:
    """Rank 1 answers at 1 s, rank 0 at 2 s: nothing is wrong, nobody is interrupted, and between two looks a tick passes."""
    machine.at(1.0, lambda: machine.answers(1, outcome(1)))
    machine.at(2.0, lambda: machine.answers(0, outcome(0)))
    call = machine.call()
    assert call.open == [0, 1]
    assert waited(machine, call) == (None, 2.0)
    assert (sorted(call.outcomes), call.open, call.idle, call.in_step) == ([0, 1], [], True, True)
    assert machine.waits == round(2.0 / TICK)
    assert machine.interrupts == []


def test_a_raise_waits_until_the_others_stand_in_a_collective(machine: Machine) -> None:
    """Rank 1 raises at once; rank 0 works until it tells at 3 s that it stands in a sum: 0.8 s after the raise was all it had to say."""
    machine.answers(1, outcome(1, "raised", error="ValueError: bad", pickled=cloudpickle.dumps(ValueError("bad")), trace="line 7"))
    told = {"entered": 1, "collective": collective().to_dict(), "where": ""}
    machine.at(3.0, lambda: setattr(machine.jobs[0], "data", told))
    error, seconds = waited(machine, machine.call())
    assert error is not None
    assert machine.interrupts == [(3.0, [0])]
    assert seconds == pytest.approx(3.0 + 2 * TICK)  # a look at the answer, and a tick in which an interrupt that crossed with it arrives
    assert (type(error), error.ranks, error.waiting) == (RankError, (1,), (0,))
    assert "rank 0 waited in all_reduce of 3.91 KiB in float32 among ranks 0, 1 (its 1st collective" in str(error)
    assert isinstance(error.__cause__, ValueError)
    assert error.__cause__.__notes__ == ["On rank 1:\nline 7"]


def test_an_interrupt_that_a_function_raises_by_itself_is_its_error(machine: Machine) -> None:
    """Both ranks raise KeyboardInterrupt and nobody interrupted them: the call ends with that, and with its traceback."""
    for rank in (0, 1):
        machine.answers(
            rank, outcome(rank, "interrupted", error="KeyboardInterrupt", pickled=cloudpickle.dumps(KeyboardInterrupt()), trace="line 2")
        )
    error, _ = waited(machine, machine.call())
    assert error is not None
    assert (type(error), error.ranks, machine.interrupts) == (RankError, (0, 1), [])
    assert isinstance(error.__cause__, KeyboardInterrupt)
    assert error.__cause__.__notes__ == ["On rank 0:\nline 2"]


def test_ranks_that_stand_early_have_half_of_the_time_to_settle(machine: Machine) -> None:
    """Where the other stands in a collective from the start, it is interrupted 0.8 s after the raise; that is not told as its error."""
    machine.jobs[0].data = {"entered": 1, "collective": collective().to_dict(), "where": ""}
    machine.on_interrupt = lambda rank: machine.answers(rank, outcome(rank, "interrupted", [collective()], where="line 3 of f"))
    machine.answers(1, outcome(1, "raised", error="ValueError: bad"))
    error, _ = waited(machine, machine.call())
    assert machine.interrupts == [(0.85, [0])]
    assert error is not None
    assert "ranks" not in str(error).partition(";")[0]  # rank 1 alone is named as the one that raised
    assert error.waiting == (0,)
    assert isinstance(error.__cause__, RuntimeError)  # its own could not travel; its words did
    assert str(error.__cause__) == "ValueError: bad"


def test_a_death_is_told_within_1_7_s_whatever_the_others_do(machine: Machine) -> None:
    """Rank 1's process ends at 0.5 s, rank 0 works on and says nothing: at 2.15 s it is interrupted, and the death is told."""
    machine.at(0.5, lambda: machine.dead.update({1: "left with exit code 3"}))
    call = machine.call()
    error, _ = waited(machine, call)
    assert isinstance(error, RankDiedError)
    assert "rank 1 left with exit code 3" in str(error)
    assert machine.interrupts == [(2.15, [0])]
    assert (call.idle, call.in_step) == (False, False)


@pytest.mark.parametrize(("standing", "late"), [(True, 1.0), (True, 3.0), (False, 1.75), (False, 3.9)])
def test_a_death_that_is_heard_late_is_told_as_the_cause(machine: Machine, standing: bool, late: float) -> None:
    """Rank 1 dies; rank 0's broken sum is read at once, the guard's word only after the others had time to settle (0.85 s, or 1.65 s)."""
    machine.on_interrupt = lambda rank: None  # a dead rank answers nothing
    broken = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer"
    machine.answers(0, outcome(0, "raised", [collective()], collective=collective(), error=broken))
    machine.jobs[1].data = {"entered": 1, "collective": collective().to_dict() if standing else None, "where": "line 9 of work"}
    machine.at(late, lambda: machine.dead.update({1: "was ended by signal 9 (SIGKILL)"}))
    error, seconds = waited(machine, machine.call())
    assert isinstance(error, RankDiedError)
    assert (error.ranks, error.waiting) == ((1,), (0,))
    assert str(error).startswith("run: rank 1 was ended by signal 9 (SIGKILL)")
    assert seconds < 5.0


def test_a_rank_that_a_limit_ends_is_told_as_one_that_died(machine: Machine) -> None:
    """It answers the interrupt by ending its process: nobody is late then, and the end is what is told."""
    machine.on_interrupt = lambda rank: machine.dead.update({rank: "left with exit code 3"})
    machine.answers(0, outcome(0))
    error, _ = waited(machine, machine.call(limit_seconds=1.0))
    assert isinstance(error, RankDiedError)
    assert str(error).startswith("run: rank 1 left with exit code 3; expected it to live")


def test_an_engine_that_ipyparallel_gives_up_has_died(machine: Machine) -> None:
    """Its own error for that is a death; the reason is the guard's, where it has one, else that there was none."""
    lost = RuntimeError("gone")
    lost.ename = "EngineError"  # type: ignore[attr-defined]
    machine.answers(0, outcome(0))
    machine.answers(1, lost)
    error, _ = waited(machine, machine.call())
    assert isinstance(error, RankDiedError)
    assert "rank 1 ended without a word" in str(error)


def test_a_rank_that_cannot_take_the_call_is_told(machine: Machine) -> None:
    """Any other error of ipyparallel's comes from an engine that could not run our part; the ranks are not in step then."""
    machine.answers(0, outcome(0))
    machine.answers(1, ModuleNotFoundError("No module named 'gpulab'"))
    call = machine.call()
    error, _ = waited(machine, call)
    assert str(error).startswith("run: rank 1 could not take the call (No module named 'gpulab'")
    assert error is not None
    assert error.ranks == (1,)
    assert (call.idle, call.in_step) == (True, False)


def test_a_limit_ends_a_call_at_once(machine: Machine) -> None:
    """After 1 s the ranks that work are interrupted and named, with the line at which the interrupt met one; nobody is waited for then."""
    machine.jobs[1].data = {"entered": 0, "collective": None, "where": "line 4 of spin"}
    machine.on_interrupt = lambda rank: machine.answers(rank, outcome(rank, "interrupted", where="line 5 of spin"))
    machine.answers(0, outcome(0))
    error, seconds = waited(machine, machine.call(limit_seconds=1.0))
    assert machine.interrupts == [(1.05, [1])]
    assert seconds == pytest.approx(1.05 + 2 * TICK)
    assert str(error).startswith("run: rank 1 had not returned after 1 s (at line 5 of spin); expected all to.")
    assert error is not None
    assert error.ranks == (1,)


def test_a_rank_that_answers_no_interrupt_is_where_it_last_told(machine: Machine) -> None:
    """It hangs outside of any collective: the line is that of its last report, and one that told nothing has no line."""
    machine.jobs[1].data = {"entered": 0, "collective": None, "where": "line 4 of spin"}
    machine.on_interrupt = lambda rank: None
    machine.answers(0, outcome(0))
    call = machine.call(limit_seconds=1.0)
    assert (call._sight(1).where, call._sight(1).entered) == ("line 4 of spin", 0)
    error, _ = waited(machine, call)
    assert str(error).startswith("run: rank 1 had not returned after 1 s (at line 4 of spin); expected all to.")
    machine.jobs[1].data = {}
    assert call._sight(1) == Sight(1, "running")


def test_a_limit_holds_where_a_rank_has_raised(machine: Machine) -> None:
    """Rank 0 raises at once, rank 1 works on and tells nothing: after 2 s it is interrupted, and the error is what rank 0 raised."""
    machine.answers(0, outcome(0, "raised", error="ValueError: bad", pickled=cloudpickle.dumps(ValueError("bad")), trace="line 7"))
    machine.at(8.0, lambda: machine.answers(1, outcome(1)))
    error, seconds = waited(machine, machine.call(limit_seconds=2.0))
    assert machine.interrupts == [(2.05, [1])]
    assert seconds == pytest.approx(2.05 + 2 * TICK)
    assert str(error).startswith("run: rank 0 raised ValueError: bad; expected a result from every rank.")
    assert error is not None
    assert isinstance(error.__cause__, ValueError)


def test_a_limit_that_finds_ranks_in_a_collective_says_how_long_they_were_there(machine: Machine) -> None:
    """Rank 0 waits for rank 1, which had returned: told as a collective in vain, for the time that the call took."""
    machine.answers(1, outcome(1))
    machine.jobs[0].data = {"entered": 1, "collective": collective().to_dict(), "where": ""}
    machine.on_interrupt = lambda rank: None  # it hangs
    error, seconds = waited(machine, machine.call(limit_seconds=1.0))
    assert isinstance(error, CollectiveTimeoutError)
    assert "rank 1 did not come: it had returned after 0 collectives" in str(error)
    # It has 2.4 s to answer the interrupt, and the last tick.
    assert seconds == pytest.approx(1.05 + 2.4 + TICK, abs=TICK + 1e-9)
    assert f"waited in all_reduce of 3.91 KiB in float32 among ranks 0, 1 (its 1st collective in the call) for {seconds:g} s" in str(error)


def test_a_failed_collective_waits_for_nobody_longer_than_1_6_s(machine: Machine) -> None:
    """Rank 0's sum has failed, rank 1 works on: it did not come, which is told after 1.65 s with how long a collective waits."""
    machine.answers(0, outcome(0, "raised", [collective()], collective=collective(), error="RuntimeError: timed out"))
    machine.jobs[1].data = {"entered": 0, "collective": None, "where": "line 9 of work"}
    error, _ = waited(machine, machine.call(timeout_seconds=7.5))
    assert isinstance(error, CollectiveTimeoutError)
    assert machine.interrupts == [(1.65, [1])]
    assert "for 7.5 s" in str(error)
    assert error.ranks == (1,)
    assert "it was still at work after 0 collectives" in str(error)  # by how it answered the interrupt, which says best where it was


def test_a_stop_interrupts_all_that_work(machine: Machine) -> None:
    """Asked for at 0.5 s: the rank that has not answered is interrupted, and its answer is taken in."""
    stop = threading.Event()
    machine.answers(1, outcome(1))
    machine.at(0.5, stop.set)
    call = machine.call()
    with pytest.raises(StoppedError):
        call.wait(stop)
    assert machine.interrupts == [(0.5, [0])]
    assert sorted(call.outcomes) == [0, 1]


def test_an_interrupt_that_came_too_early_is_sent_again(machine: Machine) -> None:
    """Rank 0's function begins 1.2 s after the first interrupt, which is lost; it comes each second, to those who have not answered."""

    def hear(rank: int) -> None:
        if rank == 1 or machine.now > 101.7:
            machine.answers(rank, outcome(rank, "interrupted"))

    machine.on_interrupt = hear
    stop = threading.Event()
    machine.at(0.5, stop.set)
    call = machine.call()
    with pytest.raises(StoppedError):
        call.wait(stop)
    assert [ranks for _, ranks in machine.interrupts] == [[0, 1], [0], [0]]
    assert [seconds for seconds, _ in machine.interrupts] == pytest.approx([0.5, 1.5, 2.5], abs=TICK + 1e-9)
    assert call.in_step


def test_an_interrupt_just_before_a_function_is_no_fault_of_its_engine(machine: Machine) -> None:
    """KeyboardInterrupt is then ipyparallel's own error: the rank is late like the others, and can go on."""
    early = RuntimeError("KeyboardInterrupt()")
    early.ename = "KeyboardInterrupt"  # type: ignore[attr-defined]
    machine.on_interrupt = lambda rank: machine.answers(rank, early)
    call = machine.call(limit_seconds=1.0)
    error, _ = waited(machine, call)
    assert str(error).startswith("run: ranks 0 and 1 had not returned after 1 s; expected all to.")
    assert call.in_step


def test_an_interrupt_that_nobody_sent_is_no_answer_to_one(machine: Machine) -> None:
    """A KeyboardInterrupt of ipyparallel's own in a call that was not interrupted: the engine could not take it, and is told."""
    early = RuntimeError("KeyboardInterrupt()")
    early.ename = "KeyboardInterrupt"  # type: ignore[attr-defined]
    machine.answers(0, outcome(0))
    machine.answers(1, early)
    call = machine.call()
    error, _ = waited(machine, call)
    assert str(error).startswith("run: rank 1 could not take the call (KeyboardInterrupt()")
    assert not call.in_step


def test_a_cause_that_cannot_be_built_again_is_told_by_its_words(machine: Machine) -> None:
    """Of two ranks that raised the first one's counts, and one that waited comes after those that did not; where all died there is none."""
    machine.answers(0, outcome(0, "raised", collective=collective(), error="RuntimeError: timed out", trace="line 1"))
    machine.answers(1, outcome(1, "raised", error="Own: bad", pickled=b"no pickle", trace="line 7"))
    error, _ = waited(machine, machine.call())
    assert error is not None
    assert (type(error.__cause__), str(error.__cause__)) == (RuntimeError, "Own: bad")
    assert error.__cause__.__notes__ == ["On rank 1:\nline 7"]  # type: ignore[union-attr]
    dead = Machine(2)
    dead.dead = {0: "died", 1: "died"}
    error, _ = waited(dead, dead.call())
    assert error is not None
    assert error.__cause__ is None


@pytest.mark.parametrize(
    ("first", "second", "in_step"),
    [
        ([collective(0), collective(1)], [collective(0), collective(1)], True),
        ([collective(0), collective(1)], [collective(0)], False),
        ([collective(0, group=(0, 2))], [], False),  # rank 2 is not heard of, so it has entered none
        ([collective(0, "send")], [], True),  # a message that nobody takes leaves the groups as they were
        ([], [], True),
    ],
)
def test_ranks_are_in_step_where_each_group_was_entered_equally_often(
    machine: Machine, first: list[CollectiveCall], second: list[CollectiveCall], in_step: bool
) -> None:
    """All have answered: what counts is how many collectives of a group each of its members has entered."""
    three = Machine(3)
    call = three.call()
    call.outcomes = {rank: outcome(rank, calls=calls) for rank, calls in enumerate((first, second, []))}
    assert call.in_step is in_step
    call.outcomes[1] = outcome(1, "raised", collective=collective(), error="x")
    assert not call.in_step
    del call.outcomes[1]
    assert not call.in_step


def test_what_ranks_printed_is_shown_in_order_of_rank() -> None:
    """Whoever answered first."""
    lines: list[str] = []
    show_printed({1: outcome(1, printed="b\nc\n"), 0: outcome(0, printed="a")}, lines.append)
    assert lines == ["[rank 0] a", "[rank 1] b", "[rank 1] c"]


def test_code_that_lies_beside_a_notebook_travels_and_what_is_installed_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By where its file lies; an environment that stands on another has packages there too; the notebook's own names travel anyway."""
    packages = tmp_path / "base" / "site-packages"
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages), str(tmp_path)])
    places = {
        "beside": tmp_path / "beside.py", "base_library": packages / "base_library" / "__init__.py", "__main__": tmp_path / "a.py",
        "gpulab.thing": tmp_path / "b.py", "json": Path(json.__file__), "torch": Path(torch.__file__),
    }  # fmt: skip
    found = {}
    for name, file in places.items():
        module = ModuleType(name)
        module.__file__ = str(file)
        found[name] = _payload.loose(module)
    assert found == {"beside": True, "base_library": False, "__main__": False, "gpulab.thing": False, "json": False, "torch": False}
    assert _payload.loose(sys) is False  # a part of Python itself, which has no file


def test_what_was_registered_to_travel_stays_as_the_learner_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loose module is carried for one call; one that was registered before stays so, also where the call cannot travel."""
    own, other = ModuleType("beside_own"), ModuleType("beside_other")
    for module in (own, other):
        module.__file__ = f"/nowhere/{module.__name__}.py"
        exec("def work():\n    return 1", vars(module))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    cloudpickle.register_pickle_by_value(own)
    try:
        before = cloudpickle.list_registry_pickle_by_value()
        with _payload._by_value(other.work, own.work):
            assert cloudpickle.list_registry_pickle_by_value() == {*before, "beside_other"}
        sent = _payload.pack(other.work, (own.work,), {})
        with pytest.raises(InputError, match=r"^run: the call cannot travel to the ranks \(TypeError: .*\); expected a function and"):
            _payload.pack(other.work, ((i for i in range(3)),), {})
        assert cloudpickle.list_registry_pickle_by_value() == before
    finally:
        cloudpickle.unregister_pickle_by_value(own)
    for name in ("beside_own", "beside_other"):
        monkeypatch.delitem(sys.modules, name)
    function, (argument,), options = cloudpickle.loads(sent)  # as on a rank, which has neither module
    assert (function(), argument(), options) == (1, 1, {})
    with pytest.raises(InputError, match=r"^run: 3 is no function; expected one to call on every rank\. Pass the function itself\.$"):
        _payload.pack(3, (), {})  # type: ignore[arg-type]
