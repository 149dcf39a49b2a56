"""The exercises of notebook 10: an honest clock for JAX, a MATLAB script translated, feeds that were not needed, shapes that compile anew.

None of them needs MATLAB, TensorFlow or JAX: a function that returns before it is done and a session that keeps a bill stand in for them,
so that a right answer is right on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpulab.lessons import _guard, _loading
from gpulab.lessons._old_session import OldModel, OldSession
from gpulab.lessons._promises import Promised, PromisingFunction
from gpulab.lessons.content import Exercise, Refused, Usual
from gpulab.units import format_bytes, format_seconds, plural

# -- 10.2: make JAX's figure honest ------------------------------------------------------------------------------------------

_WITHIN = 0.02  # dispatch counts either way: once for each call, or once for a queue of them


def _check_seconds(answer: Any) -> str:
    f = PromisingFunction()
    found = _guard.number(_guard.call(answer, f, "x", f.clock), "seconds")
    if not f.readings:
        raise Refused("Your function never read clock(). Time stands still in this check but for what f does: read it there.")
    said = f"You found {format_seconds(found)}; "
    if found <= 0:
        raise Refused(said + "the call takes longer than nothing. Read the clock before the call and after it.")
    if abs(found / f.true_seconds - 1) <= _WITHIN:
        soon = format_seconds(f.dispatch_seconds)
        return f"{format_seconds(found)}: compiled before, waited for, and nothing else in it. The call itself returned after {soon}."
    if f.compiled_on_the_clock and found > f.true_seconds and not f.between_readings(found):
        raise Refused(said + f"the first call is in it, and that one compiles for {format_seconds(f.compile_seconds)}. Call once before.")
    if found < f.true_seconds / 2:
        raise Refused(said + "that is when the call returned: the work had hardly begun. Wait for the result, then read the clock.")
    if f.fetched and abs(found - f.fetch_seconds - f.true_seconds) <= _WITHIN * f.true_seconds:
        raise Refused(said + "the copy to NumPy is in it as well. block_until_ready() waits and copies nothing.")
    calls = round(found / f.true_seconds)
    if calls >= 2 and abs(found / (calls * f.true_seconds) - 1) <= _WITHIN:
        under_way = "Was the one before still under way when you began? Then wait for it, too. " if calls == 2 else ""
        raise Refused(said + f"that is the work of {calls} calls. {under_way}If you timed several, divide by their number.")
    raise Refused(
        said + f"it takes {format_seconds(f.true_seconds)}. Is all that is timed one call, from its start until its result is there?"
    )


_SECONDS = 'def seconds(f, x, clock):\n    """Return what one call f(x) takes until its result is there, compiled before."""\n'

SECONDS = Exercise(
    id="10.2",
    title="make JAX's figure honest",
    answer_name="seconds",
    stub=_SECONDS + "    start = clock()\n    y = f(x)\n    return ...  # clock() - start is the tempting answer",
    solution=_SECONDS
    + """\
    f(x).block_until_ready()  # compiles, and has finished
    start = clock()
    f(x).block_until_ready()
    return clock() - start""",
    hints=(
        "f is like a function of jax.jit: the first call compiles, and every call returns before its result is there.",
        "Call it once before the clock starts, and wait for that result, too.",
        "y.block_until_ready() returns when y is there. Read the clock behind it.",
    ),
    check=_check_seconds,
    usual=(
        Usual(_SECONDS + "    start = clock()\n    y = f(x)\n    return clock() - start", "the first call is in it"),
        Usual(
            _SECONDS + "    f(x).block_until_ready()\n    start = clock()\n    y = f(x)\n    return clock() - start",
            "when the call returned",
        ),
        Usual(_SECONDS + "    start = clock()\n    f(x).block_until_ready()\n    return clock() - start", "the first call is in it"),
        Usual(
            _SECONDS + "    f(x)\n    start = clock()\n    f(x).block_until_ready()\n    return clock() - start",
            "the work of 2 calls",
        ),
        Usual(
            _SECONDS + "    f(x).block_until_ready()\n    start = clock()\n    for _ in range(10):\n        f(x).block_until_ready()\n"
            "    return clock() - start",
            "the work of 10 calls",
        ),
        Usual(
            _SECONDS + "    start = clock()\n    f(x).block_until_ready()\n    compiling = clock() - start\n    start = clock()\n"
            "    for _ in range(10):\n        f(x).block_until_ready()\n    return clock() - start",
            "the work of 10 calls",
        ),
        Usual(
            _SECONDS + "    times = []\n    for _ in range(10):\n        start = clock()\n        f(x).block_until_ready()\n"
            "        times.append(clock() - start)\n    return sum(times) / 10",
            "the first call is in it",
        ),
        Usual(
            _SECONDS
            + "    start = clock()\n    for _ in range(100):\n        f(x).block_until_ready()\n    return (clock() - start) / 100",
            "the first call is in it",
        ),
        Usual(
            "import numpy as np\n\n\n" + _SECONDS + "    f(x).block_until_ready()\n    start = clock()\n    np.asarray(f(x))\n"
            "    return clock() - start",
            "the copy to NumPy",
        ),
        Usual(
            "import time\n\n\n" + _SECONDS + "    f(x).block_until_ready()\n    start = time.perf_counter()\n"
            "    f(x).block_until_ready()\n    return time.perf_counter() - start",
            "never read clock()",
        ),
        Usual("seconds = 0.004", "expects a function"),
    ),
)

# -- 10.4: translate a MATLAB script -----------------------------------------------------------------------------------------

_ROWS = 40  # few, so that dividing by n and by n - 1 are far apart
_CLOSE = 1e-3


def _matlab(x: np.ndarray, how: str = "") -> np.ndarray:
    """Return what the script gives, in float64; ``how`` names a slip.

    The smallest of C come first: the largest are the ones on its diagonal, whose sums are right in whatever way they are sorted.
    """
    x = x.astype(np.float64)
    mean = x.mean() if how == "mean" else x.mean(axis=0)
    spread = x.std(ddof=1) if how == "std of all" else x.std(axis=0, ddof=0 if how == "std" else 1)
    y = (x - mean) / spread
    c = y.T @ y / (x.shape[0] - (0 if how == "rows" else 1))
    place = int(np.argmax(c[1:, 0])) + 1
    if how == "counting":
        place -= 1
    elif how == "row 1":
        place = int(np.argmax(c[0:, 0])) + 1
    axis = {"columns": 0, "lines": 1}.get(how)
    values = np.sort(c, axis).reshape(-1)  # of all numbers with None
    values = values[::-1] if how == "descending" else values
    return np.asarray(values[:place] if how == "cumsum" else np.cumsum(values)[:place])


_SLIPS = {
    "mean": "mean(X) is one number for each column; yours is one number of all.",
    "std of all": "std(X) is one number for each column; yours is one number of all.",
    "std": "MATLAB's std divides by n - 1, NumPy's by n unless you say ddof=1.",
    "rows": "The script divides by size(X, 1) - 1, one less than the number of rows.",
    "counting": "It is one element short: i counts from 1 in MATLAB, and s(1:i) holds s(i).",
    "row 1": "C(2:end, 1) leaves out the first row, and i counts from there.",
    "descending": "sort(...) puts the smallest first, unless it is told otherwise.",
    "columns": "C(:) makes one column of all numbers, and sort goes over all of them; yours went down each column.",
    "lines": "C(:) makes one column of all numbers, and sort goes over all of them; yours went along each row.",
    "cumsum": "These are the sorted numbers themselves; cumsum adds them up as it goes.",
}


def _table(seed: int, place: int) -> np.ndarray:
    """Six columns, of which column ``place`` + 1 goes with the first one; their means are far from zero and from one another."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((_ROWS, 6))
    x[:, place] = 0.9 * x[:, 0] + 0.3 * x[:, place]
    return (x * rng.uniform(1, 9, 6) + rng.uniform(5, 50, 6)).astype(np.float32)


