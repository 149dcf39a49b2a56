"""The weights of exercises and predictions in the grades of a class."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpulab import _given
from gpulab._files import read_regular
from gpulab.errors import InputError, kind_of, message_of, shown
from gpulab.lessons import content
from gpulab.results import Result


@dataclass(frozen=True)
class Rubric(Result):
    """The weights of a grade.

    Attributes
    ----------
    exercise_points : float
        For an exercise that passes when it is checked again.
    points : mapping of str to float
        Points that differ from ``exercise_points``, by exercise id; 0 excludes an exercise.
    prediction_points : float
        For a prediction that was given before the answer was shown, right or wrong: points for
        being right would reward looking at the answer first.
    open_share : float or None
        What an exercise is worth that is reported as passed and cannot be checked again, because no
        answer to it can be handed in (a trained model) or because the instructor does not run code.
        None, the default, excludes it from the points and from the maximum; a share from 0 to 1
        gives that share of the points. An answer that is missing or damaged gives no points, so
        that omitting a wrong answer does not help.
    notebooks : tuple of str
        Those that count, such as ("02", "03"); empty for all notebooks that a student of the class
        has worked on.
    """

    exercise_points: float = 1.0
    points: Mapping[str, float] = field(default_factory=dict)
    prediction_points: float = 0.25
    open_share: float | None = None
    notebooks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse invalid points and unknown exercises."""
        if not isinstance(self.points, Mapping):
            raise InputError(
                f"Rubric: points={shown(self.points)}; expected points by exercise. Pass them such "
                f'as {{"09.3": 2}}.'
            )
        amounts = [self.exercise_points, self.prediction_points, *self.points.values()]
        if not all(_given.is_finite(each) and each >= 0 for each in amounts):
            raise InputError(
                f"Rubric: points {shown(amounts)}; expected numbers from 0. Fix the invalid one."
            )
        if self.open_share is not None and not (
            _given.is_finite(self.open_share) and 0 <= self.open_share <= 1
        ):
            raise InputError(
                f"Rubric: open_share={shown(self.open_share)}; expected None or a share from 0 to "
                "1. Pass one of these."
            )
        if self.notebooks or self.points:  # else the lessons need not load
            self._refuse_unknown()

    def _refuse_unknown(self) -> None:
        numbers = [lesson.notebook[:2] for lesson in content.lessons()]
        if not isinstance(self.notebooks, (tuple, list)) or not all(
            each in numbers for each in self.notebooks
        ):
            raise InputError(
                f"Rubric: notebooks={shown(self.notebooks)}; expected several of "
                f'{", ".join(numbers)}. Pass them such as ("02", "03").'
            )
        known = {id for lesson in content.lessons() for id in lesson.exercises}
        unknown = next((id for id in self.points if id not in known), None)
        if unknown is not None:
            raise InputError(
                f"Rubric: there is no exercise {shown(unknown)}; expected the number in a "
                "notebook, such as 09.3. Fix points."
            )

    def of(self, id: str) -> float:
        """Return the points of an exercise."""
        return float(self.points.get(id, self.exercise_points))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Rubric:
        """Return the rubric in a JSON file such as ``{"exercise_points": 2, "points": {"02.5": 4},
        "notebooks": ["02"]}``.

        Parameters
        ----------
        path : path

        Raises
        ------
        InputError
            If it cannot be read, or is not a valid rubric.
        """
        file = _given.expanded("Rubric.read", path)
        try:
            # which knows by its first bytes how Windows' own tools wrote it
            content = json.loads(read_regular(file))
            if not isinstance(content, dict):
                raise InputError(f"it holds {kind_of(content)}")
            strange = sorted(set(content) - {one.name for one in dataclasses.fields(cls)})
            if strange:
                raise InputError(f"{shown(strange[0])} is not a setting of a rubric")
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(
                f"Rubric.read: {shown(str(path))}: {message_of(error)}; expected JSON such as "
                '{"exercise_points": 1, "prediction_points": 0.25}. Fix the file.'
            ) from error
        notebooks = content.get("notebooks", ())
        try:
            return cls(
                **{
                    **content,
                    "notebooks": tuple(notebooks) if isinstance(notebooks, list) else notebooks,
                }
            )
        except InputError as error:
            raise InputError(
                f"Rubric.read: {shown(str(path))}: {str(error).removeprefix('Rubric: ')}"
            ) from error
