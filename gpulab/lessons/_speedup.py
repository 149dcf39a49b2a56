"""What notebook 09 shows beside the ladder: what was published of its techniques, what recorded GPUs gained, and a step made of parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpulab import claims, training
from gpulab.claims import Finding
from gpulab.errors import InputError, shown
from gpulab.evidence import Evidence
from gpulab.lessons._recorded_gpus import NOT_YET, caption_of, recorded_gpus, with_captions
from gpulab.results import Result
from gpulab.training import Gain, RecordedLadder
from gpulab.training._ladder_recorded import gains_of
from gpulab.units import format_seconds, plural

# Technique -> the claims of the ledger that speak of it.
_CLAIMS: Mapping[str, tuple[str, ...]] = {
    "resident": ("create-there", "copies-outweigh-adding"),
    "prefetch": ("pinned-training", "pinned-copies", "workers-help"),
    "batch": ("larger-batches",),
    "waits": ("item-waits",),
    "tf32": ("tf32-7x",),
    "mixed": ("amp-3x", "half-2-to-8"),
    "layout": ("channels-last-gpu", "channels-last-cpu"),
    "autotune": ("cudnn-autotune",),
    "fused": ("fused-optimizer", "foreach-optimizer"),
    "compile": ("compile-float32", "compile-amp"),
    "graph": ("graph-steps", "graph-launches"),
    "lighter": ("depthwise-time", "groups-cost-time"),
    "ranks": ("ddp-near-linear",),
}


@dataclass(frozen=True)
class LadderClaims(Result):
    """The claims of the ledger about the techniques of the ladder, beside what recorded machines say.

    Attributes
    ----------
    rows : tuple of (str, Finding)
        The technique's title and what one machine says of one claim.
    """

    rows: tuple[tuple[str, Finding], ...]

    def caption(self) -> str:
        """Return the badge lines of the machines."""
        return caption_of([finding.evidence for _, finding in self.rows if finding.evidence is not None])

    def __repr__(self) -> str:
        return (
            f"<{plural(len({finding.claim.key for _, finding in self.rows}), 'published claim')} about "
            f"{plural(len({t for t, _ in self.rows}), 'technique')}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a claim and machine."""
        headers = ("technique", "what was published", "promised", "machine (RECORDED)", "verdict", "recorded, with its interval")
        rows, last = [], ("", "")
        for title, finding in self.rows:
            now = (title, finding.claim.key)
            rows.append(
                (
                    title if title != last[0] else "", f"{finding.claim.sentence} [{finding.claim.source.title}]" if now != last else "",
                    finding.claim.promised if now != last else "", finding.recording or "none", str(finding.verdict), _range(finding),
                )
            )  # fmt: skip
            last = now
        return headers, rows

    def _repr_html_(self) -> str:
        return with_captions(self)


def _range(finding: Finding) -> str:
    """Return the least and the largest recorded ratio with their intervals."""
    if not finding.comparisons:
        return NOT_YET
    least, most = finding.comparisons[0], finding.comparisons[-1]
    return str(least) if len(finding.comparisons) == 1 else f"{least} to {most}, {len(finding.comparisons)} cases"


def ladder_claims() -> LadderClaims:
    """Return what was published of the ladder's techniques, with the verdict of each recorded machine that a claim speaks of.

    The whole ledger is ``gl.claims.ledger()``.
    """
    ledger = claims.ledger()
    titles = {technique.name: technique.title for technique in training.techniques()}
    return LadderClaims(tuple((titles[name], found) for name, keys in _CLAIMS.items() for key in keys for found in ledger.of(key)))


@dataclass(frozen=True)
class TechniqueGains(Result):
    """What each technique of the ladder gave recorded GPUs.

    Attributes
    ----------
    rows : tuple of (str, str, str, Gain)
        Machine, technique, case, gain; empty where nothing is recorded.
    missing : tuple of str
        Techniques of which nothing is recorded yet.
    evidence : tuple of Evidence
        Of the machines.
    """

    rows: tuple[tuple[str, str, str, Gain], ...]
    missing: tuple[str, ...]
    evidence: tuple[Evidence, ...]

    def of(self, title: str, case: str = "") -> Gain | None:
        """Return the first gain of a technique in a case that has this word; None where nothing is recorded."""
        return next((gain for _, name, words, gain in self.rows if name == title and case in words), None)

    def caption(self) -> str:
        """Return the badge lines."""
        return caption_of(self.evidence)

    def __repr__(self) -> str:
        return f"<{plural(len(self.rows), 'recorded gain')}; {NOT_YET}: {', '.join(self.missing) or 'none'}>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return one row a technique, machine and case, then what is not recorded yet."""
        rows = [
            (title, machine, case, str(gain) if gain.interval is None else f"{gain}: {gain.verdict}")
            for machine, title, case, gain in self.rows
        ]
        rows += [(title, NOT_YET, "", "") for title in self.missing]
        return ("technique", "GPU (RECORDED)", "what was timed", "gain"), rows

    def _repr_html_(self) -> str:
        return with_captions(self)


