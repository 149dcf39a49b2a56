"""The exercises of notebook 06 on time: read timelines, feed an accelerator, wait less often, and say when compiling has paid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpulab import devices
from gpulab.errors import InputError
from gpulab.lessons import _guard, _loading
from gpulab.lessons._nb06_timelines import timeline
from gpulab.lessons.content import Exercise, NotAttempted, Refused, Usual
from gpulab.training import hidden_waits, model_pipeline
from gpulab.training._pipeline_results import BUSY_STALL_RATIO
from gpulab.training._settings import threads
from gpulab.units import format_seconds, plural

# -- 06.4: name the bottleneck ------------------------------------------------------------------------------------------------

_WORDS = ("data", "copy", "compute")
_LOOK = {
    "A": "Look at A's compute lane: is it ever busy for long? And its six workers: they share two cores, so each of them is slow.",
    "B": "Look at what B's accelerator does before each step: the batches are there in time. What is it that takes the time?",
    "C": "Look at the gaps of C: after the first step there are hardly any. Who is never idle?",
}


def _check_bottlenecks(answer: Any) -> str:
    if not isinstance(answer, (tuple, list)) or len(answer) != 3:
        raise Refused(f"Your answer is {_guard.describe(answer)}; the check expects three words, for A, B and C.")
    if any(map(_guard.is_stub, answer)):
        raise NotAttempted
    for letter, word in zip("ABC", answer, strict=True):
        if not isinstance(word, str) or word not in _WORDS:
            raise Refused(f"For {letter} you gave {_guard.describe(word)}; the check expects one of {', '.join(_WORDS)}.")
        if word != timeline(letter).bottleneck:
            raise Refused(f"{letter} is not bound by {word}. {_LOOK[letter]}")
    return "A waits for data (its workers share two cores), B for its slow link, and C's accelerator is busy: only C needs a faster one."


_BOTTLENECKS = 'bottlenecks = (..., ..., ...)  # for A, B and C: "data", "copy" or "compute"'

BOTTLENECKS = Exercise(
    id="06.4",
    title="name the bottleneck",
    answer_name="bottlenecks",
    stub=_BOTTLENECKS,
    solution='bottlenecks = ("data", "copy", "compute")',
    hints=(
        "Start at the compute lane. Where it is full, nothing else matters.",
        "Where it is not, look at what ends just when a step begins: a batch's loading, or its copy.",
    ),
    check=_check_bottlenecks,
    usual=(
        Usual('bottlenecks = ("compute", "copy", "compute")', "share two cores"),
        Usual('bottlenecks = ("data", "data", "compute")', "the batches are there in time"),
        Usual('bottlenecks = ("data", "copy", "data")', "Who is never idle"),
        Usual('bottlenecks = ("data", "link", "compute")', "expects one of"),
        Usual('bottlenecks = "data"', "three words"),
    ),
)

# -- 06.5: feed the accelerator -----------------------------------------------------------------------------------------------

_HOST = {"loading_seconds": 0.12, "compute_seconds": 0.03, "copy_seconds": 0.002, "cores": 8, "steps": 200}
_MOST_AHEAD = 12  # batches that the host's memory has room for


def _check_stall(answer: Any) -> str:
    if not isinstance(answer, Mapping) or set(answer) != {"workers", "prefetch"}:
        raise Refused(f'Your answer is {_guard.describe(answer)}; the check expects {{"workers": ..., "prefetch": ...}}.')
    if any(_guard.is_stub(value) for value in answer.values()):
        raise NotAttempted
    try:
        chosen = {name: _guard.plain(value) for name, value in answer.items()}
        p = model_pipeline(**_HOST, **chosen)  # type: ignore[arg-type]
    except InputError as error:
        raise Refused(str(error)) from error
    ahead, several = p.workers * p.prefetch, p.workers != 1
    if p.workers == 0:
        raise Refused(f"Without workers the training loads by itself, and the accelerator waits {p.stall_ratio:.0%} of the time.")
    if ahead > _MOST_AHEAD:
        raise Refused(
            f"{p.workers} workers, each {p.prefetch} ahead, are {ahead} batches in the host's memory; there is room for {_MOST_AHEAD}."
            if several
            else f"1 worker, {p.prefetch} ahead, makes {ahead} batches in the host's memory; there is room for {_MOST_AHEAD}."
        )
    if p.stall_ratio >= BUSY_STALL_RATIO:
        raise Refused(
            f"The accelerator still waits {p.stall_ratio:.0%} of the time: {p.workers} {'workers hand' if several else 'worker hands'} "
            f"over a batch every {format_seconds(p.loading_seconds / p.workers)}, and a step takes "
            f"{format_seconds(p.compute_seconds)}."
        )
    return f"{p.workers} workers, each {p.prefetch} ahead: the accelerator waits {p.stall_ratio:.1%} of the time (MODELLED)."


STALL = Exercise(
    id="06.5",
    title="bring the stall under 10 %",
    answer_name="settings",
    stub='settings = {"workers": ..., "prefetch": ...}',
    solution='settings = {"workers": 5, "prefetch": 2}  # 120 ms / 5 = 24 ms a batch, less than a step; 10 batches ahead',
    hints=(
        "With k workers on cores of their own, a batch arrives every 120 / k ms. How often must one arrive?",
        "More workers than needed cost memory: workers times prefetch batches wait in it.",
    ),
    check=_check_stall,
    usual=(
        Usual('settings = {"workers": 0, "prefetch": 2}', "loads by itself"),
        Usual('settings = {"workers": 2, "prefetch": 6}', "still waits"),
        Usual('settings = {"workers": 8, "prefetch": 2}', "batches in the host's memory"),
        Usual('settings = {"workers": 4.5, "prefetch": 2}', "whole number"),
    ),
)

# -- 06.7: wait less often ----------------------------------------------------------------------------------------------------

_BATCHES = 8
_MOST_WAITS = 3
_MORE_EPOCHS = 16  # as one long epoch: a loop that reads every 100th loss waits but once in 8 steps


def _training() -> tuple[Any, Any, Any]:
    """Return a model, its optimizer and some batches, the same ones each time."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        batches = [(torch.randn(16, 8), torch.randint(0, 3, (16,))) for _ in range(_BATCHES)]
    return model, torch.optim.SGD(model.parameters(), lr=0.1), batches


