"""09.12: take it home: compare two functions."""

# %% exercise
id = "09.12"
title = "take it home: compare two functions"
answer_name = "compare"
live = True
limit_seconds = 20.0

# %% stub
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    ...  # at home, on a GPU: wait=torch.cuda.synchronize

# %% hint
# Write a small function that times one call: wait(), read the clock, call the function, wait(),
# read the clock again. The second wait() makes the clock stop after the work.

# %% hint
# Call before() and after() once each without looking at the clock. Then time before() and after()
# in every turn, and keep seconds of before / seconds of after in a list.

# %% hint
# Sort the ratios. k = int((turns - 1.96 * math.sqrt(turns)) / 2). The interval goes from ratios[k]
# to ratios[-1 - k], and statistics.median(ratios) is the speed-up.

# %% solution
import math
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    def seconds(function):
        wait()
        start = clock()
        function()
        wait()
        return clock() - start

    before(), after()  # the first call compiles and allocates
    ratios = sorted(seconds(before) / seconds(after) for _ in range(turns))
    k = int((turns - 1.96 * math.sqrt(turns)) / 2)
    return statistics.median(ratios), ratios[k], ratios[-1 - k]

# %% check
import math
import random
import statistics
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import plural

_SPEEDUP = 2.5  # of the machine's true times
_CLOSE = 1.18  # the drift within a turn and the noise of 20 turns change a speed-up by less than this factor
_SAME = 0.003  # relative: the calls of clock and wait add less than this to a time
_CALL, _WAIT = 1e-5, 1e-6  # seconds of a call itself, and of a wait itself
_NOISE = 0.15  # standard deviation of the logarithm of the ratio of two times
# (turns, least, most, returns late): least and most bound high / low of a correct 95 % interval of the median under that noise.
_SERIES = ((20, 1.05, 1.9, False), (100, 1.02, 1.17, False), (20, 1.05, 1.9, True))


class _Machine:
    """A device that works after a call has returned, and whose first calls are slow. It slows down to half its speed.

    One call of ``before`` in ten is disturbed and takes 30 times as long.

    With ``returns_late`` a call returns when its work is done, as on a CPU.
    """

    def __init__(self, turns: int, returns_late: bool) -> None:
        self.turns, self.returns_late = turns, returns_late
        self.now, self.pending, self.random = 0.0, 0.0, random.Random(9)
        self.calls: list[str] = []
        self.seconds: dict[str, list[float]] = {"before": [], "after": []}
        self.looks = self.waits = 0
        self.busy = False  # whether the clock was read while work was pending

    def _work(self, name: str, seconds: float) -> None:
        done = self.calls.count(name)
        self.calls.append(name)
        seconds *= math.exp(self.random.gauss(0.0, _NOISE / math.sqrt(2))) * (1 + min(1.0, len(self.calls) / (2 * self.turns)))
        if done == 0:
            seconds *= 400
        elif name == "before" and done % 10 == 4:
            seconds *= 30
        self.seconds[name].append(seconds)
        self.now += _CALL
        self.pending += seconds
        if self.returns_late:
            self._finish()

    def _finish(self) -> None:
        self.now, self.pending = self.now + self.pending, 0.0

    def before(self) -> None:
        self._work("before", 0.020)

    def after(self) -> None:
        self._work("after", 0.020 / _SPEEDUP)

    def wait(self) -> None:
        self.waits += 1
        self.now += _WAIT
        self._finish()

    def clock(self) -> float:
        self.looks += 1
        self.busy = self.busy or self.pending > 0
        return self.now

    def in_a_row(self) -> int:
        """Return the length of the longest run of successive calls of the same function."""
        longest = run = 0
        last = ""
        for name in self.calls:
            run, last = (run + 1 if name == last else 1), name
            longest = max(longest, run)
        return longest


