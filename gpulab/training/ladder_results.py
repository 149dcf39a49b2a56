"""The results of the ladder of techniques: each rung, each technique alone, all together, and all
but one. Plain results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpulab.evidence import Environment, Evidence, Note
from gpulab.results import Result
from gpulab.training.comparisons import SeedsAccuracy, format_points
from gpulab.training.results import format_rate
from gpulab.units import format_ratio, plural

Interval = tuple[float, float]
# A difference that is worth a verdict. A ladder has some twenty: where only an interval above 1 was
# asked for, 2 of 44 pairs of identical options were "faster".
LEAST_EFFECT = 0.02


@dataclass(frozen=True)
class Gain(Result):
    """The speed-up of one form over another.

    Attributes
    ----------
    ratio : float
        The median of the ratios of turns, in samples a second.
    interval : (float, float) or None
        A 95 % interval of it, paired turn by turn; None where none can be given.
    """

    ratio: float
    interval: Interval | None

    @property
    def verdict(self) -> str:
        """What the interval shows of an effect of 2 % or more: "faster", "slower", "no difference
        shown", or "no interval".
        """
        if self.interval is None:
            return "no interval"
        low, high = self.interval
        return (
            "faster"
            if low > 1 + LEAST_EFFECT
            else "slower"
            if high < 1 - LEAST_EFFECT
            else "no difference shown"
        )

    def __str__(self) -> str:
        if self.interval is None:
            return f"{format_ratio(self.ratio)} (no interval)"
        return (
            f"{format_ratio(self.ratio)} [{format_ratio(self.interval[0])}, "
            f"{format_ratio(self.interval[1])}]"
        )


@dataclass(frozen=True)
class LadderForm(Result):
    """One form of the script: with some of the techniques.

    Attributes
    ----------
    techniques : tuple of str
        Their names; empty for the beginner's script.
    batch_size : int
    samples_per_second : float
    samples_per_second_interval : (float, float) or None
    over_start : Gain
        Over the beginner's script.
    first_step_seconds : float
        Including one-time work: compiling, allocating, recording a graph.
    phase_seconds : mapping of str to float
        Seconds a step by part, where the steps were timed part by part.
    peak_bytes : int or None
        The most live tensor storage in one step.
    """

    techniques: tuple[str, ...]
    batch_size: int
    samples_per_second: float
    samples_per_second_interval: Interval | None
    over_start: Gain
    first_step_seconds: float
    phase_seconds: Mapping[str, float]
    peak_bytes: int | None


@dataclass(frozen=True)
class Learned(Result):
    """The accuracy of a form after the same number of samples, compared with the beginner's script.

    Attributes
    ----------
    accuracy : SeedsAccuracy
    difference : float
        Its mean accuracy minus the script's.
    interval : (float, float)
        A 95 % interval of that, over seeds and test items, both paired.
    steps : int
        Updates of the parameters that it took.
    same_losses : bool
        Whether its losses were those of the rung before, bit for bit, so that the model is the
        same.
    verdict : str
        "kept", "lost", or "not decided": the interval lies above minus the tolerance, below zero,
        or neither.
    """

    accuracy: SeedsAccuracy
    difference: float
    interval: Interval
    steps: int
    same_losses: bool
    verdict: str

    def __str__(self) -> str:
        low, high = map(format_points, self.interval)
        return (
            f"{100 * self.accuracy.mean:.1f} % ({format_points(self.difference)} points "
            f"[{low}, {high}]): {self.verdict}"
        )


@dataclass(frozen=True)
class Rung(Result):
    """One technique of the ladder.

    Attributes
    ----------
    name, title, mends : str
    form : LadderForm
        With this technique and all before it.
    gain : Gain
        Over the rung before: its gain at this place of the ladder.
    alone : Gain
        Over the beginner's script, alone.
    removed : Gain
        All techniques over all but this one: its gain at the end.
    learned : Learned or None
        None where nothing was trained to the end.
    """

    name: str
    title: str
    mends: str
    form: LadderForm
    gain: Gain
    alone: Gain
    removed: Gain
    learned: Learned | None


@dataclass(frozen=True)
class LeftOut(Result):
    """A technique that is not in the ladder on this device.

    Attributes
    ----------
    name, title, reason : str
    alone : Gain or None
        Over the beginner's script, where it runs here but would slow every combination; None where
        it was not run.
    recorded : tuple of (str, str, Gain)
        Machine, case, and the gain there; empty where nothing is recorded yet.
    """

    name: str
    title: str
    reason: str
    alone: Gain | None
    recorded: tuple[tuple[str, str, Gain], ...]


@dataclass(frozen=True, eq=False, repr=False)
class LadderResult(Result):
    """A beginner's script, sped up technique by technique on one device; all forms took turns, step
    by step.

    Attributes
    ----------
    task, device : str
    samples : int
        Number of samples on which each form was trained to measure its accuracy.
    seeds : tuple of int
    tolerance : float
        The loss of accuracy that counts as none.
    start : LadderForm
        The beginner's script.
    start_accuracy : SeedsAccuracy or None
    rungs : tuple of Rung
        In the order of the ladder.
    together : Gain
        All techniques over the script, measured.
    product : Gain
        The product of the single gains, which articles often promise. The interval is that of the
        products of turns.
    overstated : Gain
        The product divided by the measured combination: above 1 the product promises too much.
    left_out : tuple of LeftOut
    recorded_evidence : tuple of Evidence
        Of the recorded machines that have gains of techniques left out here.
    turns : int
        Number of turns of each form.
    notes : tuple of Note
    evidence : Evidence
    environment : Environment
    """

    task: str
    device: str
    samples: int
    seeds: tuple[int, ...]
    tolerance: float
    start: LadderForm
    start_accuracy: SeedsAccuracy | None
    rungs: tuple[Rung, ...]
    together: Gain
    product: Gain
    overstated: Gain
    left_out: tuple[LeftOut, ...]
    recorded_evidence: tuple[Evidence, ...]
    turns: int
    notes: tuple[Note, ...]
    evidence: Evidence
    environment: Environment

    def rung(self, name: str) -> Rung | None:
        """Return the rung of that name; None if it is not in the ladder."""
        return next((rung for rung in self.rungs if rung.name == name), None)

    @property
    def product_evidence(self) -> Evidence:
        """The evidence of the product: arithmetic on measured gains, and its error here."""
        return Evidence.modelled(
            "that no technique changes the gain of another",
            "the product of the gains that were measured one at a time",
            f"{self.overstated} times the measured combination",
            self.evidence.device,
        )

    @property
    def hurting(self) -> tuple[Rung, ...]:
        """The rungs at which accuracy was lost, beyond chance; a rung directly after such a rung is
        not listed again.
        """
        lost = [rung.learned is not None and rung.learned.verdict == "lost" for rung in self.rungs]
        return tuple(
            rung for k, rung in enumerate(self.rungs) if lost[k] and not (k and lost[k - 1])
        )

    @property
    def sentence(self) -> str:
        """The result in words, as far as the intervals allow."""
        how = {
            "faster": "The product promises more than the measured gain of all techniques together.",
            "slower": "The measured gain of all techniques together is larger than the product of "
            "their single gains.",
        }.get(
            self.overstated.verdict,
            "No difference between the product and the measured gain was shown.",
        )
        hurt = ", ".join(rung.title for rung in self.hurting)
        return (
            f"All together: {self.together}; product of the single gains: {self.product}. {how}"
            + (f" Less accurate than the script beginning with: {hurt}." if hurt else "")
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LadderResult) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.task, self.device, self.turns, len(self.rungs)))

    def __repr__(self) -> str:
        return (
            f"<ladder of {plural(len(self.rungs), 'technique')} on {self.device}: together "
            f"{self.together}, product {self.product}>"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the script, one row a technique, the combination and the product, then the
        techniques left out.
        """
        mean = "" if self.start_accuracy is None else f"{100 * self.start_accuracy.mean:.1f} %"
        rows: list[tuple[str, ...]] = [("the script", _rate(self.start), "", "", "", mean)]
        rows += [
            (
                rung.title,
                _rate(rung.form),
                str(rung.gain),
                str(rung.alone),
                str(rung.removed),
                str(rung.learned or ""),
            )
            for rung in self.rungs
        ]
        rows.append(("all together vs script", "", str(self.together), "", "", ""))
        rows.append(("product of the single gains (MODELLED)", "", "", str(self.product), "", ""))
        rows += [
            (
                f"left out: {one.title}",
                "" if one.alone is None else "slow",
                "",
                str(one.alone or ""),
                "",
                "",
            )
            for one in self.left_out
        ]
        rows += [(f"note: {note.code}", note.sentence, "", "", "", "") for note in self.notes]
        return (
            "technique",
            "samples a second",
            "vs previous rung",
            "alone vs script",
            "all vs all but this",
            "accuracy",
        ), rows

    def left_out_table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the techniques left out, with their gains on recorded machines."""
        rows: list[tuple[str, ...]] = []
        for one in self.left_out:
            here = "" if one.alone is None else str(one.alone)
            first = (one.title, one.reason, here)
            cases = [(f"{machine}, {case}", str(gain)) for machine, case, gain in one.recorded] or [
                ("not recorded yet", "")
            ]
            rows += [
                (*(first if number == 0 else ("", "", "")), *case)
                for number, case in enumerate(cases)
            ]
        return (
            "not in the ladder",
            "reason",
            "alone, here",
            "RECORDED elsewhere",
            "gain",
        ), rows or [("nothing", "", "", "", "")]


def _rate(form: LadderForm) -> str:
    return (
        f"{format_rate(form.samples_per_second, form.samples_per_second_interval)} (batch "
        f"{form.batch_size})"
    )
