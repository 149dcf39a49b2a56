"""11.8: the cache."""

# %% exercise
id = "11.8"
title = "the cache"
answer_name = "append"
loads = ["torch"]
live = True

# %% stub
def append(cache, k, v):
    """Store the keys and values of the new positions; return those of all positions so far."""
    ...  # cache.k, cache.v: (batch, heads, room, size), of which cache.length positions are filled

# %% hint
# k.shape[2] is the number of new positions: the whole prompt in the first call, one or a few later.
# The first of them goes into the place cache.length, the others into the places after it.

# %% hint
# end = cache.length + k.shape[2]; cache.k[:, :, cache.length:end] = k, the same for v. Then set the
# length, and return the first `end` positions of both. Is the newest one among them?

# %% solution
def append(cache, k, v):
    """Store the keys and values of the new positions; return those of all positions so far."""
    end = cache.length + k.shape[2]
    cache.k[:, :, cache.length : end] = k
    cache.v[:, :, cache.length : end] = v
    cache.length = end
    return cache.k[:, :, :end], cache.v[:, :, :end]

# %% check
import contextlib
import operator
import types
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused
from gpulab.units import plural

_BATCH, _HEADS, _ROOM, _SIZE = 2, 3, 12, 4
# New positions of each call: a prompt, single ones, three at once (as in speculative decoding), single ones until the room is full.
_NEW = (5, 1, 1, 3, 1, 1)


def check(answer: Any) -> str:
    import torch

    cache = types.SimpleNamespace(length=0)
    cache.k, cache.v = (torch.zeros(_BATCH, _HEADS, _ROOM, _SIZE) for _ in range(2))
    room = cache.k
    generator, before = torch.Generator().manual_seed(8), [torch.zeros(_BATCH, _HEADS, 0, _SIZE)] * 2
    held: list[Any] = []  # keys returned by the calls after the first; kept alive, so that their memory is not reused
    for number, new in enumerate(_NEW):
        k, v = (torch.randn(_BATCH, _HEADS, new, _SIZE, generator=generator) for _ in range(2))
        said = f"After {'the prompt of 5 positions' if not number else f'call {number + 1} (positions so far: {before[0].shape[2] + new})'},"
        try:
            result = checking.call(answer, cache, k.clone(), v.clone())
        except NotAttempted as nothing:
            if number:
                raise Refused(f"{said} append returned nothing.") from nothing
            raise
        if not isinstance(result, (tuple, list)) or len(result) != 2 or not all(isinstance(each, torch.Tensor) for each in result):
            raise Refused(f"{said} append returned {checking.describe(result)}; the check expects two tensors, all keys and all values so far.")
        right = [torch.cat(pair, 2) for pair in zip(before, (k, v), strict=True)]
        for name, mine, want, fresh, old in zip(("keys", "values"), result, right, (k, v), before, strict=True):
            _judge(said, name, mine, want, fresh, old, swapped=right[name == "keys"])
        _judge_length(said, getattr(cache, "length", None), right[0].shape[2], new)
        if getattr(cache.k, "_base", None) is room and cache.k.shape[2] < _ROOM:
            raise Refused(
                f"{said} cache.k has room for {cache.k.shape[2]} positions only: the part that you return has replaced the room. "
                f"Leave cache.k and cache.v as they are, with all {_ROOM} places."
            )
        held += [result[0]] * bool(number)
        if len({each.untyped_storage().data_ptr() for each in held}) > 1:
            raise Refused(
                f"{said} the keys lie in another place of the memory than after the call before: every call copies all of them (torch.cat does). Write into the room "
                "that is reserved, and return a part of it."
            )
        before = right
    return "Keys and values of a prompt, of single positions and of several at once come back in order, and no call copies the earlier ones."


def _judge(said: str, name: str, mine: Any, want: Any, fresh: Any, old: Any, swapped: Any) -> None:
    import torch

    def same(one: Any, two: Any) -> bool:
        return one.shape == two.shape and torch.allclose(one.float(), two.float())

    if same(mine, want):
        return
    total, past = want.shape[2], old.shape[2]
    if mine.dim() != 4 or mine.shape[:2] != want.shape[:2] or mine.shape[3] != want.shape[3]:
        raise Refused(f"{said} the {name} have the shape {tuple(mine.shape)}; the check expects {tuple(want.shape)}: (batch, heads, positions, size).")
    if same(mine, want[:, :, :-1]) or same(mine, old):
        raise Refused(f"{said} the newest position is missing among the {name}: off by one. A position also attends to itself: return up to the new length.")
    if mine.shape[2] == _ROOM and total < _ROOM:
        raise Refused(f"{said} append returns the whole room: {_ROOM} {name}, of which only {total} are filled. A softmax would give weight to the zeros.")
    if same(mine, fresh) and past:
        raise Refused(f"{said} append returns only the new {name}. The query needs those of all positions so far.")
    if same(mine, swapped):
        raise Refused(f"{said} the {name} are {'values' if name == 'keys' else 'keys'}. Are k and v exchanged?")
    if mine.shape[2] != total:
        hint = "Off by one: the last of them is not filled yet." if mine.shape[2] == total + 1 else "How many positions does this call bring: k.shape[2]?"
        raise Refused(f"{said} append returns {name} of {plural(mine.shape[2], 'position')}; {total} {'is' if total == 1 else 'are'} right. {hint}")
    if past and not same(mine[:, :, past - 1], old[:, :, past - 1]) and same(mine[:, :, : past - 1], old[:, :, : past - 1]):
        raise Refused(f"{said} the new {name} overwrite position {past - 1}, or leave a place free behind it: off by one. The first free place is `length`.")
    wrong = next(i for i in range(total) if not same(mine[:, :, i], want[:, :, i]))
    if bool((mine[:, :, wrong] == 0).all()):
        raise Refused(f"{said} position {wrong} of the {name} was never written: it is zero. Off by one? The first free place is `length`, counted before this call.")
    raise Refused(f"{said} position {wrong} of the {name} is not the one that was stored. Are earlier positions overwritten?")


