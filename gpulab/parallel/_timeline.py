"""From the notes of each rank to lanes of compute, communication and idle on one clock.

A collective begins for each rank when that rank enters it, but no data can move until the ranks
that it needs are there. So a rank's time in a collective falls into two parts: until the last rank
that it needs had entered (idle, where the rank's own thread stood still; nothing, where it went on
computing) and from then on (communication).
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulab.evidence import Evidence
from gpulab.parallel._observe import CollectiveCall
from gpulab.parallel.results import RankSpan, RankTimeline

Interval = tuple[float, float]
# Pieces shorter than a microsecond come from reading the clock twice.
_SHORTEST_SECONDS = 1e-6


@dataclass(frozen=True)
class RankNotes:
    """What one rank noted while its steps were observed; times on its own clock.

    Attributes
    ----------
    phases : tuple of (name, begin, end)
        What its thread did, waits included.
    calls : tuple of CollectiveCall
    waits : tuple of (number of the call, begin, end)
        When the thread stood in waits for calls.
    ends_in_wait : tuple of float
        As in ``Setting``.
    steps : tuple of float
        When each step began.
    end : float
        When the last one was over.
    ahead_seconds : float
        How far its clock is ahead of rank 0's.
    """

    phases: tuple[tuple[str, float, float], ...]
    calls: tuple[CollectiveCall, ...]
    waits: tuple[tuple[int, float, float], ...]
    ends_in_wait: tuple[float, ...]
    steps: tuple[float, ...]
    end: float
    ahead_seconds: float = 0.0


def timeline(label: str, notes: Sequence[RankNotes], evidence: Evidence) -> RankTimeline:
    """Return the lanes of what ranks noted, one note a rank in rank order."""
    zero = min(note.steps[0] - note.ahead_seconds for note in notes)
    arrivals = _arrivals(notes)
    spans: list[RankSpan] = []
    for rank, note in enumerate(notes):
        spans += _lanes(rank, note, arrivals[rank], zero + note.ahead_seconds)
    spans.sort(key=lambda span: (span.rank, span.begin_seconds, span.end_seconds))
    steps = tuple(
        min(note.steps[number] - note.ahead_seconds for note in notes) - zero
        for number in range(min(len(note.steps) for note in notes))
    )
    end = max(note.end - note.ahead_seconds for note in notes) - zero
    return RankTimeline(label, len(notes), tuple(spans), steps, end, (), evidence)


def _lanes(rank: int, note: RankNotes, arrivals: Sequence[float], zero: float) -> list[RankSpan]:
    """Return one rank's spans; ``arrivals`` are, call by call and on its clock, when the last rank
    needed had entered.
    """
    spans: list[RankSpan] = []
    moving: list[Interval] = []
    for call, arrival in zip(note.calls, arrivals, strict=True):
        # A work reports its end on another thread, which may come to it later than the wait for it
        # returns.
        waits = [end for number, _, end in note.waits if number == call.number]
        if call.end_seconds is None:
            continue
        end = min(call.end_seconds, *waits) if waits else call.end_seconds
        # A short message is gone before its receiver asks for it: the system keeps it.
        sent_ahead = call.name == "send" and arrival > end
        begin = call.begin_seconds if sent_ahead else min(max(call.begin_seconds, arrival), end)
        moving.append((begin, end))
        spans.append(
            RankSpan(rank, "communication", call.name, begin - zero, end - zero, call.payload_bytes)
        )
    names = {call.number: call.name for call in note.calls}
    stood = [(begin, end, names[number]) for number, begin, end in note.waits if number in names]
    stood += _tails(note)
    taken = list(moving)
    for begin, end, name in sorted(stood):
        # what two waits share counts for the first only
        for piece in _without((begin, end), taken):
            spans.append(RankSpan(rank, "idle", name, piece[0] - zero, piece[1] - zero))
            taken.append(piece)
    for name, begin, end in note.phases:
        for piece in _without((begin, end), [(begin, end) for begin, end, _ in stood]):
            spans.append(RankSpan(rank, "compute", name, piece[0] - zero, piece[1] - zero))
    return [
        span for span in spans if span.kind == "communication" or span.seconds >= _SHORTEST_SECONDS
    ]


def _tails(note: RankNotes) -> list[tuple[float, float, str]]:
    """Return the waits that Python did not see: from the last collective that a pass entered until
    the pass was over.
    """
    tails = []
    for moment in note.ends_in_wait:
        before = [call for call in note.calls if call.begin_seconds <= moment]
        if before:
            tails.append((before[-1].begin_seconds, moment, before[-1].name))
    return tails


def _arrivals(notes: Sequence[RankNotes]) -> list[list[float]]:
    """Return for each rank and call when the last rank that it needs had entered, on that rank's
    clock.

    Ranks enter the collectives of one group in the same order, so the k-th of a group is the same
    for all; messages between two ranks are the k-th each way.
    """
    entered: dict[tuple[object, ...], dict[int, float]] = defaultdict(dict)
    keys: list[list[tuple[object, ...]]] = []
    for rank, note in enumerate(notes):
        counts: dict[tuple[object, ...], int] = defaultdict(int)
        mine = []
        for call in note.calls:
            kind = _channel(rank, call)
            key = (*kind, counts[kind])
            counts[kind] += 1
            entered[key][rank] = call.begin_seconds - note.ahead_seconds
            mine.append(key)
        keys.append(mine)
    return [
        [
            _last_needed(rank, call, entered[key]) + note.ahead_seconds
            for call, key in zip(note.calls, keys[rank], strict=True)
        ]
        for rank, note in enumerate(notes)
    ]


def _channel(rank: int, call: CollectiveCall) -> tuple[object, ...]:
    if call.name == "send":
        return ("message", rank, call.root)
    if call.name == "recv":
        return ("message", call.root, rank)
    return ("group", call.group, call.name == "send and recv")


def _last_needed(rank: int, call: CollectiveCall, entered: dict[int, float]) -> float:
    """Return when the last rank that this rank needs entered: of a broadcast or scatter the root,
    of a reduce or gather all at the root.
    """
    own = entered[rank]
    if call.name in ("broadcast", "scatter"):
        return max(own, entered.get(call.root if call.root is not None else rank, own))
    if call.name in ("reduce", "gather") and rank != call.root:
        return own
    return max(entered.values())


def _without(interval: Interval, holes: Iterable[Interval]) -> list[Interval]:
    """Return what is left of an interval outside the holes."""
    rest = [interval]
    for low, high in holes:
        rest = [
            (begin, end)
            for left, right in rest
            for begin, end in ((left, min(right, low)), (max(left, high), right))
            if begin < end
        ]
    return rest


def clocks_ahead(device: Any = "cpu", rounds: int = 8) -> float:
    """Return how far this rank's clock is ahead of rank 0's, in seconds; called by all ranks at
    once.

    Ranks on one machine share a clock, and 0 is exact. Elsewhere rank 0 asks each rank for its
    time, several times, and the answer that came back fastest counts: it is wrong by half of that
    time at most.
    """
    import torch
    import torch.distributed as dist

    rank, size = dist.get_rank(), dist.get_world_size()
    names: list[str] = [""] * size
    dist.all_gather_object(names, machine())
    if len(set(names)) == 1:
        return 0.0
    answer = torch.zeros(1, dtype=torch.float64, device=device)
    found = torch.zeros(size, dtype=torch.float64, device=device)
    for other in range(1, size):
        if rank == 0:
            answers = []
            for _ in range(rounds):
                asked = time.perf_counter()
                dist.send(answer, other)
                dist.recv(answer, other)
                back = time.perf_counter()
                answers.append((back - asked, answer.item() - (asked + back) / 2))
            found[other] = min(answers)[1]
        elif rank == other:
            for _ in range(rounds):
                dist.recv(answer, 0)
                answer.fill_(time.perf_counter())
                dist.send(answer, 0)
    dist.broadcast(found, 0)
    return float(found[rank])


def machine() -> str:
    """Return a name of the machine that no other has: with Linux's number of this start of the
    kernel. Ranks with the same one share a clock.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()} {boot.read_text(encoding='ascii').strip() if boot.is_file() else ''}"
