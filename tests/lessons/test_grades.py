"""Grades: every kept answer is checked again, safely, and claims do not count."""

import csv
import json
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest
from course import EXERCISES, ROOF, answer_of
from gpulab import lessons
from gpulab.errors import InputError
from students import changed, report_of, write

from texts import table_text

PLAIN = {"prediction_points": 0.0}
FIT = "def fit(nbytes, seconds):\n    return 5e-6, 1e9\n"


def graded(folder: Path, rubric: dict[str, Any] | None = None, **options: Any) -> Any:
    """The grades of the reports in a folder."""
    return lessons.grade(
        lessons.classroom(folder), lessons.Rubric(**{**PLAIN, **(rubric or {})}), **options
    )


def claimed(
    number: int, name: str, sources: dict[str, str], *claims: str, **parts: Any
) -> dict[str, Any]:
    """A report whose checks claim these states."""
    made = report_of(number, name, sources, **parts)
    for place, claim in enumerate(claims):
        made = changed(made, "checks", place, "state", value=claim)
    return made


def shown(grades: Any) -> str:
    """All tables of grades, the CSV and the caption as text."""
    tables = (grades, grades.failing(), grades.differences())
    parts = [f"{table!r}\n{table_text(table._repr_html_())}" for table in tables]
    return "\n".join([*parts, grades.caption(), grades.csv()])


def class_of_five(folder: Path) -> None:
    """Right and wrong answers, false claims, and answers that are missing or damaged. Anna's 02.5
    needs an import, another function, and values of many types.
    """
    right = {
        **{"02.8": "chunks = 16", "03.6": "rows = 11"},
        "02.5": """\
import math
import numpy as np

TABLE = {"least": (1, math.inf), 2: [range(1, 9, 2), b"x", {3, 4}, frozenset({5}), 6j, None, True]}
ONE, FLOAT = np.float32([[1.0], [1.0]]), np.float64(1.5)


def line(nbytes, seconds):
    assert TABLE["least"] == (1, math.inf), TABLE
    assert TABLE[2] == [range(1, 9, 2), b"x", {3, 4}, frozenset({5}), 6j, None, True], TABLE
    assert (ONE.shape, ONE.dtype.name, type(FLOAT), FLOAT) == ((2, 1), "float32", np.float64, 1.5)
    return np.polyfit(nbytes, seconds, 1, w=ONE[1, 0] / seconds)


fit = lambda nbytes, seconds: (line(nbytes, seconds)[1], 1 / line(nbytes, seconds)[0])
""",
        "00.10": next(e.solution for e in EXERCISES if e.id == "00.10"),
    }
    write(folder, "a.json", report_of(0, "Anna", right))
    write(
        folder,
        "b.json",
        claimed(
            1,
            "Ben",
            {"02.5": FIT, "02.8": "chunks = 1", "03.6": "rows = 40"},
            "wrong",
            "passed",
            "passed",
        ),
    )
    four = report_of(3, "Dana", {"02.8": "chunks = 16", "02.5": FIT, "03.6": "rows = 11"})
    four = changed(
        four, "checks", 1, "kept", value={"kind": "nothing", "reason": "code is not run here"}
    )
    four = changed(four, "checks", 0, "kept", value={"kind": "sorcery"})
    write(folder, "d.json", changed(four, "checks", 2, "seen", value=None))
    tensor = {"id": "02.9", "kept": {"kind": "nothing", "reason": "a Tensor"}}
    for file, made, state in (
        ("c.json", claimed(2, "=Cem", {"02.8": "chunks = 16"}, "wrong"), "wrong"),
        ("e.json", report_of(4, "Eve", {"02.8": "chunks = 1"}), "passed"),
    ):
        check = {**made["checks"][0], **tensor, "state": state}
        write(folder, file, {**made, "checks": [*made["checks"], check]})


RUBRICS = {
    "usual": {}, "two notebooks": {"notebooks": ("02", "03")},
    "points": {"exercise_points": 2.0, "points": {"02.5": 4.0, "02.2": 0.0},
    "prediction_points": 0.5, "open_share": 0.5, "notebooks": ("02",)},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RUBRICS)
def test_the_grades_of_a_class(name: str, tmp_path: Path, approved: Any) -> None:
    """Points, outcomes, reasons, differences; unchecked answers are left out or get a share."""
    class_of_five(tmp_path / "class")
    seen: list[tuple[int, int]] = []
    grades = graded(tmp_path / "class", RUBRICS[name], progress=lambda *both: seen.append(both))
    assert seen == [(k, grades.checked) for k in range(1, grades.checked + 1)]
    file = grades.write_csv(tmp_path / "sub" / "grades.csv")
    assert file.read_text(encoding="utf-8-sig") == grades.csv()
    assert type(grades).from_dict(json.loads(json.dumps(grades.to_dict()))) == grades
    assert shown(grades) == approved
    with pytest.raises(InputError):
        grades.write_csv(tmp_path)


