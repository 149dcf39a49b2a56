"""The exercises of notebook 02: move a copy out of a loop, fit a link, choose chunks, share a buffer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpulab.errors import GpulabError
from gpulab.lessons import _guard
from gpulab.lessons.content import Exercise, NotAttempted, Refused, Usual
from gpulab.units import format_bytes, format_bytes_per_second, format_ratio, format_seconds

# The link that exercises are checked over: one that is the same for every learner, so that a right answer is right everywhere.
EXERCISE_LINK = "pcie4-x16"

# -- 02.2: move one line -------------------------------------------------------------------------------------------------

_STEPS = 100
_LEAST_GAIN = 3.0


def logistic(v: Any) -> Any:
    """Return one step of the logistic map, whose result tells how many steps were made."""
    return 3.9 * v * (1 - v)


def wasteful(device: Any, a: np.ndarray) -> Any:
    """Send, compute and fetch in every one of a hundred steps."""
    for _ in range(_STEPS):
        there = device.to_device(a)
        there = device.run(logistic, there)
        a = device.to_host(there)
    return a


def _modelled() -> Any:
    from gpulab import arrays, transfer

    class Watched(transfer.ModelledDevice):
        """Knows what it has sent back."""

        fetched: list[Any]

        def to_host(self, a: Any) -> Any:
            host = super().to_host(a)
            self.fetched.append(arrays.to_host(host).copy())  # also of a tensor; what the learner computes in it afterwards is not fetched
            return host

    device = Watched(EXERCISE_LINK, processor="nvidia-h200")
    device.fetched = []
    return device


def _check_frugal(answer: Any) -> str:
    a = np.linspace(0.1, 0.9, 65_536, dtype=np.float32)
    before, after = _modelled(), _modelled()
    expected = wasteful(before, a.copy())
    result = _guard.call(answer, after, a.copy())
    slow, fast = before.report(), after.report()
    if fast.compute_seconds <= 0:
        raise Refused("Nothing ran on the device. Compute with device.run(step, there), as the loop did.")
    if not isinstance(result, np.ndarray):
        raise Refused(f"Your function returned {_guard.describe(result)}; the check expects a NumPy array.")
    if fast.copies < 2:
        raise Refused("What you returned is still on the device. Fetch the result with device.to_host.")
    if result.shape != expected.shape or not np.array_equal(result, expected):
        raise Refused("The result is not that of a hundred steps. Only the copies may move; the loop still makes every step.")
    if not any(np.array_equal(result, one) for one in after.fetched):
        raise Refused("What you returned was computed on the CPU. Make all hundred steps on the device, and return what you fetch from it.")
    if fast.calls < _STEPS:
        raise Refused(
            f"The device was given {fast.calls} call(s) for a hundred steps, and its bill counts one pass over the data a call. "
            "Make one call of device.run a step, as the loop did; only the copies may move."
        )
    gain = slow.total_seconds / fast.total_seconds
    if gain < _LEAST_GAIN:
        raise Refused(
            f"{fast.copies} copies are left and the gain is {format_ratio(gain)}; at least {_LEAST_GAIN:g}x is possible. "
            "What is on the device may stay there: no step needs a copy."
        )
    return (
        f"{slow.copies} copies became {fast.copies}, and {format_seconds(slow.total_seconds)} became "
        f"{format_seconds(fast.total_seconds)}: {format_ratio(gain)} (MODELLED over {EXERCISE_LINK})."
    )


_STEP = "def step(v):\n    return 3.9 * v * (1 - v)\n\n\n"
_FRUGAL = 'def frugal(device, a):\n    """A hundred steps; `a` begins and ends in main memory."""\n'

FRUGAL = Exercise(
    id="02.2",
    title="move one line",
    answer_name="frugal",
    stub=_FRUGAL + "    ...  # device.to_device(a), device.run(step, there), device.to_host(there)",
    solution=_STEP
    + _FRUGAL
    + """\
    there = device.to_device(a)  # once, before the loop
    for _ in range(100):
        there = device.run(step, there)
    return device.to_host(there)  # once, after it""",
    hints=(
        "What does the hundredth step need that is not on the device already?",
        "Send once before the loop and fetch once after it. Inside the loop, `there = device.run(step, there)`.",
    ),
    check=_check_frugal,
    usual=(
        Usual(
            _STEP + _FRUGAL + "    for _ in range(100):\n        there = device.to_device(a)\n        there = device.run(step, there)\n"
            "        a = device.to_host(there)\n    return a",
            "200 copies are left",
        ),
        Usual(
            _STEP + _FRUGAL + "    there = device.to_device(a)\n    for _ in range(100):\n        there = device.run(step, there)\n"
            "        a = device.to_host(there)\n    return a",
            "101 copies are left",
        ),
        Usual(
            _STEP + _FRUGAL + "    there = device.to_device(a)\n    for _ in range(100):\n        there = device.run(step, there)\n"
            "    return there",
            "Fetch the result",
        ),
        Usual(
            _STEP + _FRUGAL + "    there = device.to_device(a)\n    there = device.run(step, there)\n    return device.to_host(there)",
            "a hundred steps",
        ),
        Usual(_STEP + _FRUGAL + "    for _ in range(100):\n        a = step(a)\n    return a", "Nothing ran on the device"),
        Usual(
            _STEP + _FRUGAL + "    there = device.run(step, device.to_device(a))\n    device.to_host(there)\n"
            "    for _ in range(100):\n        a = step(a)\n    return a",
            "computed on the CPU",
        ),
        Usual(
            _STEP + _FRUGAL + "    a = device.to_host(device.run(step, device.to_device(a)))\n    for _ in range(99):\n"
            "        a[:] = step(a)\n    return a",
            "computed on the CPU",
        ),
        Usual(
            _STEP
            + "def hundred(v):\n    for _ in range(100):\n        v = step(v)\n    return v\n\n\n"
            + _FRUGAL
            + "    return device.to_host(device.run(hundred, device.to_device(a)))",
            "one pass over the data a call",
        ),
        Usual("def frugal(a):\n    return a", "TypeError"),
    ),
)

