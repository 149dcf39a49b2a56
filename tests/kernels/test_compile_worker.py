"""The process that compiles, with a program of a few lines in place of a compiler: kept, ended, told how it ended, left to its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulab.errors import CompileError, MissingLibraryError
from gpulab.kernels._compile import _numba_worker, _python, _worker
from gpulab.kernels._compile._worker import Worker

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and sessions are POSIX's")
_NUMBA_WORKER = Path(_worker.__file__).with_name("_numba_worker.py")
# Answers each request with itself, its own process, and two words of its environment.
_ECHO = """
import os, pickle, struct, sys
while len(head := sys.stdin.buffer.read(8)) == 8:
    asked = pickle.loads(sys.stdin.buffer.read(struct.unpack("<Q", head)[0]))
    seen = [os.environ.get(name) for name in ("NUMBA_ENABLE_CUDASIM", "NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING")]
    answer = pickle.dumps((asked, os.getpid(), seen))
    sys.stdout.buffer.write(struct.pack("<Q", len(answer)) + answer)
    sys.stdout.buffer.flush()
"""


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """Return a worker that answers; it is ended afterwards."""
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    worker = Worker("compile", ["-c", _ECHO])
    yield worker
    worker.close()


def test_one_process_answers_until_it_is_closed(echo: Worker) -> None:
    """The second request goes to the same process, in a session of its own, without numba's simulator; after ``close`` to another."""
    asked, first, seen = echo.ask({"source": "x" * 100_000})
    assert (asked, seen) == ({"source": "x" * 100_000}, [None, "1"])
    assert os.getsid(first) == first != os.getsid(0)
    assert echo.ask(2)[:2] == (2, first)
    process, errors = echo._process, echo._errors
    echo.close()
    assert process is not None
    assert process.returncode == -9
    assert errors is not None
    assert errors.closed
    assert echo.ask(3)[1] != first


def test_the_process_ends_with_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python closes each worker when it ends."""
    registered: list[Any] = []
    monkeypatch.setattr("atexit.register", registered.append)
    worker = Worker("compile", [])
    assert registered == [worker.close]


def test_what_a_compiler_prints_is_no_answer() -> None:
    """What goes to the standard output after the start, as a library's words do, comes out at the standard error."""
    program = f"import os, runpy; runpy.run_path({str(_NUMBA_WORKER)!r})['main'](); os.write(1, b'printed')"
    done = subprocess.run([sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("", "printed")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("os.kill(os.getpid(), 11)", "signal 11"), ("sys.exit('a\\nno room')", "no room"), ("", "without a word"),
        ("sys.stdout.buffer.write(bytes(4))", "without a word"), ("sys.exit('x' * 300)", "x" * 197 + "..."),
    ],
)  # fmt: skip
def test_a_process_that_ends_is_told_with_its_last_words(program: str, words: str) -> None:
    """The signal, the last line that it wrote, at most 200 characters of it, or that there is none; half an answer is none."""
    worker = Worker("compile", ["-c", f"import os, sys; sys.stdin.buffer.read(8)\n{program}"])
    with pytest.raises(CompileError) as told:
        worker.ask(1)
    assert f"compile: the compiler's process ended ({words}); expected code or an error." in str(told.value)
    assert worker._process is None


@pytest.mark.parametrize("late", [False, True])
def test_a_process_that_falls_silent_has_five_seconds_to_end(late: bool) -> None:
    """Only when it has ended is it known how; one that does not end then is told by what it wrote."""
    worker, waited = Worker("compile", []), []

    class Process:
        returncode: int | None = None

        def wait(self, seconds: float) -> None:
            waited.append(seconds)
            if late:
                raise subprocess.TimeoutExpired("compiler", seconds)
            self.returncode = -9

    worker._process = Process()  # type: ignore[assignment]
    with tempfile.TemporaryFile() as errors:
        errors.write(b"first\n  the last of it \n\n")
        worker._errors = errors
        assert worker._last_words() == ("the last of it" if late else "signal 9")
    assert waited == [5]
    worker._process = None


def test_an_interrupt_ends_the_process(echo: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes back as itself, and what was at work is not asked for the next answer."""
    first = echo.ask(1)[1]
    process = echo._process

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "_exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            echo.ask(2)
    assert process is not None
    assert process.returncode == -9
    assert echo.ask(3)[1] != first


def test_a_fork_leaves_the_process_to_its_parent(echo: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under another process number ``close`` ends nothing, and a request starts a process of its own."""
    first = echo.ask(1)[1]
    process, parent = echo._process, os.getpid()
    assert process is not None
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: parent + 1)
            echo.close()
            assert process.poll() is None
            echo._process = process  # as a fork has it that never closed
            assert echo.ask(2)[1] != first
            assert process.poll() is None
            echo.close()
    finally:
        process.kill()
        process.communicate()