def _check_translated(answer: Any) -> str:
    ask = _guard.in_turn(answer)
    for number, (seed, place) in enumerate(((1, 3), (2, 5), (3, 2)), 1):
        x = _table(seed, place)
        given = x.copy()
        found = ask(f"For table {number}", given)
        if not isinstance(found, np.ndarray):
            raise Refused(
                f"Your function returned {_guard.describe(found)}; gather brings the result to main memory. Return a NumPy array."
            )
        right = _matlab(x)
        if found.ndim == 2 and 1 in found.shape:  # a column as MATLAB's, or a row
            found = found.ravel()
        if found.ndim != 1:
            raise Refused(f"Your result has the shape {found.shape}; s(1:i) is one column of numbers: return them in one dimension.")
        if not _same(found, right):
            raise Refused(next((words for how, words in _SLIPS.items() if _same(found, _matlab(x, how))), _unknown(found, right)))
        if not np.array_equal(given, x):
            _check_copied(ask, number, x)
    return "Three tables, the same numbers as the script gives, in main memory."


def _check_copied(ask: Callable[..., Any], number: int, x: np.ndarray) -> None:
    """Refuse what changes the caller's table on any machine: gl.to_device copies one that is read-only, as it copies each to a GPU."""
    sealed = x.copy()
    sealed.flags.writeable = False
    try:
        ask(f"For table {number}", sealed)
        if np.array_equal(sealed, x):
            return
    except Refused:  # NumPy's own, that it cannot be written to
        pass
    raise Refused(
        "The numbers are right, but the caller's x was changed: on a CPU a tensor may lie over the array's own memory, where MATLAB's "
        "gpuArray is a copy. Leave x as it is, and give what you compute another name."
    )