# -- 02.5: fit the line --------------------------------------------------------------------------------------------------

# (latency in seconds, bytes a second, seed): from a quick wide link to a slow narrow one.
_LINKS = ((5e-6, 50e9, 1), (12e-6, 12e9, 2), (30e-6, 6e9, 3))
_NOISE = 0.03
# Between the sizes that the learner's function sees, so unseen; small ones test the latency, large ones the slope.
_UNSEEN = (1_500, 24_000, 700_000, 96 * 2**20, 700 * 2**20)
_OFF = 0.10
_SMALL_BYTES = 1_000_000
_MOST_SLOPE = 1e-8  # seconds a byte: the links have at most 2e-10, and no latency is as short
_TWO_NUMBERS = "two numbers: latency in seconds, bytes a second"


def _check_fit(answer: Any) -> str:
    from gpulab import transfer

    ask = _guard.in_turn(answer)
    for latency, bandwidth, seed in _LINKS:
        link = transfer.link(EXERCISE_LINK, latency_seconds=latency, bandwidth_bytes_per_second=bandwidth)
        points = link.sweep(noise_ratio=_NOISE, seed=seed).select()
        nbytes = np.array([point.nbytes for point in points], dtype=float)
        seconds = np.array([point.median_seconds for point in points])
        truth = f"For a link with {format_seconds(latency)} and {format_bytes_per_second(bandwidth)}"
        result = _guard.listed(ask(truth, nbytes.copy(), seconds.copy()))
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise Refused(f"Your function returned {_guard.describe(result)}; the check expects {_TWO_NUMBERS}.")
        a, b = (_guard.number(value, _TWO_NUMBERS) for value in result)
        _judge_numbers(a, b, truth)
        for size in reversed(_UNSEEN):  # a wrong slope spoils all sizes, a wrong latency only the small ones
            _judge_size(size, (a, a + size / b, latency + size / bandwidth), transfer.fit(nbytes, seconds), truth)
    return "Your line predicts sizes that it has not seen, on three links, within a tenth or the fit's own prediction interval."


def _judge_numbers(a: float, b: float, truth: str) -> None:
    if 0 < a < _MOST_SLOPE < abs(b) < 1:  # a fit that does not weigh its points may give a latency below zero
        raise Refused(
            f"{truth} you returned {a:.3g} and {b:.3g}: that is the slope, then the latency, as np.polyfit gives them. "
            "Return the latency, then one over the slope."
        )
    if a > 1e6:
        raise Refused(f"{truth} you returned {a:.3g} and {b:.3g}: the two are in the wrong order. Latency first, then bytes a second.")
    if 0 < b < 1:
        raise Refused(f"{truth} your bandwidth is {b:.3g} bytes a second. The slope is seconds a byte; the bandwidth is one over it.")
    if b <= 0:
        raise Refused(f"{truth} your bandwidth is {b:.3g} bytes a second; a copy never gives time back.")