@pytest.mark.slow
def test_code_is_not_run_where_that_is_asked(tmp_path: Path, approved: Any) -> None:
    """Answers that are values are still graded, and no student loses points."""
    class_of_five(tmp_path / "class")
    trace = tmp_path / "ran"
    evil = report_of(6, "Gus", {"02.5": FIT})
    source = f"open({str(trace)!r}, 'w')\nfit = 1"
    write(tmp_path / "class", "g.json", changed(evil, "checks", 0, "kept", "source", value=source))
    assert shown(graded(tmp_path / "class", {"notebooks": ("02",)}, run_code=False)) == approved
    assert not trace.exists()


GAIN = "def gain(flops, nbytes, copied, cpu, gpu, link):\n    "
RIGHT = """here = max(flops / cpu[0], nbytes / cpu[1])
    return here / (max(flops / gpu[0], nbytes / gpu[1]) + copied / link)
"""
MISBEHAVING = {
    "endless": "while True: pass\n",
    "print": "import sys; print('x' * 100_000); print('y' * 100_000, file=sys.stderr)\n",
    "stubborn": "while 1:\n try:\n  while 1: 1\n except: 2\n",
    "input": "import sys; sys.stdin.read()\n", "exit": "import sys; sys.exit(0)\n",
    "hard exit": "os._exit(0)\n", "kill": "os.kill(os.getpid(), 9)\n",
    "crash": "import ctypes; ctypes.string_at(0)\n", "big": "x = bytearray(2**30)\n",
    "file": "open('big', 'wb').write(bytes(2**27))\n", "recursion": "attack()\n",
    "raise": "raise KeyboardInterrupt\n",
    "home": "import shutil; shutil.rmtree(os.environ['HOME'], ignore_errors=True)\n", "~too": "",
}  # fmt: skip
# The system's own ``unshare``, not the code under test, decides what can be tried here.
UNSHARE = ["unshare", "-Urmpniuf", "true"]
CAN_BOX = sys.platform == "linux" and subprocess.run(UNSHARE, check=False).returncode == 0
boxed = pytest.mark.skipif(not CAN_BOX, reason="this system allows no namespaces, so no code runs")


# An attack that succeeds goes on to the right answer; one that fails raises. HERE is the test's
# folder, PORT the port of its server.
STOP = "raise SystemExit\n"
ATTACKS = {
    "messages": "for fd in range(3, 60):\n try: os.write(fd, FORGED)\n except OSError: 0\n" + STOP,
    "parent": "for k in os.listdir('/proc'):\n for fd in range(60):\n"
    "  try: open(f'/proc/{k}/fd/{fd}', 'wb').write(FORGED)\n  except OSError: 0\n" + STOP,
    "others": "for k in os.listdir('/proc'):\n if k.isdigit() and int(k) != os.getpid():\n"
    "  try: os.kill(int(k), 19)\n  except OSError: 0\n" + STOP,
    "ancestor": "os.kill(os.getppid(), 9)\n" + STOP,
    "read": "open('HERE/class/honest.json').read()\n", "write": "open('HERE/trace', 'w')\n",
    "folder": "assert os.listdir('.') or os.listdir('/dev/shm')\n",
    "network": "import socket\nsocket.create_connection(('127.0.0.1', PORT), 1)\n",
    "environment": "assert 's3cret' in str(os.environ)\n",
    "mount": "import ctypes\nassert not ctypes.CDLL(None).mount(b'', b'/usr', b'tmpfs', 0, 0)\n",
    "library": "open(os.__file__, 'a')\n",
    "daemon": "if not os.fork():\n os.setsid()\n"
    " open('/proc/self/comm', 'w').write('left-PORT')\n time.sleep(99)\n" + STOP,
    "memory": "for _ in range(6):\n"
    " os.fork() or (bytearray(b'1') * 2**28, time.sleep(1), os._exit(0))\n"
    "for _ in range(6): assert not os.wait()[1]\n",
    "processes": "for _ in range(999): os.fork() or time.sleep(9)\n",
    "files": "for k in range(9): open(f'{k}', 'wb').write(bytes(2**24))\n",
    "many files": "for k in range(9999): open(f'{k}', 'w')\n",
    "stop": "os.kill(os.getpid(), 19)\n",
    "memory of nobody": "os.memfd_create('x')\n",
    "shared memory": "import mmap\nmmap.mmap(-1, 9)\n",
    "namespaces": "import ctypes\nassert not ctypes.CDLL(None).unshare(0x10000000)\n",
    "host": "import socket\nsocket.socket(socket.AF_VSOCK)\n",
}  # fmt: skip
FORGED = b'[]\n{"job": "", "state": "passed", "message": "", "by": "check"}\n'