def _judge_length(said: str, length: Any, right: int, new: int) -> None:
    counted = None
    with contextlib.suppress(TypeError):  # a whole number of any library
        counted = operator.index(length)
    if counted == right:
        return
    hint = f"This call brings {new} positions." if new > 1 else "The next position is numbered by it."
    if counted in (right - 1, right + 1):
        hint = "Off by one: it counts the filled places, and the next position goes into the place with this number."
    raise Refused(f"{said} `length` is {checking.describe(length)}; {right} is right. {hint}")

# %% wrong: newest position is missing
def append(cache, k, v):
    start, end = cache.length, cache.length + k.shape[2]
    cache.k[:, :, start:end], cache.v[:, :, start:end] = k, v
    cache.length = end
    past = start or end
    return cache.k[:, :, :past], cache.v[:, :, :past]

# %% wrong: newest position is missing
def append(cache, k, v):
    past = cache.k[:, :, : cache.length], cache.v[:, :, : cache.length]
    end = cache.length + k.shape[2]
    cache.k[:, :, cache.length : end], cache.v[:, :, cache.length : end] = k, v
    cache.length = end
    return past

# %% wrong: overwrite position 4
def append(cache, k, v):
    start, end = max(cache.length - 1, 0), cache.length + k.shape[2]
    cache.k[:, :, start : start + k.shape[2]] = k
    cache.v[:, :, start : start + k.shape[2]] = v
    cache.length = end
    return cache.k[:, :, :end], cache.v[:, :, :end]

# %% wrong: never written
def append(cache, k, v):
    new, end = k.shape[2], cache.length + k.shape[2]
    cache.k[:, :, cache.length + 1 : end + 1] = k
    cache.v[:, :, cache.length + 1 : end + 1] = v
    cache.length = end
    return cache.k[:, :, :end], cache.v[:, :, :end]

# %% wrong: Off by one: the last
def append(cache, k, v):
    end = cache.length + k.shape[2]
    cache.k[:, :, cache.length : end], cache.v[:, :, cache.length : end] = k, v
    cache.length = end
    return cache.k[:, :, : end + 1], cache.v[:, :, : end + 1]

# %% wrong: Off by one: it counts
def append(cache, k, v):
    end = cache.length + k.shape[2]
    cache.k[:, :, cache.length : end], cache.v[:, :, cache.length : end] = k, v
    cache.length = end - 1
    return cache.k[:, :, :end], cache.v[:, :, :end]

# %% wrong: the whole room
def append(cache, k, v):
    end = cache.length + k.shape[2]
    cache.k[:, :, cache.length : end], cache.v[:, :, cache.length : end] = k, v
    cache.length = end
    return cache.k, cache.v

# %% wrong: 5 is right
def append(cache, k, v):
    end = cache.length + k.shape[2]
    cache.k[:, :, cache.length : end], cache.v[:, :, cache.length : end] = k, v
    cache.length += 1
    return cache.k[:, :, :end], cache.v[:, :, :end]

# %% wrong: only the new
def append(cache, k, v):
    end = cache.length + k.shape[2]
    cache.k[:, :, cache.length : end], cache.v[:, :, cache.length : end] = k, v
    cache.length = end
    return k, v

# %% wrong: every call copies
import torch


def append(cache, k, v):
    if cache.length:
        k, v = torch.cat([cache.k, k], 2), torch.cat([cache.v, v], 2)
    cache.k, cache.v, cache.length = k, v, k.shape[2]
    return k, v

# %% wrong: exchanged
def append(cache, k, v):
    end = cache.length + k.shape[2]
    cache.k[:, :, cache.length : end], cache.v[:, :, cache.length : end] = k, v
    cache.length = end
    return cache.v[:, :, :end], cache.k[:, :, :end]


# %% wrong: has replaced the room
def append(cache, k, v):
    """Store the keys and values of the new positions; return those of all positions so far."""
    end = cache.length + k.shape[2]
    cache.k[:, :, cache.length : end] = k
    cache.v[:, :, cache.length : end] = v
    cache.length = end
    cache.k, cache.v = cache.k[:, :, :end], cache.v[:, :, :end]
    return cache.k, cache.v