def _judge_size(size: int, line: tuple[float, float, float], best: Any, truth: str) -> None:
    offset, mine, right = line
    low, high = best.prediction_interval_seconds(size)
    if abs(mine / right - 1) <= _OFF or low <= mine <= high:
        return
    said = f"{truth} your line gives {format_seconds(mine)} for {format_bytes(size)}; it takes {format_seconds(right)}."
    if size > _SMALL_BYTES:
        raise Refused(f"{said} The large copies are off: how much longer does the largest take than the next, for how many bytes more?")
    if offset == 0:
        raise Refused(f"{said} Small copies have a start too: what does a copy of nearly nothing take?")
    raise Refused(
        f"{said} The noise of the largest copies, in seconds, outweighs the small ones: let every point's share of error count alike."
    )


_FIT = 'def fit(nbytes, seconds):\n    """Return (latency in seconds, bandwidth in bytes a second) of a line through the points."""\n'
_WEIGHED = "import numpy as np\n\n\n" + _FIT + "    slope, latency = np.polyfit(nbytes, seconds, 1, w=1 / seconds)\n"

FIT = Exercise(
    id="02.5",
    title="fit the line yourself",
    answer_name="fit",
    stub=_FIT + "    ...  # nbytes and seconds are NumPy arrays",
    solution="import numpy as np\n\n\n"
    + _FIT
    + """\
    weights = 1 / seconds  # so that every point's relative error counts alike
    slope, latency = np.polyfit(nbytes, seconds, 1, w=weights)
    return latency, 1 / slope""",
    hints=(
        "seconds = latency + nbytes / bandwidth is a straight line. np.polyfit(nbytes, seconds, 1) returns its slope and its offset.",
        "The largest copy takes thousands of times as long as the smallest, so its noise alone outweighs the latency. "
        "Weigh each point by one over its time.",
        "np.polyfit takes w=; the bandwidth is one over the slope.",
    ),
    check=_check_fit,
    usual=(
        Usual(
            "import numpy as np\n\n\n" + _FIT + "    slope, latency = np.polyfit(nbytes, seconds, 1)\n    return latency, 1 / slope",
            "outweighs the small ones",
        ),
        Usual(_FIT + "    return 0.0, nbytes[-1] / seconds[-1]", "Small copies have a start too"),
        Usual("import numpy as np\n\n\n" + _FIT + "    return np.polyfit(nbytes, seconds, 1)", "the slope, then the latency"),
        Usual(_WEIGHED + "    return slope, latency", "Return the latency, then one over the slope"),
        Usual(_WEIGHED + "    return latency, slope", "one over it"),
        Usual(_WEIGHED + "    return 1 / slope, latency", "wrong order"),
        Usual(_WEIGHED + "    return latency, -1 / slope", "never gives time back"),
        Usual(_FIT + "    return seconds[0], nbytes[1] / seconds[1]", "The large copies are off"),
        Usual(_FIT + "    return seconds[0]", "two numbers"),
    ),
)

# -- 02.8: chunks --------------------------------------------------------------------------------------------------------

CHUNKED_BYTES = 256 * 2**20
_ENOUGH, _NEARLY = 0.8, 0.79
_MOST_CHUNKS = 10**6


def _check_chunks(answer: Any) -> str:
    from gpulab import transfer

    value = _guard.number(answer, "a number of chunks")
    if value != int(value) or not 1 <= value <= _MOST_CHUNKS:
        raise Refused(f"{value:g} chunks cannot be made; the check expects a whole number from 1 to a million.")
    chunks = int(value)
    link = transfer.link(EXERCISE_LINK)
    compute = link.seconds(CHUNKED_BYTES)
    copy = link.seconds(CHUNKED_BYTES)
    pipelined = transfer.pipeline_seconds(CHUNKED_BYTES, chunks, link, compute)
    share = (copy + compute - pipelined) / min(copy, compute)  # 1: the shorter of the two wholly hidden behind the other
    reached = f"{share:.0%}" if share >= _ENOUGH or share < _NEARLY else f"{math.floor(1000 * share) / 10:g}%"  # never rounded to enough
    said = f"In {chunks} x {format_bytes(CHUNKED_BYTES / chunks)} you reach {reached} of the ideal gain"
    if share >= _ENOUGH:
        return f"{said} (MODELLED over {EXERCISE_LINK})."
    if chunks == 1:
        raise Refused(f"{said}: with one chunk there is nothing to compute until all of it has arrived.")
    starts = link.seconds(0) * chunks
    if starts > copy / chunks:  # more than waiting for the first chunk costs
        raise Refused(f"{said}: starting {chunks} copies alone costs {format_seconds(starts)}. Take fewer, larger chunks.")
    if share >= _NEARLY:
        raise Refused(f"{said}: the first chunk alone costs a {chunks}th of it, and the starts of the copies take the rest. Take one more.")
    raise Refused(f"{said}: nothing is computed while the first chunk travels, and it is a large one. Take more, smaller chunks.")