def _same(found: np.ndarray, right: np.ndarray) -> bool:
    return found.shape == right.shape and bool(np.allclose(found.astype(np.float64), right, rtol=_CLOSE, atol=_CLOSE))


def _unknown(found: np.ndarray, right: np.ndarray) -> str:
    if found.shape != right.shape:
        return f"Your result has {plural(found.size, 'number')}, the script's {right.size}. What is i there, and what does 1:i hold?"
    return (
        f"Your numbers differ from the script's by up to {np.max(np.abs(found - right)):.3g}. Go through it line by line: which way does "
        "each function go, and what does it divide by?"
    )


_TRANSLATED = 'def translated(x):\n    """The script, for a NumPy array x of float32; returns r."""\n'
_BODY = """\
    X = gl.to_device(x)
    Y = (X - X.mean(dim=0)) / X.std(dim=0)
    C = Y.T @ Y / (X.shape[0] - 1)
    i = int(C[1:, 0].argmax()) + 1
    s = torch.cumsum(torch.sort(C.reshape(-1)).values, dim=0)
"""
_RETURN = "    return gl.to_host(s[:i])"
_SCRIPT = "import numpy as np\nimport torch\n\nimport gpulab as gl\n\n\n" + _TRANSLATED + _BODY + _RETURN


def _slipped(right: str, wrong: str) -> str:
    """Return the solution with one thing wrong."""
    return _SCRIPT.replace(right, wrong)


TRANSLATED = Exercise(
    id="10.4",
    title="translate a MATLAB script",
    answer_name="translated",
    stub=_TRANSLATED + "    ...  # gl.to_device, torch or NumPy, gl.to_host",
    solution=_SCRIPT,
    hints=(
        "mean, std and max go down the columns in MATLAB: dim=0. A product of matrices is @.",
        "MATLAB and PyTorch divide a variance by n - 1, NumPy by n unless you say ddof=1.",
        "i counts from 1, and s(1:i) holds s(i): with i = argmax + 1 the slice is s[:i].",
    ),
    check=_check_translated,
    usual=(
        Usual(_slipped("X.mean(dim=0)", "X.mean()"), "for each column"),
        Usual(_slipped("X.std(dim=0)", "X.std(dim=0, correction=0)"), "divides by n - 1"),
        Usual(_slipped(" + 1\n", "\n"), "one element short"),
        Usual(_slipped("reshape(-1))", "reshape(-1), descending=True)"), "smallest first"),
        Usual(_slipped("C.reshape(-1)).values", "C, dim=0).values.reshape(-1)"), "down each column"),
        Usual(_slipped("C.reshape(-1)).values", "C).values.reshape(-1)"), "along each row"),
        Usual(_slipped("C[1:, 0]", "C[:, 0]"), "leaves out the first row"),
        Usual(_slipped(_RETURN, "    return s[:i]"), "gather brings"),
        Usual(_slipped("gl.to_host(s[:i])", "gl.to_host(C)[:i]"), "one column of numbers: return them in one dimension"),
        Usual(_slipped(_RETURN, _RETURN + " if i < 5 else None"), "For table 2 your function returned nothing"),
        Usual(_slipped("Y.T @ Y", "Y.T * Y"), "RuntimeError"),
        Usual(_slipped("X = gl.to_device(x)", "X = torch.from_numpy(x)\n    X -= 0 * X + 1"), "the caller's x was changed"),
    ),
    loads=_loading.TORCH,
)

# -- 10.6: the copies of a TensorFlow 1 loop ---------------------------------------------------------------------------------

_STEPS = 20
_OTHER_STEPS = 7  # so that what was asked for is made, and not a number that is written down


def wasteful(session: Any, model: Any, x: np.ndarray, steps: int) -> Any:
    """Feed the data to each step and to each look at the loss, and fetch the weights to see whether they move."""
    for _ in range(steps):
        session.run(model.step, feed_dict={model.x: x})
        loss, _ = session.run([model.loss, model.weights], feed_dict={model.x: x})
    return loss


