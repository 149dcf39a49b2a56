"""A helper process that compiles: started on first use, kept for the next request, ended with the
session or by an interrupt.

Compilers run there and not in the learner's process, because a source can end a compiler (NVRTC
dies of 10,000 open brackets on a thread), because an interrupt must end the work and not wait for
it, and because the process may hold another version of the same library.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import IO, Any

from gpulab.errors import CompileError, message_of


class Worker:
    """One process that answers pickled requests on its standard input, one after another, on its
    standard output.

    Parameters
    ----------
    who : str
        The public function that messages begin with.
    command : sequence of str
        What runs, after the interpreter.
    """

    def __init__(self, who: str, command: Sequence[str]) -> None:
        self.who, self.command = who, command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner: int  # which process started it; known once one did
        self._errors: IO[bytes] | None = None
        atexit.register(self.close)

    def ask(self, request: Any) -> Any:
        """Return the answer to a request; an interrupt ends the process, and the next request
        starts another.

        Raises
        ------
        CompileError
            If the process died.
        """
        data = pickle.dumps(request)
        with self._lock:
            try:
                answer = self._exchange(self._started(), data)
            except (OSError, EOFError, pickle.UnpicklingError):
                answer = None  # it died; what it said last is told below
            except BaseException:
                self._stop()
                raise
            if answer is not None:
                return answer[0]
            said = self._last_words()
            self._stop()
        raise CompileError(
            f"{self.who}: the compiler's process ended ({said}); expected code or an error. Nest "
            "the source less deeply or make it "
            "smaller, and run it again."
        )

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    @staticmethod
    def _exchange(process: subprocess.Popen[bytes], data: bytes) -> tuple[Any] | None:
        asked, answers = process.stdin, process.stdout
        assert asked is not None
        assert answers is not None
        asked.write(struct.pack("<Q", len(data)) + data)
        asked.flush()
        head = answers.read(8)
        return (
            (pickle.loads(answers.read(struct.unpack("<Q", head)[0])),) if len(head) == 8 else None
        )

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner != os.getpid():
            self._process = None  # this is a fork: the process belongs to the parent
        if self._process is None or self._process.poll() is not None:
            environment = {
                name: value for name, value in os.environ.items() if name != "NUMBA_ENABLE_CUDASIM"
            }
            environment["NUMBA_DISABLE_ERROR_MESSAGE_HIGHLIGHTING"] = "1"
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115
            # A session of its own, so that an interrupt typed at a terminal reaches only the
            # learner's process.
            self._process = subprocess.Popen(
                [sys.executable, "-P", *self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                start_new_session=True,
            )
            self._owner = os.getpid()
        return self._process

    def _last_words(self) -> str:
        """How the process ended: the signal, or the last line that it wrote."""
        if self._process is None or self._errors is None:
            return "it printed nothing"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        if self._process.returncode is not None and self._process.returncode < 0:
            return f"signal {-self._process.returncode}"
        self._errors.seek(0)
        rows = self._errors.read().decode(errors="replace").strip().splitlines()
        return message_of(rows[-1]) if rows else "it printed nothing"

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        with contextlib.suppress(OSError, ValueError):
            process.communicate()
        if self._errors is not None:
            self._errors.close()