CHUNKS = Exercise(
    id="02.8",
    title="choose the chunks",
    answer_name="chunks",
    stub="chunks = ...  # a whole number",
    solution="# Large enough that starting copies does not count, small enough that the first one arrives soon:\nchunks = 16",
    hints=(
        "With k chunks, one k-th of the copy cannot hide behind any computing. What share of the gain does that cost?",
        "Each copy also has a start, of 10 us here. How many starts can you afford beside a copy of about 10 ms?",
    ),
    check=_check_chunks,
    usual=(
        Usual("chunks = 1", "nothing to compute until"),
        Usual("chunks = 2", "more, smaller chunks"),
        Usual("chunks = 5", "79.6% of the ideal gain: the first chunk alone costs a 5th"),
        Usual("chunks = 10_000", "fewer, larger chunks"),
        Usual("chunks = 0", "whole number from 1"),
        Usual("chunks = 2.5", "whole number from 1"),
    ),
)

# -- 02.9: share a buffer ------------------------------------------------------------------------------------------------


def _check_share(answer: Any) -> str:
    from gpulab import _backends, arrays

    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        found = _guard.describe(answer)
        raise Refused(f"Your answer is {found}; the check expects three things: an array, its view, and an array that gl.share refuses.")
    if any(_guard.is_stub(part) for part in answer):
        raise NotAttempted
    array, view, refused = answer
    one, other, third = (_backends.backend_of(part) for part in answer)
    if one is None or other is None or third is None:
        raise Refused("All three must be arrays of NumPy, PyTorch or CuPy.")
    if one.name == other.name:
        raise Refused(f"The first two both belong to {one.name}; the check expects two libraries that see one buffer.")
    if one.pointer(array) != other.pointer(view) or one.nbytes(array) == 0:
        raise Refused(
            "The second is a copy, or begins elsewhere in the buffer: its numbers lie at another address. "
            "gl.share makes a view or refuses, and never copies."
        )
    if third.dtype_name(refused) == "bfloat16":
        raise Refused("That numpy has no bfloat16 was shown above. Find another reason for a refusal.")
    # Only the two are asked: CuPy refuses all of main memory, so which array is right would depend on what is installed.
    asked = [name for name in (one.name, other.name) if name != third.name]
    for name in asked:
        try:
            arrays.share(refused, name)
        except GpulabError as error:
            return f"One buffer, two libraries. The third is refused: {error}"
    raise Refused(
        f"With {' and '.join(asked)} the third can be shared without a copy after all. Try one whose memory the other library of the first "
        "two may not use as it is."
    )


SHARE = Exercise(
    id="02.9",
    title="one buffer, two libraries",
    answer_name="trio",
    stub="trio = (..., ..., ...)  # an array, its view in another library, an array that gl.share refuses",
    solution="""\
import numpy as np
import torch

import gpulab as gl

a = np.zeros(4)
view = gl.share(a, "torch")
refused = torch.zeros(4, requires_grad=True)  # autograd must see every change, so PyTorch keeps its buffer to itself
trio = (a, view, refused)""",
    hints=(
        'gl.share(a, "torch") sees a NumPy array\'s buffer.',
        "Sharing needs memory that both may use as it is. Think of a dtype that one of them lacks, or of a tensor that autograd watches.",
        "torch.zeros(4, requires_grad=True)",
    ),
    check=_check_share,
    usual=(
        Usual(
            "import numpy as np\nimport torch\n\na = np.zeros(4)\ntrio = (a, torch.tensor(a), torch.zeros(4, requires_grad=True))",
            "The second is a copy",
        ),
        Usual(
            'import numpy as np\nimport gpulab as gl\n\na = np.zeros(4)\ntrio = (a, gl.share(a, "torch"), np.ones(3))',
            "can be shared without a copy after all",
        ),
        Usual(
            "import numpy as np\nimport torch\nimport gpulab as gl\n\na = np.zeros(4)\n"
            'trio = (a, gl.share(a, "torch"), torch.zeros(4, dtype=torch.bfloat16))',
            "was shown above",
        ),
        Usual("import numpy as np\n\na = np.zeros(4)\ntrio = (a, a[:], a)", "both belong to numpy"),
        Usual("trio = ([0.0], [0.0], [0.0])", "must be arrays"),
        Usual("trio = 5", "three things"),
    ),
    unkept="two arrays that see one buffer exist only in the memory of a kernel",
)