def _check_frugal(answer: Any) -> str:
    ask = _guard.in_turn(answer)
    praise = [_frugal_bill(ask, steps) for steps in (_STEPS, _OTHER_STEPS)]
    return praise[0]


def _frugal_bill(ask: Callable[..., Any], steps: int) -> str:
    x = np.random.default_rng(6).standard_normal((400, 32)).astype(np.float32)
    before, after = OldSession(), OldSession()
    model = OldModel(x.shape)
    expected = float(wasteful(before, model, x.copy(), steps))
    found = _guard.number(ask(f"For {steps} steps", after, model, x.copy(), steps), "the loss")
    bill = f"{after.runs} runs, {format_bytes(after.fed_bytes)} fed and {format_bytes(after.fetched_bytes)} fetched"
    if after.runs == 0:
        raise Refused("Your function never called session.run: nothing was trained.")
    if after.steps != steps or abs(found - expected) > 1e-5 * abs(expected):
        raise Refused(f"You made {after.steps} of {steps} steps, and your loss is {found:.6g}; the loop ends with {expected:.6g}.")
    if after.fed_bytes > x.nbytes:
        raise Refused(
            f"{bill}: the data ({format_bytes(x.nbytes)}) still travel {after.fed_bytes / x.nbytes:.0f} times. Let model.load keep them on "
            "the device, once, and run the operations that use what is kept."
        )
    if model.weights.name in after.fetched_names:
        raise Refused(f"{bill}: nobody needs the weights in main memory. What a run is asked for, it copies.")
    if len(after.fetched_names) > 1:
        raise Refused(
            f"{bill}: the loss is fetched {len(after.fetched_names)} times, and the device waits each time. Fetch it once, at the end."
        )
    return f"{bill}; the loop had {format_bytes(before.fed_bytes)} fed and {format_bytes(before.fetched_bytes)} fetched."


_TRAIN = 'def train(session, model, x, steps):\n    """Make the steps; return the loss after the last one."""\n'

TRAIN = Exercise(
    id="10.6",
    title="find the copies in a TensorFlow 1 loop",
    answer_name="train",
    stub=_TRAIN + "    ...  # session.run(what, feed_dict={model.x: x}) or session.run(what)",
    solution=_TRAIN
    + """\
    session.run(model.load, feed_dict={model.x: x})  # the only copy of the data
    for _ in range(steps):
        session.run(model.step_kept)  # an operation: it returns nothing, so nothing is fetched
    return session.run(model.loss_kept)""",
    hints=(
        "Everything in feed_dict is sent in that run; everything that a run is asked for and that has a value is fetched.",
        "model.load stores what is fed to model.x on the device; model.step_kept and model.loss_kept use what is stored.",
        "One run feeds. The steps need neither a feed nor a fetch, and the loss is needed once.",
    ),
    check=_check_frugal,
    usual=(
        Usual(
            _TRAIN + "    for _ in range(steps):\n        session.run(model.step, feed_dict={model.x: x})\n"
            "    return session.run(model.loss, feed_dict={model.x: x})",
            "still travel 21 times",
        ),
        Usual(
            _TRAIN + "    for _ in range(steps):\n        session.run(model.load, feed_dict={model.x: x})\n"
            "        session.run(model.step_kept)\n    return session.run(model.loss_kept)",
            "still travel 20 times",
        ),
        Usual(
            _TRAIN + "    session.run(model.load, feed_dict={model.x: x})\n    for _ in range(steps):\n"
            "        session.run(model.step_kept)\n        session.run(model.weights)\n    return session.run(model.loss_kept)",
            "nobody needs the weights",
        ),
        Usual(
            _TRAIN + "    session.run(model.load, feed_dict={model.x: x})\n    for _ in range(steps):\n"
            "        session.run([model.step_kept, model.weights])\n    return session.run(model.loss_kept)",
            "nothing says whether step_kept or weights comes first",
        ),
        Usual(
            _TRAIN + "    session.run(model.load, feed_dict={model.x: x})\n    for _ in range(steps):\n"
            "        loss = session.run([model.step_kept, model.loss_kept])[1]\n    return loss",
            "nothing says whether step_kept or loss_kept comes first",
        ),
        Usual(
            _TRAIN + "    session.run([model.load, model.step_kept], feed_dict={model.x: x})\n    for _ in range(steps - 1):\n"
            "        session.run(model.step_kept)\n    return session.run(model.loss_kept)",
            "nothing says whether load or step_kept comes first",
        ),
        Usual(
            _TRAIN + "    session.run(model.load, feed_dict={model.x: x})\n    session.run([model.step_kept] * steps)\n"
            "    return session.run(model.loss_kept)",
            "You made 1 of 20 steps",
        ),
        Usual(
            _TRAIN + "    session.run(model.load, feed_dict={model.x: x})\n    for _ in range(steps):\n"
            "        session.run(model.step_kept)\n        loss = session.run(model.loss_kept)\n    return loss",
            "the loss is fetched 20 times",
        ),
        Usual(
            _TRAIN + "    session.run(model.load, feed_dict={model.x: x})\n    for _ in range(steps):\n"
            "        session.run(model.step_kept)\n        loss = session.run(model.loss_kept)\n    return session.run(model.loss_kept)",
            "the loss is fetched 21 times",
        ),
        Usual(
            _TRAIN + "    session.run(model.load, feed_dict={model.x: x})\n    session.run(model.step_kept)\n"
            "    return session.run(model.loss_kept)",
            "You made 1 of 20 steps",
        ),
        Usual(
            _TRAIN + "    session.run(model.load, feed_dict={model.x: x})\n    for _ in range(20):\n"
            "        session.run(model.step_kept)\n    return session.run(model.loss_kept)",
            "You made 20 of 7 steps",
        ),
        Usual(
            _TRAIN + "    for _ in range(steps):\n        session.run(model.step_kept)\n    return session.run(model.loss_kept)",
            "nothing was loaded",
        ),
        Usual("train = 3", "expects a function"),
    ),
)