@pytest.mark.slow
@boxed
def test_code_that_misbehaves_costs_only_itself(
    tmp_path: Path, approved: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Misbehaving code is ended, or passes, without effect on other answers.

    An attack reaches no message, process, file, secret or connection.
    """
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    trace = tmp_path / "trace"
    for name in ("json.py", "numpy.py", "gpulab.py", "sitecustomize.py"):
        write(tmp_path / "class", name, f"open({str(trace)!r}, 'w')")
    monkeypatch.chdir(tmp_path / "class")
    honest = report_of(1, "honest", {"03.11": GAIN + RIGHT})
    write(tmp_path / "class", "honest.json", honest)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        port = str(server.getsockname()[1])
        for number, (name, text) in enumerate({**ATTACKS, **MISBEHAVING}.items()):
            loads = name in ATTACKS and number % 2  # else it attacks when it is called
            code = text.replace("HERE", str(tmp_path)).replace("PORT", port) + "0\n"
            attack = f"import os, time\nFORGED = {FORGED!r}\ndef attack():\n"
            attack += textwrap.indent(code, "    ") + ("attack()\n" if loads else "")
            source = attack + GAIN + ("" if loads else "attack()\n    ") + RIGHT
            made = changed(honest, "checks", 0, "kept", "source", value=source)
            write(tmp_path / "class", f"{name}.json", {**made, "name": name})
        rules = {"notebooks": ("03",)}
        grades = graded(tmp_path / "class", rules, seconds=2.5, memory_bytes=2**29)
        with pytest.raises(TimeoutError):
            server.accept()
    found = {s.name: g for s in grades.students for g in s.grades if g.id == "03.11"}
    assert {name for name in ATTACKS if found[name].found != "wrong"} == set()
    kept = {name: found[name] for name in ("honest", *MISBEHAVING)}
    assert "".join(f"{n}: {g.found}. {g.message[:70]}\n" for n, g in kept.items()) == approved
    assert not trace.exists()
    assert f"left-{port}" not in {each.info["name"] for each in psutil.process_iter(["name"])}


@pytest.mark.slow
@boxed
def test_all_answers_of_a_student_share_a_time_limit(tmp_path: Path) -> None:
    """A student without time left gets no points for the rest.

    An answer that equals one of another student still counts.
    """
    slow = report_of(1, "Anna", {"03.11": GAIN + RIGHT, "02.5": FIT, "02.8": "chunks = 16"})
    slow = changed(slow, "checks", 0, "kept", "source", value=f"{FIT}while True: pass\n")
    write(tmp_path / "class", "a.json", slow)
    write(tmp_path / "class", "b.json", report_of(2, "Ben", {"02.8": "chunks = 16"}))
    rules = {"notebooks": ("02", "03"), "open_share": 1.0}
    grades = graded(tmp_path / "class", rules, seconds=1.0, student_seconds=0.5)
    found = [{g.id: g for g in student.grades} for student in grades.students]
    assert [found[0][id].found for id in ("02.5", "03.11")] == ["wrong", "open"]
    assert (found[0]["03.11"].points, found[0]["03.11"].most) == (0.0, 1.0)
    assert [each["02.8"].found for each in found] == ["passed", "passed"]


@pytest.mark.slow
@boxed
@pytest.mark.parametrize(("options", "points"), [([], "0"), (["--trust-code"], "1")])
def test_where_no_box_is_allowed_code_runs_only_on_demand(
    options: list[str], points: str, tmp_path: Path
) -> None:
    """Where mount namespaces are forbidden, as in containers, only --trust-code runs code."""
    write(tmp_path / "class", "a.json", report_of(1, "Anna", {"03.11": GAIN + RIGHT}))
    forbid = 'echo 0 > /proc/sys/user/max_mnt_namespaces && exec "$@"'
    run = "import sys; from gpulab.cli import main; sys.exit(main())"
    out = tmp_path / "grades.csv"
    command = [sys.executable, "-c", run, "class", str(tmp_path / "class"), "--grades", str(out)]
    subprocess.run(["unshare", "-Ur", "sh", "-c", forbid, "sh", *command, *options], check=True)
    (row,) = csv.DictReader(out.read_text(encoding="utf-8-sig").splitlines())
    assert (row["passed"], row["cannot be checked here"]) == (points, "" if options else "03.11")


def with_leaves(answer: Any, leaf: Any) -> Any:
    """A right answer with another value in place of each of its parts."""
    if isinstance(answer, dict):
        return {key: with_leaves(item, leaf) for key, item in answer.items()}
    return (
        [with_leaves(item, leaf) for item in answer] if isinstance(answer, list | tuple) else leaf
    )


# Python's audit events of starting a process and of unpickling.
STARTS = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty",
    "pickle.find_class",
)  # fmt: skip


def hostile(folder: Path) -> list[Any]:
    """Values that leave a trace if they are opened, started, evaluated or unpickled."""
    trace = folder / "trace"
    pickled = f"cos\nsystem\n(S'touch {trace}'\ntR.".encode()
    text = f"#!/bin/sh\n# --results init_process_group\ntouch {trace}\n"
    script, file = write(folder, "script.py", text), write(folder, "a.pickle", pickled)
    script.chmod(0o755)
    return [str(script), str(file), f"$(touch {trace}); touch {trace}", pickled]


@pytest.mark.slow
def test_without_code_no_value_is_opened_started_or_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every exercise is given paths, scripts, pickles and commands, alone and as parts."""
    folder, seen, right = tmp_path / "hostile", [], {}
    values = hostile(folder)
    for exercise in EXERCISES:
        source = "" if exercise.unkept or exercise.id in LONG else exercise.solution
        right[exercise.id] = answer_of(exercise, source) if source else None
        lessons.check(exercise.id, "x")  # imports what its check needs
    watched = {*STARTS, "open"}
    sys.addaudithook(
        lambda event, args: seen.append((event, str(args))) if seen and event in watched else None
    )
    for number in range(2 * len(values)):
        leaf = values[number // 2]
        monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / f"{number}.json"))
        for exercise in EXERCISES:
            parts = right[exercise.id] if number % 2 else None
            whole = number % 2 == 0 and not exercise.answer_is_file  # a notebook starts its file
            if whole or isinstance(parts, dict | list | tuple):
                seen[:] = [("begin", "")]
                lessons.check(exercise.id, with_leaves(parts, leaf))
                events, seen[:] = seen[:], []
                found = [
                    e for e in events if e[0] in STARTS or (e[0] == "open" and str(folder) in e[1])
                ]
                assert (exercise.id, found) == (exercise.id, [])
        made = lessons.report(f"{number}", measure=False).to_dict()
        kept = (
            {"kind": "value", "value": leaf} if isinstance(leaf, str) else made["checks"][0]["kept"]
        )
        made["checks"].append({**made["checks"][0], "id": "08.15", "kept": kept, "state": "passed"})
        write(tmp_path / "class", f"{number}.json", made)
    grades = graded(tmp_path / "class", {"notebooks": ("03", "08")}, run_code=False)
    assert {g.found for s in grades.students for g in s.grades if g.id == "08.15"} == {"open"}
    assert not (folder / "trace").exists()


