"""The cheap test before the look for hazards lets nothing pass that could race, and passes what kernels usually do."""

from __future__ import annotations

import numpy as np
import pytest

from gpulab.kernels._simulate import _owners
from gpulab.kernels._simulate._geometry import Batch
from gpulab.kernels._simulate._lanes import Lanes, Moment
from gpulab.kernels._simulate._owners import Owners

WORDS, THREADS = 6, 4
NOW = Moment(1, 0, 1)
EVERYONE = Batch(0, 1, (1, 1, 1), (32, 1, 1)).everyone


def lanes(words: list[int], threads: list[int]) -> Lanes:
    return Lanes(np.array(words), np.array(threads, dtype=np.int32), EVERYONE, False)


def races(accesses: list[tuple[str, Lanes]]) -> bool:
    """Return by definition whether two threads touch one word, one of them writing, and not both by an atomic."""
    each = [(kind, w, t) for kind, some in accesses for w, t in zip(some.words.tolist(), some.threads.tolist(), strict=True)]
    return any(
        w == v and t != u and {kind, other} not in ({"load"}, {"atomic"}) for n, (kind, w, t) in enumerate(each) for other, v, u in each[:n]
    )


def test_what_passes_cannot_race() -> None:
    """3,000 random sequences, some lanes used again: the accesses that passed so far hold no race; most that hold none pass."""
    rng = np.random.default_rng(5)
    passed = harmless = 0
    for _ in range(3000):
        owners = Owners(WORDS)
        known: list[Lanes] = []
        so_far: list[tuple[str, Lanes]] = []
        for _ in range(rng.integers(2, 6)):
            if known and rng.random() < 0.3:
                some = known[rng.integers(len(known))]
            else:
                threads = rng.permutation(THREADS)[: rng.integers(1, THREADS + 1)]
                own = rng.random() < 0.6
                some = lanes(list(threads) if own else list(rng.integers(0, WORDS, len(threads))), list(threads))
            known.append(some)
            so_far.append((str(rng.choice(["load", "store", "atomic"], p=[0.5, 0.4, 0.1])), some))
            racing = races(so_far)
            harmless += not racing
            if not owners.passes(so_far[-1][0], some, NOW):
                break
            assert not racing, [(kind, some.words.tolist(), some.threads.tolist()) for kind, some in so_far]
            passed += 1
    assert harmless > 3000
    assert passed > 0.8 * harmless


@pytest.mark.parametrize(
    ("accesses", "expected"),
    [
        ([("load", [0, 0], [0, 1]), ("load", [0, 1], [1, 0])], True),  # nobody writes
        ([("atomic", [0, 0], [0, 1]), ("atomic", [0, 1], [1, 0])], True),  # all are atomic
        ([("store", [0, 1], [0, 1]), ("load", [0, 1], [0, 1]), ("store", [0, 1], [0, 1])], True),  # each its own word
        ([("load", [1, 2], [0, 1]), ("store", [0, 3], [0, 1])], True),  # words apart
        ([("load", [1, 2], [0, 1]), ("store", [0, 1], [0, 1])], False),  # the neighbour reads what is written
        ([("store", [0, 1], [0, 1]), ("load", [1, 2], [0, 1])], False),
        ([("store", [0, 0], [0, 1])], False),  # two write one word
        ([("store", [0, 1], [0, 1]), ("atomic", [2, 3], [0, 1])], False),  # might be let pass, but is left to the witnesses
    ],
)
def test_usual_accesses(accesses: list, expected: bool) -> None:
    """By hand: whether the last of these accesses passes; those before it do."""
    owners = Owners(WORDS)
    *before, last = [(kind, lanes(words, threads)) for kind, words, threads in accesses]
    assert all(owners.passes(kind, some, NOW) for kind, some in before)
    assert owners.passes(last[0], last[1], NOW) is expected


def test_so_many_lanes_are_noted_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for three: two lanes pass twice, which are four, and the third time it is left to the witnesses; until all is forgotten."""
    monkeypatch.setattr(_owners, "_MOST_NOTED", 3)
    owners, mine = Owners(WORDS), lanes([0, 1], [0, 1])
    assert [owners.passes("load", mine, NOW) for _ in range(3)] == [True, True, False]
    owners.forget()
    assert owners.passes("load", mine, NOW)
    assert owners.noted == [("load", mine, NOW)]


def test_all_begins_anew_after_a_barrier() -> None:
    """What was noted is forgotten: the neighbour may read after the barrier, and write after the next."""
    owners = Owners(WORDS)
    mine, next_to_mine = lanes([0, 1], [0, 1]), lanes([1, 2], [0, 1])
    assert owners.passes("store", mine, NOW)
    owners.forget()
    assert owners.noted == []
    assert owners.passes("load", next_to_mine, NOW)
    owners.forget()
    assert owners.passes("store", next_to_mine, NOW)
    assert not owners.passes("load", mine, NOW)