def technique_gains(machine: str | None = None) -> TechniqueGains:
    """Return what each technique gave recorded GPUs by itself.

    Parameters
    ----------
    machine : str, optional
        Only this recording, by its name; None takes all.
    """
    rows, missing, evidence = [], [], {}
    machines = {name: recording for name, recording in recorded_gpus().items() if machine in (None, name)}
    for technique in training.techniques():
        found = [
            (name, technique.title, case, gain)
            for name, recording in machines.items()
            for case, gain in gains_of(technique.name, recording)
        ]
        rows += found
        missing += [] if found else [technique.title]
    for name, recording in machines.items():
        if any(row[0] == name for row in rows):
            evidence[name] = recording.evidence()
    return TechniqueGains(tuple(rows), tuple(missing), tuple(evidence.values()))


def recorded_ladders() -> tuple[RecordedLadder, ...]:
    """Return the whole ladders that GPUs have recorded; empty means "not recorded yet"."""
    found = (training.recorded_ladder(recording) for recording in recorded_gpus().values())
    return tuple(one for one in found if one.rows)


# -- a step made of parts ------------------------------------------------------------------------------------------------------------

# Milliseconds of a step of 20 ms, one after the other; and which part of it each technique leaves, as a ratio. Made up, so that what
# mends the same part can be told from what mends another.
PARTS: Mapping[str, float] = {"loading": 8.0, "starting": 6.0, "arithmetic": 5.0, "waiting": 1.0}
LEAVES: Mapping[str, Mapping[str, float]] = {
    "data on the device": {"loading": 0.10},
    "prefetch": {"loading": 0.125},
    "CUDA graph": {"starting": 0.10},
    "compile": {"starting": 0.25, "arithmetic": 0.80},
    "fused optimizer": {"starting": 0.80},
    "bfloat16": {"arithmetic": 0.40},
    "fewer waits": {"waiting": 0.10},
}


def speed_of(parts: Mapping[str, float], leaves: Sequence[Mapping[str, float]]) -> float:
    """Return how many times as fast a step is when each technique leaves its ratio of the parts that it mends.

    The parts run one after the other. Techniques that mend the same part multiply there.
    """
    rest = dict(parts)
    for technique in leaves:
        for part, ratio in technique.items():
            rest[part] *= ratio
    return sum(parts.values()) / sum(rest.values())


@dataclass(frozen=True)
class StepOfParts(Result):
    """A step whose parts run one after the other, and what techniques leave of them.

    Attributes
    ----------
    parts : mapping of str to float
        Milliseconds.
    techniques : mapping of str to mapping
        The ratio of each part that a technique leaves.
    chosen : tuple of str
        What is applied.
    evidence : Evidence
    """

    parts: Mapping[str, float]
    techniques: Mapping[str, Mapping[str, float]]
    chosen: tuple[str, ...]
    evidence: Evidence

    def alone(self, name: str) -> float:
        """How many times as fast with one technique."""
        return speed_of(self.parts, [self.techniques[name]])

    @property
    def together(self) -> float:
        """How many times as fast with all that are applied."""
        return speed_of(self.parts, [self.techniques[name] for name in self.chosen])

    @property
    def product(self) -> float:
        """The single gains multiplied."""
        whole = 1.0
        for name in self.chosen:
            whole *= self.alone(name)
        return whole

    def __repr__(self) -> str:
        return f"<{', '.join(self.chosen) or 'nothing'}: together {self.together:.2f}x, single gains multiplied {self.product:.2f}x>"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the parts, a row a technique, and both ways to put them together."""
        names = list(self.parts)
        rows: list[tuple[str, ...]] = [("a step", *(format_seconds(self.parts[name] / 1e3) for name in names), "")]
        for name, leaves in self.techniques.items():
            mark = " (applied)" if name in self.chosen else ""
            rows.append((f"{name}{mark}", *(f"leaves {leaves[p]:.3g}" if p in leaves else "" for p in names), f"{self.alone(name):.2f}x"))
        rows.append(("together", *([""] * len(names)), f"{self.together:.2f}x"))
        rows.append(("single gains multiplied", *([""] * len(names)), f"{self.product:.2f}x"))
        return ("MODELLED", *names, "alone"), rows


def step_of_parts(*chosen: str) -> StepOfParts:
    """Return the notebook's made-up step with these techniques applied; without any, with all of them.

    Raises
    ------
    InputError
        If there is no such technique.

    Examples
    --------
    >>> step_of_parts("data on the device", "prefetch")
    <data on the device, prefetch: together 1.65x, single gains multiplied 2.40x>
    """
    wrong = [name for name in chosen if not isinstance(name, str) or name not in LEAVES]
    if wrong:
        raise InputError(f"step_of_parts: there is no {shown(wrong[0])}; expected some of: {', '.join(LEAVES)}. Pass these names.")
    evidence = Evidence.modelled(
        "the parts of a step run one after the other, with made-up times", "Amdahl's law for several parts", "not a measurement"
    )
    return StepOfParts(PARTS, LEAVES, chosen or tuple(LEAVES), evidence)
