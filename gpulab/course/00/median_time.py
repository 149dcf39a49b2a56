"""00.10: take it home: an honest clock."""

# %% exercise
id = "00.10"
title = "take it home: an honest clock"
answer_name = "median_time"
live = True

# %% stub
import statistics
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    """Return the median time of call() in seconds. The first call is not counted."""
    ...  # wait() returns when the device has finished; read the time with clock()

# %% hint
# Before the loop: one call that is not counted, and a wait for it.

# %% hint
# In the loop, for each call: read the clock, call, wait, read the clock again. Keep the difference in a list.

# %% hint
# statistics.median gives the median of a list.

# %% solution
import statistics
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    """Return the median time of call() in seconds. The first call is not counted."""
    call()
    wait()
    times = []
    for _ in range(calls):
        start = clock()
        call()
        wait()
        times.append(clock() - start)
    return statistics.median(times)

# %% check
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import format_seconds

# Seconds of work of the calls after the first; the sequence repeats. Any eleven calls in a row, or 33, have the median 1 ms, which is not
# the time of the first, the middle or the last of them, nor the next shorter time. The two disturbed calls lift the mean far above it. The
# time above the median is 1 ms too, so that counting the first call is left to calls=1, whose message names it.
_MEDIAN = 1e-3
_WORK = (0.7e-3, 0.9e-3, 80e-3, _MEDIAN, 0.8e-3, 1.4e-3, 80e-3, 1.2e-3, 0.5e-3, _MEDIAN, 0.85e-3)
_START = 100.0  # the clock's first reading
_FIRST = 3.0  # seconds of the first call; not 2.0, whose mean with a call of 1 ms is 1 s and would look like 1 ms in the wrong unit
_LAUNCH = 5e-6  # seconds until a call returns, while its work is still in the queue
_NEAR = 0.02  # relative tolerance, because launches, waits and readings of the clock take a little time too


class _Device:
    """A simulated device: its queue and its clock are numbers, so the check is quick and nothing disturbs its times.

    With ``returns_late``, a call returns only when its work is done, as on a CPU.
    """

    def __init__(self, work: tuple[float, ...], returns_late: bool = False) -> None:
        self.work, self.returns_late = work, returns_late
        self.now, self.free, self.calls, self.waits, self.readings = _START, _START, 0, 0, 0

    def call(self) -> None:
        self.now += _LAUNCH
        work = self.work[(self.calls - 1) % len(self.work)] if self.calls else _FIRST
        self.free = max(self.free, self.now) + work
        self.calls += 1
        if self.returns_late:
            self.now = self.free

    def wait(self) -> None:
        self.now = max(self.now, self.free) + 1e-6
        self.waits += 1

    def clock(self) -> float:
        self.readings += 1
        self.now += 1e-7
        return self.now


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for calls, late in ((11, False), (1, False), (33, False), (11, True)):
        device = _Device(_WORK if calls > 1 else (_MEDIAN,), late)  # a single counted call always takes 1 ms
        case = f"With calls={calls}" + (" and a device whose calls return when their work is done," if late else "")
        result = ask(case, device.call, device.wait, calls, device.clock)
        _judge(checking.number(result, "a time in seconds"), calls, device, case)
    return "It waits before it starts and before it stops, leaves the first call out, and one slow call does not move it. Use it at home."


