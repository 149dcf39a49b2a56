"""The tight loop around a call, and its twin without the call, so that the loop's own cost can be
subtracted.

What is measured is the call as a program pays for it, the interpreter's dispatch included. What is
taken away is the loop, the two readings of the clock, and a synchronization with nothing to wait
for. The call is written out eight times in the body, as a program that calls it eight times would
have it, so that little is left to subtract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

Run = Callable[[int], tuple[float, float]]
UNROLLED = 8

# Compiled text, as in the standard library's timeit: a closure that calls fn(*args) would unpack
# the tuple on every call.
_TEMPLATE = """
def make({parameters}):
    def run(calls):
        blocks, rest = repeat(None, calls // {unrolled}), repeat(None, calls % {unrolled})
        start = clock()
        for _ in blocks:
            {block}
        for _ in rest:
            {statement}
        returned = clock()
        synchronize()
        return returned - start, clock() - start
    return run
"""


@dataclass(frozen=True)
class Loops:
    """The loop around the work and its twin that does nothing; each takes a number of calls.

    Each returns the seconds until the last call had returned, and until the device had finished.
    """

    work: Run
    empty: Run


def make_loops(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    synchronize: Callable[[], None],
    clock: Callable[[], float],
) -> Loops:
    """Return the loops that the sampler runs.

    Parameters
    ----------
    fn : callable
    args : tuple
        Passed by position on every call; the result is dropped before the next call.
    synchronize : callable
        Waits until the device has finished; called once after the last call.
    clock : callable
        Returns seconds.

    Returns
    -------
    Loops
    """
    named = {f"a{i}": value for i, value in enumerate(args)}
    parameters = {"fn": fn, "clock": clock, "synchronize": synchronize, "repeat": repeat, **named}
    return Loops(_compiled(f"fn({', '.join(named)})", parameters), _compiled("pass", parameters))


def _compiled(statement: str, parameters: dict[str, Any]) -> Run:
    source = _TEMPLATE.format(
        parameters=", ".join(parameters),
        unrolled=UNROLLED,
        block="; ".join([statement] * UNROLLED),
        statement=statement,
    )
    scope: dict[str, Any] = {}
    exec(compile(source, "<gpulab timing loop>", "exec"), scope)
    run: Run = scope["make"](**parameters)
    return run


def make_waiting_loops(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    synchronize: Callable[[], None],
    finish: Callable[[Any], Any],
    clock: Callable[[], float],
) -> Loops:
    """Return the loops for a function whose results have to be waited for one by one: JAX has no
    call that waits for all of them.

    Parameters
    ----------
    fn, args, synchronize, clock
        As for ``make_loops``; ``synchronize`` is called after ``finish``.
    finish : callable
        Takes a result and returns when it is there.

    Notes
    -----
    A call that is not waited for may run beside the next one, so even a batch of short calls waits
    for each; the clock is read in between to record when the call returned.
    """

    def loop(call: Callable[..., Any], wait: Callable[[Any], Any]) -> Run:
        def run(calls: int) -> tuple[float, float]:
            launched = finished = 0.0
            for _ in repeat(None, calls):
                start = clock()
                result = call(*args)
                returned = clock()
                wait(result)
                # its memory is given back inside of the time, as where it is dropped at once
                del result
                synchronize()
                finished += clock() - start
                launched += returned - start
            return launched, finished

        return run

    return Loops(loop(fn, finish), loop(_nothing, _nothing))


def _nothing(*_: Any) -> None:
    """Do nothing, for the empty loop."""