def wasteful_epoch(model: Any, optimizer: Any, batches: Any) -> tuple[float, int]:
    """Train for an epoch as the notebook first writes it; return the sum of the losses and the count of right answers."""
    import torch

    total, right = 0.0, 0
    for inputs, labels in batches:
        optimizer.zero_grad()
        scores = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.item()
        right += int((scores.argmax(1) == labels).sum())
    return total, right


def _check_frugal(answer: Any) -> str:
    with threads(1, devices.Device("cpu")):  # beside a busy neighbour such small steps take thirty times as long on two
        return _frugal(answer)


def _frugal(answer: Any) -> str:
    import torch

    mine, mine_optimizer, batches = _training()
    result = _guard.call(answer, mine, mine_optimizer, batches)
    model, optimizer, batches = _training()
    before = [p.detach().clone() for p in model.parameters()]
    expected = wasteful_epoch(model, optimizer, batches)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise Refused(f"Your function returned {_guard.describe(result)}; the check expects the sum of the losses and the right answers.")
    if any(isinstance(value, torch.Tensor) for value in result):
        raise Refused("What you return are still tensors: whoever uses them has to wait. Read both, once, at the end.")
    if all(torch.equal(a, b) for a, b in zip(before, mine.parameters(), strict=True)):
        raise Refused("Your loop does not train: the parameters are as before. Keep backward() and the optimizer's step.")
    total, right = (_guard.number(value, "two plain numbers") for value in result)
    if not all(torch.allclose(a, b) for a, b in zip(model.parameters(), mine.parameters(), strict=True)):
        raise Refused("The model is not the one that the loop trains. Only the reading may change, not the training.")
    if not math.isclose(total, expected[0], rel_tol=1e-3) or right != expected[1]:
        raise Refused(
            f"You returned {total:.4g} and {right:g}; the losses add up to {expected[0]:.4g}, and {expected[1]} answers are right."
        )
    waits = hidden_waits(answer, *_training(), device="cpu", count_to_cpu=True)  # the batches lie where the model does
    if waits.count > _MOST_WAITS:
        raise Refused(
            f"The host would wait {waits.count} times in {_BATCHES} steps, most often at `{waits.sites[0].line.partition(': ')[2]}`. "
            "Add up tensors in the loop, and read them behind it."
        )
    mine, mine_optimizer, batches = _training()
    longer = hidden_waits(answer, mine, mine_optimizer, batches * _MORE_EPOCHS, device="cpu", count_to_cpu=True)
    if longer.count > _MOST_WAITS:
        raise Refused(
            f"In {_BATCHES} steps the host would wait {plural(waits.count, 'time')}, in {_BATCHES * _MORE_EPOCHS} steps "
            f"{longer.count} times, most often at `{longer.sites[0].line.partition(': ')[2]}`. What is read every so many steps waits "
            "more often in a longer epoch."
        )
    return f"{plural(waits.count, 'wait')} in all instead of {2 * _BATCHES}, with the same numbers: the accelerator never runs dry."