def _judge(seconds: float, calls: int, device: _Device, case: str) -> None:
    said = f"{case} you return {format_seconds(seconds)}"
    if not device.calls:
        raise Refused("Your function never calls call().")
    if not device.readings:
        raise Refused("Your function never reads clock(). Read the time with the clock that it is given, not with another one.")
    if not device.waits:
        raise Refused(f"{said}: your function never calls wait(), so it measures how long a call takes to return.")
    if device.calls < calls + 1:
        raise Refused(f"{case} your function makes {device.calls} calls; expected {calls + 1}: one that is not counted, and {calls} that are.")
    if abs(seconds / _MEDIAN - 1) <= _NEAR:
        if device.waits < calls:
            raise Refused(f"{case} your function waits {device.waits} times. Wait after every call, before you read the clock.")
        return
    for factor, unit in ((1e3, "milliseconds"), (1e6, "microseconds")):
        if abs(seconds / _MEDIAN / factor - 1) <= _NEAR:
            raise Refused(f"{case} you return {seconds:.4g}: that is right in {unit}. Return seconds.")
    if seconds <= 0:
        raise Refused(
            f"{said}, and no call is that short. Subtract the reading before the call from the reading after the wait, and do not round."
        )
    if seconds >= _START:
        raise Refused(f"{said}: that is a reading of the clock. The time of a call is the difference of two readings.")
    if seconds < 0.1 * _MEDIAN and (device.returns_late or seconds < _LAUNCH):
        raise Refused(f"{said}: your clock starts after the call, so the time of the call is missing. Read the clock before call().")
    if seconds < 0.1 * _MEDIAN:
        raise Refused(f"{said}, which is how long a call takes to return. Wait after each call, and read the clock after the wait.")
    if calls == 1 and seconds >= 0.4 * _FIRST:
        raise Refused(
            f"{said}: the work of the first call is in it, which is {format_seconds(_FIRST)}. Leave the first call out, and wait for it before "
            "you start the clock. Without this wait its work is still in the queue."
        )
    if device.waits < calls:
        raise Refused(
            f"{said}: your function waits {device.waits} times for {device.calls} calls. Without a wait after each call you only get their "
            "mean, and one slow call distorts it. The device's times have the median 1.00 ms."
        )
    for extreme, word in ((min(_WORK), "shortest"), (max(_WORK), "longest")):
        if abs(seconds / extreme - 1) <= _NEAR:
            raise Refused(f"{said}: that is the {word} call. The median is the middle one.")
    if seconds > 5 * _MEDIAN:
        raise Refused(
            f"{said}; the median is {format_seconds(_MEDIAN)}. Most calls take about 1 ms and a few take 80 ms. A mean or a sum counts these few, a "
            "median does not."
        )
    raise Refused(f"{said}; the median is {format_seconds(_MEDIAN)}. It is the time in the middle once the times are sorted.")

# %% wrong: never calls wait
import statistics
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    call()
    times = []
    for _ in range(calls):
        start = clock()
        call()
        times.append(clock() - start)
    return statistics.median(times)

# %% wrong: how long a call takes to return
import statistics
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    call()
    wait()
    times = []
    for _ in range(calls):
        start = clock()
        call()
        times.append(clock() - start)
        wait()
    return statistics.median(times)

# %% wrong: your clock starts after the call
import statistics
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    call()
    wait()
    times = []
    for _ in range(calls):
        call()
        start = clock()
        wait()
        times.append(clock() - start)
    return statistics.median(times)

# %% wrong: wait for it before you start the clock
import statistics
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    call()
    times = []
    for _ in range(calls):
        start = clock()
        call()
        wait()
        times.append(clock() - start)
    return statistics.median(times)

# %% wrong: expected 12
import statistics
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    times = []
    for _ in range(calls):
        start = clock()
        call()
        wait()
        times.append(clock() - start)
    return statistics.median(times)

# %% wrong: you only get their mean
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    call()
    wait()
    start = clock()
    for _ in range(calls):
        call()
    wait()
    return (clock() - start) / calls

# %% wrong: A mean or a sum counts these few
import statistics
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    call()
    wait()
    times = []
    for _ in range(calls):
        start = clock()
        call()
        wait()
        times.append(clock() - start)
    return statistics.mean(times)

# %% wrong: the shortest call
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    call()
    wait()
    best = float("inf")
    for _ in range(calls):
        start = clock()
        call()
        wait()
        best = min(best, clock() - start)
    return best

# %% wrong: once the times are sorted
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    call()
    wait()
    times = []
    for _ in range(calls):
        start = clock()
        call()
        wait()
        times.append(clock() - start)
    return times[calls // 2]

# %% wrong: the difference of two readings
import statistics
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    call()
    wait()
    times = []
    for _ in range(calls):
        call()
        wait()
        times.append(clock())
    return statistics.median(times)

# %% wrong: right in milliseconds
import statistics
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    call()
    wait()
    times = []
    for _ in range(calls):
        start = clock()
        call()
        wait()
        times.append(clock() - start)
    return 1000 * statistics.median(times)

# %% wrong: never reads clock
import statistics
import time


def median_time(call, wait, calls=11, clock=time.perf_counter):
    call()
    wait()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