# -- 10.8: fewer programs ----------------------------------------------------------------------------------------------------

LARGEST_BATCH = 1000
_MOST_PROGRAMS = 11
_MOST_WASTE = 2.0


def _check_padded(answer: Any) -> str:
    sizes: set[int] = set()
    worst, worst_rows = 1.0, 1
    ask = _guard.in_turn(answer)
    for rows in range(1, LARGEST_BATCH + 1):
        value = _guard.number(ask(f"For {plural(rows, 'row')}", rows), "a number of rows")
        if value != int(value):
            raise Refused(f"For {plural(rows, 'row')} you gave {value:g}; a batch has a whole number of rows.")
        if value < rows:
            raise Refused(f"For {plural(rows, 'row')} you gave {value:g}: {rows - value:g} of them would be cut off. Pad, never cut.")
        sizes.add(int(value))
        if value / rows > worst:
            worst, worst_rows = value / rows, rows
    count = f"{len(sizes)} program{'s are' if len(sizes) != 1 else ' is'} compiled"
    said = f"{count}, and at most {float(f'{worst:.3g}'):g} times the rows are computed"
    if len(sizes) > _MOST_PROGRAMS:
        raise Refused(f"{said}: {_MOST_PROGRAMS} programs are allowed. Let many batch sizes share one shape.")
    if worst > _MOST_WASTE:
        raise Refused(f"{said} (of {plural(worst_rows, 'row')}): {_MOST_WASTE:g} times is allowed. Small batches need small shapes.")
    return f"{said}, for the {LARGEST_BATCH} batch sizes that may come."


_PADDED = 'def padded(rows):\n    """Return how many rows a batch of `rows` (1 to 1,000) is padded to."""\n'

PADDED = Exercise(
    id="10.8",
    title="compile less often",
    answer_name="padded",
    stub=_PADDED + "    return ...",
    solution=_PADDED + "    return 1 << (rows - 1).bit_length()  # the next power of two: 1, 2, 4, ... 1024",
    hints=(
        "Each different number that your function returns is one more program.",
        "Eleven sizes from 1 to 1,000, none more than twice what is needed: by what factor can they grow?",
    ),
    check=_check_padded,
    usual=(
        Usual(_PADDED + "    return rows", "1000 programs"),
        Usual(_PADDED + "    return 1000", "Small batches need small shapes"),
        Usual(_PADDED + "    return -(-rows // 64) * 64", "programs are allowed"),
        Usual(_PADDED + "    return 1 << (rows.bit_length() - 1)", "Pad, never cut"),
        Usual(_PADDED + "    return 1.5 * rows", "whole number of rows"),
        Usual(
            _PADDED + "    for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):\n        if rows <= size:\n            return size",
            "For 513 rows your function returned nothing",
        ),
        Usual("padded = 1024", "expects a function"),
    ),
)

__all__ = ["PADDED", "SECONDS", "TRAIN", "TRANSLATED", "Promised"]
