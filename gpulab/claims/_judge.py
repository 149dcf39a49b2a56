"""The verdict: mechanical, from the intervals alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gpulab import recordings
from gpulab._given import items as given_items
from gpulab.claims._registry import Spec, spec, specs
from gpulab.claims.results import Claim, Comparison, Finding, Ledger, Verdict
from gpulab.errors import InputError, shown
from gpulab.recordings import Recording

# "Faster" with nothing more said: a gain that is surely below this is none.
NO_GAIN = 1.02


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
    wanted = spec(key)
    for one in (recording, *([] if cpu is None else [cpu])):
        if not isinstance(one, Recording):
            raise InputError(
                f"claims.judge: {shown(one)} is not a recording; expected the result of "
                "gl.recordings.load(name)."
            )
    if cpu is not None and cpu.environment.device_kind != "cpu":
        raise InputError(
            f"claims.judge: cpu={cpu!r} is of a device of kind "
            f"{shown(cpu.environment.device_kind)}; expected the recording of a CPU, "
            "with which claims about GPUs are compared. Pass one, or leave it out."
        )
    return _finding(wanted, recording, cpu)


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
    for one in specs():
        fitting = [recording for recording in many if speaks_of(one.claim, recording)]
        findings += [_finding(one, recording, cpu) for recording in fitting] or [
            Finding(one.claim, "", Verdict.MISSING, (), 0, 0, None)
        ]
    return Ledger(tuple(findings))


def speaks_of(claim: Claim, recording: Recording) -> bool:
    """Return whether a claim is about a recording's device."""
    is_cpu = recording.environment.device_kind == "cpu"
    return claim.about == "any" or (claim.about == "cpu") == is_cpu


def _finding(wanted: Spec, recording: Recording, cpu: Recording | None) -> Finding:
    claim = wanted.claim
    found = sorted(
        wanted.compare(recording, cpu) if speaks_of(claim, recording) else [], key=lambda c: c.ratio
    )
    states = [_inside(claim, one) for one in found]
    return Finding(
        claim,
        recording.name,
        _verdict(claim, found, states),
        tuple(found),
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


def _verdict(claim: Claim, found: Sequence[Comparison], states: Sequence[bool | None]) -> Verdict:
    """Return the verdict.

    A promise of each case holds where none contradicts and at least half agree, and fails where
    none agrees and at least half contradict. A promise of the best case holds where one reaches it,
    partly where one gains at all, and fails where every case contradicts: one of which the interval
    tells nothing may be the best.
    """
    agree, against, half = states.count(True), states.count(False), len(states) / 2
    if not found:
        return Verdict.MISSING
    if not claim.of_each:
        if agree:
            return Verdict.HOLDS
        if any(one.interval is not None and one.interval[0] > NO_GAIN for one in found):
            return Verdict.PARTLY
        return Verdict.FAILS if against == len(states) else Verdict.UNDECIDED
    if agree:
        if against:
            return Verdict.PARTLY
        return Verdict.HOLDS if agree >= half else Verdict.UNDECIDED
    return Verdict.FAILS if against >= half else Verdict.UNDECIDED