_LOOP_HEAD = '''def frugal(model, optimizer, batches):
    """Train for an epoch; return the sum of the losses and the count of right answers, two plain numbers."""
'''
_LOOP_BODY = """\
    for inputs, labels in batches:
        optimizer.zero_grad()
        scores = model(inputs)
        loss = torch.nn.functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
"""
_IMPORT = "import torch\n\n\n"
FRUGAL = Exercise(
    id="06.7",
    title="wait once",
    answer_name="frugal",
    stub=_LOOP_HEAD + "    ...  # as epoch above, but read nothing inside the loop",
    solution=_IMPORT
    + _LOOP_HEAD
    + "    total, right = 0.0, 0  # tensors from the first sum on, wherever the losses lie\n"
    + _LOOP_BODY
    + """\
        total = total + loss.detach()
        right = right + (scores.argmax(1) == labels).sum()
    return total.item(), right.item()""",
    hints=(
        "A sum of tensors is a tensor. Nothing waits until somebody reads it.",
        "total = total + loss.detach() in the loop; total.item() once, behind it. The same for the right answers.",
    ),
    check=_check_frugal,
    limit_seconds=60.0,
    loads=_loading.STEPS,
    usual=(
        Usual(
            _IMPORT + _LOOP_HEAD + "    total, right = 0.0, 0\n" + _LOOP_BODY + "        total += loss.item()\n"
            "        right += int((scores.argmax(1) == labels).sum())\n    return total, right",
            "would wait 16 times",
        ),
        Usual(
            _IMPORT + _LOOP_HEAD + "    total, right = 0.0, 0\n" + _LOOP_BODY + "        with torch.inference_mode():\n"
            "            total += loss.item()\n            right += int((scores.argmax(1) == labels).sum())\n    return total, right",
            "would wait 16 times",
        ),
        Usual(
            _IMPORT + _LOOP_HEAD + "    total, right = 0.0, 0\n" + _LOOP_BODY + "        total += loss.detach().to(\"cpu\").numpy()\n"
            "        right += (scores.argmax(1) == labels).sum().to(\"cpu\").numpy()\n    return float(total), int(right)",
            "would wait 16 times",
        ),
        Usual(
            _IMPORT + _LOOP_HEAD + "    total, right = 0.0, 0\n" + _LOOP_BODY + "        total = total + loss.detach()\n"
            "        right = right + (scores.argmax(1) == labels).sum()\n    return total, right",
            "still tensors",
        ),
        Usual(
            _IMPORT + _LOOP_HEAD + "    right = 0\n" + _LOOP_BODY + "        right = right + (scores.argmax(1) == labels).sum()\n"
            "    return loss.item(), right.item()",
            "the losses add up to",
        ),
        Usual(
            _IMPORT + _LOOP_HEAD + "    total, right, step = 0.0, 0, 0\n" + _LOOP_BODY + "        total = total + loss.detach()\n"
            "        right = right + (scores.argmax(1) == labels).sum()\n        if step % 100 == 0:\n            print(loss.item())\n"
            "        step += 1\n    return total.item(), right.item()",
            "In 8 steps the host would wait 3 times, in 128 steps 4 times, most often at",
        ),
        Usual(_IMPORT + _LOOP_HEAD + "    return 8.7, 40", "does not train"),
        Usual(
            _IMPORT + _LOOP_HEAD + "    total, right = 0.0, 0\n" + _LOOP_BODY.replace("        optimizer.zero_grad()\n", "")
            + "        total = total + loss.detach()\n        right = right + (scores.argmax(1) == labels).sum()\n"
            "    return total.item(), right.item()",
            "not the one that the loop trains",
        ),
    ),
)  # fmt: skip

