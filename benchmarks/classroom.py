"""How long a class takes: reading reports, its tables and pictures, the grades, and what keeping an
answer adds to a check.

    python benchmarks/classroom.py [--students 300] [--grade]

The reports are made up (benchmarks/made_class.py): machines from data sheets, predictions for every
question of the course, and the course's own solutions and usual wrong answers to the exercises that
need no measurement. Bound: 300 reports read, shown and drawn in 5 s.
"""

from __future__ import annotations

import argparse
import pathlib
import random
import statistics
import tempfile
import time
from typing import Any

import made_class

from gpulab import figures, lessons
from gpulab.lessons import _answers, content

# Solutions that measure, train, start processes or need a GPU's roofs when they are made.
MEASURING = {"00.5", "00.7", "01.9", "02.9", "03.3", "03.6", "07.13", "08.15"}


def full_report(number: int) -> Any:
    """Return a report with an answer to every exercise that needs no measurement, and a prediction
    for every question.
    """
    checks = []
    for lesson in content.lessons():
        for exercise in lesson.exercises.values():
            if exercise.id not in MEASURING:
                right = (number + len(checks)) % 3
                source = (
                    exercise.solution
                    if right
                    else exercise.usual[number % len(exercise.usual)].source
                )
                checks.append(
                    made_class.check_of(
                        exercise.id, source, "passed" if right else "wrong", 1 + number % 4
                    )
                )
    chance = random.Random(number)
    asked = [id for lesson in content.lessons() for id in lesson.questions]
    predictions = tuple(
        made_class.ReportedPrediction(
            id,
            f"A question of notebook {id[:2]}?",
            chance.uniform(1, 100),
            "some",
            10.0,
            "ten",
            "off",
            "MEASURED",
            0,
        )
        for id in asked
    )
    return made_class.report_of(number, checks=tuple(checks), predictions=predictions)


def reading(folder: pathlib.Path) -> Any:
    """Time what the instructor's notebook does before the grades, three times."""
    times = []
    for _ in range(3):
        begin, at_work = time.perf_counter(), time.process_time()
        room = lessons.classroom(folder)
        read = time.perf_counter()
        for result in (
            room,
            room.problems,
            room.questions(),
            room.misconceptions(),
            room.exercises(),
        ):
            result._repr_html_()
        for draw in (figures.class_roofline, figures.class_predictions):
            figures.mimebundle(draw(room))
        times.append((read - begin, time.perf_counter() - begin, time.process_time() - at_work))
    read_seconds, all_seconds, processor_seconds = (
        statistics.median(column) for column in zip(*times, strict=True)
    )
    print(
        f"  read: {read_seconds:.2f} s; with tables and pictures: {all_seconds:.2f} s "
        f"({processor_seconds:.2f} s of processor time)"
    )
    return room


def keeping() -> None:
    """Time how a check keeps its answer, for every solution that needs no measurement."""
    times = []
    for lesson in content.lessons():
        for exercise in lesson.exercises.values():
            if exercise.id not in MEASURING:
                answer = made_class.answer_of(exercise, exercise.solution)
                _answers.keep(answer)  # the first call also loads modules
                begin = time.perf_counter()
                _answers.keep(answer)
                times.append(time.perf_counter() - begin)
    print(
        f"keeping an answer, {len(times)} solutions: median {1e3 * statistics.median(times):.2f} "
        f"ms, longest {1e3 * max(times):.1f} ms"
    )


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--students", type=int, default=300)
    parser.add_argument(
        "--grade",
        action="store_true",
        help="also the grades of the quick exercises of all students",
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        # twelve reports serve all students, since making one takes long
        few = [full_report(number).to_dict() for number in range(12)]
        for number in range(chosen.students):
            report = lessons.StudentReport.from_dict(
                {**few[number % 12], "name": f"Student {number:03d}"}
            )
            size = made_class.write(folder, f"{number:03d}.json", report).stat().st_size
        print(
            f"{chosen.students} reports of about {size / 1000:.0f} kB, {len(few[0]['checks'])} "
            f"answers and {len(few[0]['predictions'])} predictions each"
        )
        reading(folder)
    keeping()
    if chosen.grade:
        with tempfile.TemporaryDirectory() as place:
            made_class.make_class(pathlib.Path(place), chosen.students)
            begin = time.perf_counter()
            grades = lessons.grade(lessons.classroom(place))
            print(f"grades: {grades!r} in {time.perf_counter() - begin:.1f} s")


if __name__ == "__main__":
    main()
