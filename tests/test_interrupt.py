"""A real interrupt of a real kernel, and of a process that imports a library."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
SECONDS = 120
# Calls of 1 and 10 ms by turns have no precise median, so no measurement ends before the interrupt.
START = """
import gpulab as gl, time
%load_ext gpulab
calls = [0]
def work():
    calls[0] += 1
    time.sleep(1e-2 if calls[0] // 2 % 2 else 1e-3)
    if calls[0] == 5: print('running', flush=True)
"""
INTERRUPTED = {
    "measure": "gl.measure(work, deadline=60)",
    "compare": "gl.compare({'a': work, 'b': work}, deadline=60)",
    "magic": "%gpu_time -t 60 work()",
}
AFTER = """
m = gl.measure(sum, [1, 2], deadline=0.05)
print(m.has_note('turn-taking'), m.calls_per_sample > 0)
"""
# Interrupt while a library is half loaded, after an import that failed; the call that loads it must
# work afterwards, and the next interrupt is Python's own again.
DURING_AN_IMPORT = """
import os, signal, sys, threading, time
import gpulab as gl
try:
    import numpy.no_such_part
except ImportError:
    print("failed")

def meddle():
    while PART not in sys.modules:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=meddle, daemon=True).start()
try:
    CALL
    time.sleep(1000)
except KeyboardInterrupt:
    print("interrupted")
CALL
print("done", signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
# A module in whose loading an interrupt would leave a library half loaded, and the call that loads
# it. An interrupt earlier or later in these imports may do no harm.
FIRST_CALLS = [
    ("sympy.polys", "import torch; torch.optim.SGD([torch.ones(2, requires_grad=True)])"),
    ("numba.core", "from gpulab.kernels import cuda; cuda.jit"),
]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A fresh kernel of this environment."""
    from jupyter_client.manager import start_new_kernel

    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path / "turns"))
    manager, client = start_new_kernel(kernel_name="python3")
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def _run(client: Any, code: str, on_print: Any = None) -> tuple[str, str | None]:
    """Run a cell; return what it printed and the name of its error."""
    client.execute(code)
    printed, error = "", None
    while True:
        message = client.get_iopub_msg(timeout=SECONDS)
        content = message["content"]
        if message["msg_type"] == "stream":
            printed += content["text"]
            if on_print is not None:
                on_print()
                on_print = None
        elif message["msg_type"] == "error":
            error = content["ename"]
        elif (
            content.get("execution_state") == "idle"
            and message["parent_header"].get("msg_type") == "execute_request"
        ):
            return printed, error


def test_an_interrupted_kernel_stays_usable(kernel: Any) -> None:
    """The stop button ends each kind of measurement; the next one starts without waiting."""
    manager, client = kernel
    assert _run(client, START)[1] is None
    for name, code in INTERRUPTED.items():
        _run(client, "calls[0] = 0")
        assert _run(client, code, manager.interrupt_kernel)[1] == "KeyboardInterrupt", name
        assert _run(client, AFTER) == ("False True\n", None), name


@pytest.mark.parametrize(("part", "call"), FIRST_CALLS, ids=[part for part, _ in FIRST_CALLS])
def test_an_import_is_finished_before_an_interrupt_comes(part: str, call: str) -> None:
    """An interrupt waits for the end of an import, or the library would stay half loaded."""
    code = DURING_AN_IMPORT.replace("PART", repr(part)).replace("CALL", call)
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.stdout, done.stderr) == (
        "failed\ninterrupted\ndone True\n",
        "",
    )