def test_the_process_looks_where_the_session_looks() -> None:
    """A folder whose name has a character beyond 16 bits is one of the places; a Path, which Python itself passes over, is none."""
    program = (
        "import sys; from pathlib import Path; sys.path += [Path('there'), '/to the moon \\U0001f680']\n"
        "from gpulab.kernels._compile import _nvrtc\n"
        "sys.path.clear(); exec(_nvrtc._worker.command[1].partition('; from')[0]); print(ascii(sys.path[-1]), {type(p) for p in sys.path})"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == r"'/to the moon \U0001f680' {<class 'str'>}", done.stderr


def test_no_folder_of_a_kernels_text_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not when the process is killed, as at the session's end; it finds no numba here, so that it answers at once."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    worker = Worker("compile", [str(_NUMBA_WORKER)])
    monkeypatch.setattr(_python, "_worker", worker)
    with pytest.raises(MissingLibraryError, match="No module named 'numba'"):
        _python._made(None, {"path": []}, "sm_90", {})
    worker.close()
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no room for one, there is no word of it; the next request tries again."""
    worker = Worker("compile", ["-c", _ECHO])
    with monkeypatch.context() as patch:
        patch.setattr(_worker.subprocess, "Popen", lambda *_, **__: (_ for _ in ()).throw(OSError("no room")))
        with pytest.raises(CompileError, match=r"compile: the compiler's process ended \(without a word\)"):
            worker.ask(1)
    assert worker.ask(2)[0] == 2
    worker.close()


def test_what_numba_lacks_and_what_it_raises_are_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A module by its name, where it has one; an error without its colours, with its place; an interrupt goes on."""
    answers: dict[str, tuple[BaseException, dict[str, Any]]] = {
        "missing": (ModuleNotFoundError("no numba", name="numba"), {"missing": "numba", "message": "no numba"}),
        "without a name": (ModuleNotFoundError("gone"), {"missing": "", "message": "gone"}),
        "an error": (TypeError("\x1b[1mno\x1b[0m such type"), {"error": "TypeError", "message": "no such type", "line": None, "row": ""}),
        "an assertion": (AssertionError(), {"error": "AssertionError", "message": "", "line": None, "row": ""}),
    }
    raised: list[BaseException] = []

    def compiled(request: Any, folder: Path) -> Any:
        raise raised[-1]

    monkeypatch.setattr(_numba_worker, "_compile", compiled)
    for error, answer in answers.values():
        raised.append(error)
        assert _numba_worker._answer({}, tmp_path) == answer
    for end in (KeyboardInterrupt, SystemExit):
        raised.append(end())
        with pytest.raises(end):
            _numba_worker._answer({}, tmp_path)


def test_the_place_that_numba_names_is_a_line_of_the_kernel(tmp_path: Path) -> None:
    """The first file of the request's folder that it names, wherever it thinks it lies; a line beyond its end has no text."""
    (tmp_path / "kernel-0.py").write_text("def kernel(x):\n    x[0] = nothing", encoding="utf-8")
    for message, place in (
        ('File "/numba/core.py", line 7:\nFile "kernel-0.py", line 2:\n', (2, "    x[0] = nothing")),
        ('File "elsewhere/kernel-0.py", line 1:\n', (1, "def kernel(x):")), ('File "kernel-0.py", line 3:\n', (3, "")),
        ('File "/numba/core.py", line 7:\n', (None, "")), ("no file", (None, "")),
    ):  # fmt: skip
        assert _numba_worker._place(message, tmp_path) == place


def test_a_name_of_numbas_is_found_there(tmp_path: Path) -> None:
    """By its dots in ``cuda``, else in ``numba``; what neither has is refused by its name."""
    numba = pytest.importorskip("numba")
    from numba import cuda

    builder = _numba_worker.Builder(tmp_path)
    assert builder.value(("numba", "shared.array")) is cuda.shared.array
    assert builder.value(("numba", "float32")) is numba.float32
    with pytest.raises(NameError, match=r"Numba has nothing named 'shared\.nothing'"):
        builder.value(("numba", "shared.nothing"))


def test_types_are_numbas(tmp_path: Path) -> None:
    """An array by its element, dimensions and layout; a tuple of several types, of one, and of none."""
    types = pytest.importorskip("numba").types
    scalar = ("scalar", "float32")
    for described, expected in (
        (scalar, types.float32), (("array", ("int16", 2, "F")), types.Array(types.int16, 2, "F")),
        (("tuple", [scalar, ("scalar", "int8")]), types.Tuple([types.float32, types.int8])),
        (("tuple", [scalar, scalar]), types.UniTuple(types.float32, 2)), (("tuple", []), types.Tuple(())),
    ):  # fmt: skip
        assert _numba_worker._type(described) == expected