def check(answer: Any) -> str:
    said, slips = "", list[str]()
    for turns, least, most, late in _SERIES:
        machine = _Machine(turns, late)
        try:
            result = checking.call(answer, machine.before, machine.after, turns=turns, clock=machine.clock, wait=machine.wait)
        except NotAttempted as nothing:
            if said:
                raise Refused(f"With turns={turns} your function returned nothing.") from nothing
            raise
        said = f"With turns={turns}" + (" and calls that return when their work is done" if late else "")
        _counted(said, machine)
        speedup, low, high = _three(said, result)
        _right_speedup(said, machine, speedup)
        _paired(said, machine, speedup)
        _right_interval(said, speedup, low, high, least, most)
        slip = _slip(said, machine, low, high)
        slips += [slip] * bool(slip)
    if len(slips) > 1:
        raise Refused(slips[0])
    return (
        "Right on a machine that works after the call has returned, gets slower as it gets hot, and is disturbed in one call of ten. "
        "On a GPU, pass wait=torch.cuda.synchronize."
    )


def _counted(said: str, machine: _Machine) -> None:
    """Refuse an answer that lacks calls, waits, readings of the clock, turns, or an untimed first call of each function."""
    for name in ("before", "after"):
        count = machine.calls.count(name)
        if not count:
            raise Refused(f"{said} your function never calls {name}().")
        if count < machine.turns:
            raise Refused(f"{said} your function calls {name}() {plural(count, 'time')}. Each turn times both functions.")
    if not machine.looks:
        raise Refused(f"{said} your function never calls clock(). Read the time with it, so that the check can use a clock of its own.")
    if not machine.waits:
        raise Refused(f"{said} your function never calls wait(), so the clock stops while the device still works.")
    if machine.in_a_row() > max(4, machine.turns // 4):
        raise Refused(
            f"{said} your function calls one function {machine.in_a_row()} times in a row. A machine that gets slower in the meantime makes "
            "the other one look bad. Let them take turns."
        )
    if min(machine.calls.count(name) for name in ("before", "after")) == machine.turns:
        raise Refused(
            f"{said} the first turn times the first call of each function, which compiles and allocates. Call both once before the turns."
        )


def _three(said: str, result: Any) -> tuple[float, float, float]:
    try:
        parts = list(result)
    except Exception:
        parts = []
    if len(parts) != 3 or isinstance(result, (str, bytes, dict)):
        raise Refused(f"{said} you returned {checking.describe(result)}; the check expects (speedup, low, high).")
    if any(checking.is_stub(part) for part in parts):
        raise NotAttempted
    speedup, low, high = (checking.number(part, name) for part, name in zip(parts, ("the speed-up", "low", "high"), strict=True))
    return speedup, low, high


def _right_speedup(said: str, machine: _Machine, speedup: float) -> None:
    words = f"{said} you return {speedup:.3g}x; the machine's true speed-up is {_SPEEDUP:g}x."
    if 1 / _CLOSE < speedup / _SPEEDUP < _CLOSE:
        return
    if math.isclose(speedup, 1.0, rel_tol=0.02) and machine.returns_late:
        raise Refused(f"{words} Your clock starts after the call, so the time of the call is missing. Read the clock before the call.")
    if math.isclose(speedup, 1.0, rel_tol=0.02):
        raise Refused(f"{words} Your clock stops when the call returns. Call wait() after the function, before you read the clock again.")
    if 1 / _CLOSE < speedup * _SPEEDUP < _CLOSE:
        raise Refused(f"{words} You divide the other way round: a speed-up is the time before divided by the time after.")
    if math.isclose(speedup, 1 - 1 / _SPEEDUP, rel_tol=0.1):
        raise Refused(f"{words} You return the share of the time that is saved. A speed-up is the time before divided by the time after.")
    if speedup > _SPEEDUP:
        raise Refused(f"{words} In one call of ten another program disturbs the machine, and this dominates a mean or a sum. Take the median.")
    raise Refused(f"{words} Time one call of each function in every turn, and divide the two times of the same turn.")


def _paired(said: str, machine: _Machine, speedup: float) -> None:
    """Refuse the ratio of the two medians: it does not compare times of the same turn."""
    before, after = (machine.seconds[name][-machine.turns :] for name in ("before", "after"))
    ours = statistics.median(b / a for b, a in zip(before, after, strict=True))
    apart = statistics.median(before) / statistics.median(after)
    if math.isclose(speedup, apart, rel_tol=_SAME) and not math.isclose(speedup, ours, rel_tol=3 * _SAME):
        raise Refused(
            f"{said} you return {speedup:.4g}x, the median of before divided by the median of after. The two medians may come from different "
            "turns, and the machine changes between them. Divide the two times of each turn, and take the median of these ratios."
        )


def _right_interval(said: str, speedup: float, low: float, high: float, least: float, most: float) -> None:
    words = f"{said} your interval is {low:.3g}x to {high:.3g}x."
    if low > high:
        raise Refused(f"{words} The first end must be the lower one. Sort the ratios first.")
    if low <= 0:
        raise Refused(f"{words} A ratio of two times is above 0. Sort the ratios and leave out some at each end.")
    if not low / 1.02 <= speedup <= high * 1.02:
        raise Refused(f"{words} It does not hold your own speed-up, {speedup:.3g}x.")
    if high / low > 8:
        raise Refused(f"{words} A single disturbed turn decides how wide it is. Leave out k of the sorted ratios at each end.")
    if high / low > most:
        raise Refused(
            f"{words} That is how far single turns lie apart. The interval of their median gets narrower with more turns: leave out k ratios "
            "at each end, as the task says."
        )
    if high / low < least:
        raise Refused(f"{words} It is too narrow: in another series of turns the median often lies outside. Leave out k ratios at each end, no more.")


def _slip(said: str, machine: _Machine, low: float, high: float) -> str:
    """Return what to say of ends that are the ratios beside the right ones, as of another k or of ``ratios[-k]``; "" for other ends.

    The ends of another right way, such as a bootstrap, are sometimes such ratios too, but hardly ever in two series.
    """
    if machine.busy:  # the work of the untimed calls is part of the first turn, so the ratios are not those below
        return ""
    before, after = ([each + _CALL + _WAIT for each in machine.seconds[name][-machine.turns :]] for name in ("before", "after"))
    ratios = sorted(b / a for b, a in zip(before, after, strict=True))
    k = int((machine.turns - 1.96 * math.sqrt(machine.turns)) / 2)
    for below, above in ((k, k - 1), (k - 1, k), (k - 1, k - 1), (k + 1, k + 1)):
        if math.isclose(low, ratios[below], rel_tol=1e-5) and math.isclose(high, ratios[-1 - above], rel_tol=1e-5):
            return (
                f"{said} your interval leaves out {below} ratios at the lower end and {above} at the upper end; k = int(...) is {k}, at each end. "
                "The first and the last of the rest are ratios[k] and ratios[-1 - k]."
            )
    return ""

# %% wrong: Your clock stops when the call returns
import math
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    def seconds(function):
        wait()
        start = clock()
        function()
        return clock() - start

    before(), after()
    ratios = sorted(seconds(before) / seconds(after) for _ in range(turns))
    k = int((turns - 1.96 * math.sqrt(turns)) / 2)
    return statistics.median(ratios), ratios[k], ratios[-1 - k]

# %% wrong: Your clock starts after the call
import math
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    def seconds(function):
        wait()
        function()
        start = clock()
        wait()
        return clock() - start

    before(), after()
    ratios = sorted(seconds(before) / seconds(after) for _ in range(turns))
    k = int((turns - 1.96 * math.sqrt(turns)) / 2)
    return statistics.median(ratios), ratios[k], ratios[-1 - k]

# %% wrong: never calls wait()
import math
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    ratios = []
    for _ in range(turns + 1):
        start = clock()
        before()
        middle = clock()
        after()
        ratios.append((middle - start) / (clock() - middle))
    ratios = sorted(ratios[1:])
    k = int((turns - 1.96 * math.sqrt(turns)) / 2)
    return statistics.median(ratios), ratios[k], ratios[-1 - k]

# %% wrong: Let them take turns
import math
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    def seconds(function):
        wait()
        start = clock()
        function()
        wait()
        return clock() - start

    before(), after()
    first = [seconds(before) for _ in range(turns)]
    second = [seconds(after) for _ in range(turns)]
    ratios = sorted(first[turn] / second[turn] for turn in range(turns))
    k = int((turns - 1.96 * math.sqrt(turns)) / 2)
    return statistics.median(ratios), ratios[k], ratios[-1 - k]

# %% wrong: the median of these ratios
import math
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    def seconds(function):
        wait()
        start = clock()
        function()
        wait()
        return clock() - start

    before(), after()
    pairs = [(seconds(before), seconds(after)) for _ in range(turns)]
    ratios = sorted(first / second for first, second in pairs)
    k = int((turns - 1.96 * math.sqrt(turns)) / 2)
    speedup = statistics.median(first for first, _ in pairs) / statistics.median(second for _, second in pairs)
    return speedup, ratios[k], ratios[-1 - k]

# %% wrong: Call both once before the turns
import math
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    def seconds(function):
        wait()
        start = clock()
        function()
        wait()
        return clock() - start

    ratios = sorted(seconds(before) / seconds(after) for _ in range(turns))
    k = int((turns - 1.96 * math.sqrt(turns)) / 2)
    return statistics.median(ratios), ratios[k], ratios[-1 - k]

# %% wrong: Take the median
import math
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    def seconds(function):
        wait()
        start = clock()
        function()
        wait()
        return clock() - start

    before(), after()
    ratios = [seconds(before) / seconds(after) for _ in range(turns)]
    mean = statistics.mean(ratios)
    error = 1.96 * statistics.stdev(ratios) / math.sqrt(turns)
    return mean, mean - error, mean + error

# %% wrong: You divide the other way round
import math
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    def seconds(function):
        wait()
        start = clock()
        function()
        wait()
        return clock() - start

    before(), after()
    ratios = sorted(seconds(after) / seconds(before) for _ in range(turns))
    k = int((turns - 1.96 * math.sqrt(turns)) / 2)
    return statistics.median(ratios), ratios[k], ratios[-1 - k]

# %% wrong: A single disturbed turn decides
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    def seconds(function):
        wait()
        start = clock()
        function()
        wait()
        return clock() - start

    before(), after()
    ratios = [seconds(before) / seconds(after) for _ in range(turns)]
    return statistics.median(ratios), min(ratios), max(ratios)

# %% wrong: how far single turns lie apart
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    def seconds(function):
        wait()
        start = clock()
        function()
        wait()
        return clock() - start

    before(), after()
    low, middle, high = statistics.quantiles([seconds(before) / seconds(after) for _ in range(turns)], n=4)
    return middle, low, high

# %% wrong: It is too narrow
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    def seconds(function):
        wait()
        start = clock()
        function()
        wait()
        return clock() - start

    before(), after()
    ratios = sorted(seconds(before) / seconds(after) for _ in range(turns))
    k = turns // 2
    return statistics.median(ratios), ratios[k - 1], ratios[k]

# %% wrong: expects (speedup, low, high)
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    def seconds(function):
        wait()
        start = clock()
        function()
        wait()
        return clock() - start

    before(), after()
    return statistics.median(seconds(before) / seconds(after) for _ in range(turns))


# %% wrong: at the lower end
import math
import statistics
import time


def compare(before, after, turns=20, clock=time.perf_counter, wait=lambda: None):
    """Return (speedup, low, high): the median of the turns' ratios, and its interval."""
    def seconds(function):
        wait()
        start = clock()
        function()
        wait()
        return clock() - start

    before(), after()  # the first call compiles and allocates
    ratios = sorted(seconds(before) / seconds(after) for _ in range(turns))
    k = int((turns - 1.96 * math.sqrt(turns)) / 2)
    return statistics.median(ratios), ratios[k], ratios[-k]