# -- 06.9: when has it paid? --------------------------------------------------------------------------------------------------

# (seconds to compile, a call as it is, a call compiled, after how many calls that has paid)
_COSTS = ((10.0, 0.005, 0.002, 3334), (8.0, 0.050, 0.010, 200), (0.5, 2.0, 0.25, 1), (30.0, 0.0625, 0.0615234375, 30_720))
_NEVER = ((10.0, 0.004, 0.005), (3.0, 0.01, 0.01))


def _check_break_even(answer: Any) -> str:
    ask = _guard.in_turn(answer)
    for compile_seconds, eager, compiled, right in _COSTS:
        case = f"{format_seconds(compile_seconds)} to compile, {format_seconds(eager)} a call before and {format_seconds(compiled)} after"
        value, said = _guard.number(ask(f"For {case}", compile_seconds, eager, compiled), "a number of calls"), f"With {case}"
        if abs(value - right) <= 1:  # rounding down is as right
            continue
        if math.isclose(value, compile_seconds / eager, rel_tol=0.01) or math.isclose(value, compile_seconds / compiled, rel_tol=0.01):
            raise Refused(f"{said} you say {value:g}. Compiling is paid back with what a call saves, not with what it takes.")
        if 0 < value < 1:
            raise Refused(
                f"{said} you say {value:g} calls. It is the cost over the saving, not the other way round, and at least one call."
            )
        raise Refused(f"{said} you say {value:g} calls; it is {right:,}.")
    for compile_seconds, eager, compiled in _NEVER:
        try:
            value = _guard.call(answer, compile_seconds, eager, compiled)
        except NotAttempted:  # None, which is right here
            continue
        if value == math.inf:
            continue
        raise Refused(
            f"A call takes {format_seconds(eager)} before and {format_seconds(compiled)} after compiling: that never pays, and you say "
            f"{_guard.describe(value)}. Return None there."
        )
    return "Right in six cases, the two in which compiling never pays among them."


_BREAK_EVEN = '''def pays_after(compile_seconds, eager_seconds, compiled_seconds):
    """After how many calls has compiling paid? None if never."""
'''

BREAK_EVEN = Exercise(
    id="06.9",
    title="after how many calls?",
    answer_name="pays_after",
    stub=_BREAK_EVEN + "    ...  # the seconds of compiling, of a call before, and of a call after",
    solution="import math\n\n\n"
    + _BREAK_EVEN
    + """\
    saved = eager_seconds - compiled_seconds
    return math.ceil(compile_seconds / saved) if saved > 0 else None""",
    hints=(
        "Each call gives back a little of what compiling took. How much?",
        "compile_seconds / (eager_seconds - compiled_seconds), rounded up; and if a call saves nothing, never.",
    ),
    check=_check_break_even,
    usual=(
        Usual(_BREAK_EVEN + "    return compile_seconds / eager_seconds", "not with what it takes"),
        Usual(_BREAK_EVEN + "    return compile_seconds / compiled_seconds", "not with what it takes"),
        Usual(_BREAK_EVEN + "    return max(1, round(compile_seconds / (eager_seconds - compiled_seconds + 1e-12)))", "never pays"),
        Usual(_BREAK_EVEN + "    return (eager_seconds - compiled_seconds) / compile_seconds", "not the other way round"),
        Usual(_BREAK_EVEN + "    return 100", "it is 3,334"),
    ),
)
