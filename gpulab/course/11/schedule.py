"""11.15: no slot stays idle."""

# %% exercise
id = "11.15"
title = "no slot stays idle"
answer_name = "continuous"

# %% stub
def continuous(lengths, slots):
    """Return the steps of a batch with `slots` places: for each step, the numbers of its requests."""
    ...  # request i needs lengths[i] steps, one token each; all of them wait from the start

# %% hint
# Keep two things: the requests that still wait, and those that run with the steps that they still
# need. Before each step, fill every free place.

# %% hint
# While something waits or runs: move requests from waiting to running until all places are taken or
# none waits; note list(running) as a step; take one from each of them; remove those that are done.

# %% solution
def continuous(lengths, slots):
    """Return the steps of a batch with `slots` places: for each step, the numbers of its requests."""
    waiting, running, steps = list(range(len(lengths))), {}, []
    while waiting or running:
        while waiting and len(running) < slots:
            request = waiting.pop(0)
            running[request] = lengths[request]
        steps.append(list(running))
        running = {request: left - 1 for request, left in running.items() if left > 1}
    return steps

# %% check
from collections import Counter
from operator import index
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused
from gpulab.units import plural

_CASES = (((3, 1, 2, 2), 2), ((5, 1, 1, 1, 4, 2, 2), 3), ((2, 2), 4), ((7,), 1), ((1, 1, 1, 1, 1), 2), ((4, 9, 2, 6, 3, 3, 8, 1, 5, 2, 2, 7), 4))


def check(answer: Any) -> str:
    ask = checking.in_turn(answer)
    for lengths, slots in _CASES:
        said = f"With lengths {list(lengths)} and {plural(slots, 'slot')}"
        _judge(said, ask(said, list(lengths), slots), lengths, slots)
    return "Every request gets its steps, and no slot is idle while another request waits."


def _judge(said: str, result: Any, lengths: tuple[int, ...], slots: int) -> None:
    try:
        steps = [[index(request) for request in step] for step in result]
    except Exception as error:
        raise Refused(f"{said} you returned {checking.describe(result)}; the check expects a list of steps, each a list of whole numbers, the requests.") from error
    if isinstance(result, list) and len(steps) > 1 and len({id(step) for step in result}) == 1 and len(steps) * len(steps[0]) != sum(lengths):
        raise Refused(f"{said} all entries are one and the same list, so each shows what came last. Append a copy: list(running).")
    left = Counter(dict(enumerate(lengths)))
    for number, step in enumerate(steps):
        unknown = [request for request in step if request not in left]
        if unknown:
            raise Refused(f"{said}, step {number} has the request {unknown[0]}; the numbers go from 0 to {len(lengths) - 1}.")
    started: set[int] = set()
    for number, step in enumerate(steps):
        where = f"{said}, step {number}"
        if len(set(step)) < len(step):
            raise Refused(f"{where} has a request twice. A request gets one token in a step, because each token needs the one before it.")
        if len(step) > slots:
            raise Refused(f"{where} has {len(step)} requests, and there {'is' if slots == 1 else 'are'} {plural(slots, 'slot')}.")
        over = [request for request in step if left[request] <= 0]
        if over:
            raise Refused(f"{where} still has the request {over[0]}, which was done after {plural(lengths[over[0]], 'step')}. Its place is wasted.")
        missing = [request for request in sorted(started) if left[request] > 0 and request not in step]
        if missing:
            raise Refused(f"{where} leaves out the request {missing[0]}, which has begun and is not done. Its keys and values still take memory.")
        waiting = [request for request, rest in left.items() if rest > 0 and request not in step]
        if len(step) < slots and waiting:
            late = number + 1 < len(steps) and set(steps[number + 1]) - started and set(steps[number + 1]) & set(step)
            hint = "Fill the places before the step is noted, not after it." if late else "Do not wait for the whole group: a finished request makes room at once."
            raise Refused(f"{where} has {plural(slots - len(step), 'idle slot')} while the request {waiting[0]} waits. {hint}")
        if not step:
            raise Refused(f"{where} is empty: all requests were done before it. End there.")
        started.update(step)
        left.subtract(step)
    rest = {request: count for request, count in left.items() if count > 0}
    if rest:
        request, count = next(iter(rest.items()))
        raise Refused(f"{said} the request {request} lacks {plural(count, 'step')} at the end. Does the loop go on while something runs?")

# %% wrong: wait for the whole group
def continuous(lengths, slots):
    steps = []
    for first in range(0, len(lengths), slots):
        group = range(first, min(first + slots, len(lengths)))
        for step in range(max(lengths[i] for i in group)):
            steps.append([i for i in group if lengths[i] > step])
    return steps

# %% wrong: Its place is wasted
def continuous(lengths, slots):
    steps = []
    for first in range(0, len(lengths), slots):
        group = list(range(first, min(first + slots, len(lengths))))
        steps += [group] * max(lengths[i] for i in group)
    return steps

# %% wrong: before the step is noted
def continuous(lengths, slots):
    waiting, running, steps = list(range(len(lengths))), {}, []
    while waiting and len(running) < slots:
        request = waiting.pop(0)
        running[request] = lengths[request]
    while running or waiting:
        steps.append(list(running))
        free = slots - len(running)
        running = {request: left - 1 for request, left in running.items() if left > 1}
        for request in waiting[:free]:
            running[request] = lengths[request]
        waiting = waiting[free:]
    return steps

# %% wrong: lacks
def continuous(lengths, slots):
    waiting, running, steps = list(range(len(lengths))), {}, []
    while waiting:
        while waiting and len(running) < slots:
            request = waiting.pop(0)
            running[request] = lengths[request]
        steps.append(list(running))
        running = {request: left - 1 for request, left in running.items() if left > 1}
    return steps

# %% wrong: is empty
def continuous(lengths, slots):
    waiting, left, steps = list(range(len(lengths))), {}, []
    for _ in range(sum(lengths)):
        while waiting and len(left) < slots:
            request = waiting.pop(0)
            left[request] = lengths[request]
        steps.append(list(left))
        left = {request: rest - 1 for request, rest in left.items() if rest > 1}
    return steps

# %% wrong: there are 2 slots
def continuous(lengths, slots):
    return [[i for i, n in enumerate(lengths) if n > step] for step in range(max(lengths))]

# %% wrong: has begun and is not done
def continuous(lengths, slots):
    left, steps, turn = dict(enumerate(lengths)), [], 0
    while left:
        names = list(left)
        step = [names[(turn + i) % len(names)] for i in range(min(slots, len(names)))]
        steps.append(step)
        turn += 1
        for i in step:
            left[i] -= 1
            if not left[i]:
                del left[i]
    return steps


# %% wrong: one and the same list
def continuous(lengths, slots):
    """Return the steps of a batch with `slots` places: for each step, the numbers of its requests."""
    waiting, running, left, steps = list(range(len(lengths))), [], list(lengths), []
    while waiting or running:
        while waiting and len(running) < slots:
            running.append(waiting.pop(0))
        steps.append(running)
        for request in list(running):
            left[request] -= 1
            if not left[request]:
                running.remove(request)
    return steps
