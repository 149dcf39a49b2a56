"""The list of claims, and the verdicts: mechanical, from the intervals alone."""

from __future__ import annotations

import difflib
import functools
import math
import pathlib
import tomllib
from collections.abc import Iterable, Sequence
from typing import Any

from gpulab import recordings
from gpulab._given import items as given_items
from gpulab.claims._compare import Rule, average, compared
from gpulab.claims.results import Claim, Comparison, Finding, Ledger, Source, Verdict
from gpulab.errors import InputError, shown
from gpulab.recordings import Recording

# "Faster" with nothing more said: a gain that is surely below this is none.
NO_GAIN = 1.02


@functools.cache
def _listed() -> dict[str, tuple[Claim, dict[str, Any]]]:
    """Return each claim of ``claims.toml``, in the order of the ledger, with its table there."""
    file = pathlib.Path(__file__).with_name("claims.toml")
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    sources = {
        key: Source(key, one["title"], one["authors"], one.get("year"), one["url"])
        for key, one in content["sources"].items()
    }
    listed = {}
    for one in content["claims"]:
        low, high = one.get("range", (1, math.inf))
        claim = Claim(
            one["key"],
            one["theme"],
            one["sentence"],
            one["reading"],
            sources[one["source"]],
            one["where"],
            one["about"],
            low,
            high,
            not one.get("best_case", False),
        )
        listed[claim.key] = claim, one
    return listed


def claims() -> tuple[Claim, ...]:
    """Return all claims in the order of the ledger."""
    return tuple(claim for claim, _ in _listed().values())


def judge(key: str, recording: Recording, cpu: Recording | None = None) -> Finding:
    """Return what one recording shows about one claim.

    Parameters
    ----------
    key : str
        A claim's key, as ``claims`` lists them.
    recording : Recording
    cpu : Recording, optional
        The recorded CPU that claims about GPU against CPU are compared with.

    Raises
    ------
    InputError
        If there is no such claim, ``recording`` is not a recording, or ``cpu`` is the recording of
        another kind of device.
    """
    if not isinstance(key, str) or key not in _listed():
        near = (
            difflib.get_close_matches(key, _listed(), n=3, cutoff=0.4)
            if isinstance(key, str)
            else []
        )
        raise InputError(
            f"claims: there is no claim {shown(key)}; expected the key of one of "
            f"gl.claims.claims(), such as {', '.join(map(repr, near or list(_listed())[:3]))}."
        )
    for one in (recording, *([] if cpu is None else [cpu])):
        if not isinstance(one, Recording):
            raise InputError(
                f"claims.judge: {shown(one)} is not a recording; expected the result of "
                "gl.recordings.load(name)."
            )
    if cpu is not None and cpu.environment.device_kind != "cpu":
        raise InputError(
            f"claims.judge: cpu={cpu!r} is of a device of kind "
            f"{shown(cpu.environment.device_kind)}; expected the recording of a CPU, with which "
            "claims about GPUs are compared. Pass one, or leave it out."
        )
    return _finding(key, recording, cpu)


def ledger(given: Iterable[Recording] | None = None) -> Ledger:
    """Return every claim compared with every recording of a device that it applies to.

    Parameters
    ----------
    given : recordings, optional
        By default all that can be read (``gl.recordings.readable()``). GPUs are compared with the
        first recording of a CPU.

    Raises
    ------
    InputError
        If one of them is not a recording.
    """
    many = (
        list(recordings.readable().values())
        if given is None
        else given_items("claims.ledger", "given", given)
    )
    wrong = [one for one in many if not isinstance(one, Recording)]
    if wrong:
        raise InputError(
            f"claims.ledger: {shown(wrong[0])} is not a recording; expected results of "
            "gl.recordings.load(name)."
        )
    cpu = next((one for one in many if one.environment.device_kind == "cpu"), None)
    findings = []
    for claim in claims():
        fitting = [recording for recording in many if _applies(claim, recording)]
        findings += [_finding(claim.key, recording, cpu) for recording in fitting] or [
            Finding(claim, "", Verdict.MISSING, (), 0, 0, None)
        ]
    return Ledger(tuple(findings))


def _applies(claim: Claim, recording: Recording) -> bool:
    """Return whether a claim is about a recording's device."""
    is_cpu = recording.environment.device_kind == "cpu"
    return claim.about == "any" or (claim.about == "cpu") == is_cpu


def _finding(key: str, recording: Recording, cpu: Recording | None) -> Finding:
    claim, table = _listed()[key]
    rules: list[Rule] = table["compare"] if _applies(claim, recording) else []
    cases = [case for rule in rules for case in compared(rule, recording, cpu)]
    if table.get("average"):
        cases = average(cases)
    cases.sort(key=lambda case: case.ratio)
    states = [_inside(claim, case) for case in cases]
    return Finding(
        claim,
        recording.name,
        _verdict(claim, cases, states),
        tuple(cases),
        states.count(True),
        states.count(False),
        recording.evidence(),
    )


def _inside(claim: Claim, one: Comparison) -> bool | None:
    """Return whether the whole interval lies inside what was promised (True), outside (False), or
    across the line (None).
    """
    if one.interval is None:
        return None
    low, high = one.interval
    if claim.low == 1 and math.isinf(claim.high):
        return False if high < NO_GAIN else True if low > 1 else None
    if claim.low <= low and high <= claim.high:
        return True
    return False if high < claim.low or low > claim.high else None


def _verdict(claim: Claim, cases: Sequence[Comparison], states: Sequence[bool | None]) -> Verdict:
    """Return the verdict.

    A promise of each case holds where none contradicts and at least half agree, and fails where
    none agrees and at least half contradict. A promise of the best case holds where one reaches it,
    partly where one gains at all, and fails where every case contradicts: one of which the interval
    tells nothing may be the best.
    """
    agree, against, half = states.count(True), states.count(False), len(states) / 2
    if not cases:
        return Verdict.MISSING
    if not claim.of_each:
        if agree:
            return Verdict.HOLDS
        if any(one.interval is not None and one.interval[0] > NO_GAIN for one in cases):
            return Verdict.PARTLY
        return Verdict.FAILS if against == len(states) else Verdict.UNDECIDED
    if agree:
        if against:
            return Verdict.PARTLY
        return Verdict.HOLDS if agree >= half else Verdict.UNDECIDED
    return Verdict.FAILS if against >= half else Verdict.UNDECIDED