# In a new process these take 10 to 40 s: ranks, predicted memory of large models, scripts.
LONG = (
    "03.8", "05.9", "06.12", "08.3", "08.12", "08.15", "08.16", "00.2", "00.5", "00.7", "01.9",
    "03.3",
)  # fmt: skip


@pytest.mark.slow
@boxed
def test_each_answer_is_judged_alike_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Checked from its kept form, each solution passes.

    A usual wrong answer is refused, for every third exercise.
    """
    kept = [exercise for exercise in EXERCISES if not exercise.unkept and exercise.id not in LONG]
    write(tmp_path / "class", "a.json", report_of(0, "Right", {e.id: e.solution for e in kept}))
    some = kept[::3]
    write(
        tmp_path / "class", "b.json", report_of(0, "Wrong", {e.id: e.usual[0].source for e in some})
    )
    wrong, right = sorted(graded(tmp_path / "class").students, key=lambda one: one.points)
    assert [
        grade
        for grade in right.grades
        if grade.id in {e.id for e in kept} and grade.found != "passed"
    ] == []
    refused = {grade.id: grade for grade in wrong.grades}
    assert {e.id for e in some if refused[e.id].by == "code"} == {e.id for e in some if e.live}
    assert [
        e.id
        for e in some
        if refused[e.id].found != "wrong" or e.usual[0].says not in refused[e.id].message
    ] == []


@pytest.mark.slow
def test_what_the_students_machine_gave_decides(tmp_path: Path) -> None:
    """11 rows are right under the report's ridge of 5, wrong under another ridge, open without one.

    A report of a version that kept the class in another module counts, too.
    """
    made = report_of(0, "Anna", {"03.6": "rows = 11"})
    arithmetic = ("checks", 0, "seen", "v", "arithmetic", 0, "flops_per_second")
    assert ROOF.arithmetic_roof("float32").flops_per_second == 1e11
    for name, path, value in (
        ("a", ("name",), "a"),
        ("b", arithmetic, 8e11),
        ("c", ("checks", 0, "seen"), None),
        ("d", ("checks", 0, "seen"), {"t": 5}),
        ("e", ("checks", 0, "seen", "module"), "gpulab.models._in_another_file"),
    ):
        write(
            tmp_path / "class", f"{name}.json", {**changed(made, *path, value=value), "name": name}
        )
    grades = graded(tmp_path / "class", {"notebooks": ("03",)})
    assert [next(g.found for g in s.grades if g.id == "03.6") for s in grades.students] == [
        "passed",
        "wrong",
        "open",
        "open",
        "passed",
    ]


FILES = (
    "", "[]", '{"points": [1]}', '{"points": {"99.9": 1}}', '{"points": {"9.3": 5}}',
    '{"points": {"09.1": 5}}', '{"notebooks": "09"}',
    '{"notebooks": ["9"]}', '{"notebooks": [9]}', '{"notebooks": {"09": 1}}',
    '{"exercise_points": -1}', '{"exercise_points": "a"}',
    '{"exercise_point": 2}', '{"open_share": 7}', '{"open_share": 1.01}',
    '{"exercise_points": NaN}', "[" * 100_000,
)  # fmt: skip


def test_a_rubric_is_read_or_refused(tmp_path: Path) -> None:
    """A rubric with a mistake is refused, so that no points change silently."""
    file = write(
        tmp_path,
        "rubric.json",
        '{"exercise_points": 2, "points": {"02.5": 4, "09.3": 0}, "notebooks": ["02"]}',
    )
    rubric = lessons.Rubric.read(file)
    assert (
        rubric.of("02.5"),
        rubric.of("02.2"),
        rubric.of("09.3"),
        rubric.prediction_points,
        rubric.notebooks,
    ) == (4.0, 2.0, 0.0, 0.25, ("02",))
    file.write_text(file.read_text(), encoding="utf-8-sig")  # as Windows writes it
    assert lessons.Rubric.read(file) == rubric
    for text in FILES:
        file.write_text(text)
        with pytest.raises(InputError, match="Rubric"):
            lessons.Rubric.read(file)
    with pytest.raises(InputError):
        lessons.Rubric.read(tmp_path / "none.json")
    for wrong in (
        {"notebooks": "09"},
        {"notebooks": ("9",)},
        {"notebooks": 9},
        {"points": {"9.3": 5}},
        {"open_share": -0.1},
    ):
        with pytest.raises(InputError):
            lessons.Rubric(**wrong)


@pytest.mark.slow
def test_run_all_and_a_hint_make_no_notebook_count(tmp_path: Path) -> None:
    """A notebook counts only if a student predicted or tried something in it."""
    with pytest.raises(InputError):
        lessons.grade(5)  # type: ignore[arg-type]
    made = report_of(3, "Anna", {"02.8": "chunks = 16"})
    hinted = {"id": "10.2", "state": "not attempted", "attempts": 0, "hints": 2, "kept": None}
    revealed = {**report_of(3, "x", {})["predictions"][0], "id": "09.1", "predicted": None}
    parts = {
        "checks": [*made["checks"], {**made["checks"][0], **hinted}],
        "predictions": [revealed, {**revealed, "id": "05.2", "predicted": 5.0}],
    }
    write(tmp_path / "class", "a.json", {**made, **parts})
    room = lessons.classroom(tmp_path / "class")
    assert lessons.grade(room, run_code=False).notebooks == ("02", "05")
    assert lessons.grade(
        room, lessons.Rubric(notebooks=("03", "09")), run_code=False
    ).notebooks == ("03", "09")
    for junk in (
        {"seconds": 0},
        {"seconds": "x"},
        {"memory_bytes": 5},
        {"run_code": "yes"},
        {"rubric": 5},
    ):
        with pytest.raises(InputError):
            lessons.grade(room, **junk)  # type: ignore[arg-type]
    (tmp_path / "class" / "a.json").unlink()
    assert lessons.grade(lessons.classroom(tmp_path / "class")).notebooks == ()
