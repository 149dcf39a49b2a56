"""Ranks of a script that are forked from a process which has loaded the libraries: tenths of a second in place of twenty.

What a script of ``Ranks.export_script`` finds around it is what torchrun gives it. That torchrun itself starts one is for other tests.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

# What data parallel training imports; torch._dynamo comes with the first optimizer.
_LOADED = ("torch.distributed", "torch._dynamo", "sklearn.datasets", "gpulab.networks", "gpulab.training")


class Forks:
    """The process to fork from, while the block runs."""

    def __enter__(self) -> Forks:
        # One thread, as each rank has: threads of the process that forks would be missing in the forks, with what they hold locked.
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", __file__]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it is ready: no run's seconds pass with loading, which takes half a minute on a busy machine
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._kill()
        self._process.communicate()

    def _kill(self) -> None:
        """End it and the ranks that still run."""
        os.killpg(self._process.pid, signal.SIGKILL)

    def run(self, command: Sequence[str], environment: Mapping[str, str], seconds: float) -> tuple[int, str]:
        """Do what torchrun does with this command; in place of ``_nb08_export._run``."""
        from torch.distributed import TCPStore

        *_, number, script, option, results = command
        n = int(number.removeprefix("--nproc-per-node="))
        # The ranks meet at a store that is there already, as torchrun's do: a port that is only found for them could be somebody else's.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        given = {
            **environment, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n),
            "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
        }  # fmt: skip
        said = Path(results).with_name("said")
        said.touch()
        order = {"n": n, "arguments": [script, option, results], "environment": given, "said": str(said)}
        too_late = threading.Timer(seconds, self._kill)
        too_late.start()
        try:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            print(json.dumps(order), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        finally:
            too_late.cancel()
        if not answer:
            raise subprocess.TimeoutExpired(list(command), seconds)
        return int(answer), said.read_text()


def serve() -> None:
    """Load the libraries, then run one script after the other; say of each with what it ended."""
    for module in _LOADED:
        importlib.import_module(module)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(_ended({_forked(order, rank) for rank in range(order["n"])}), flush=True)


def _ended(ranks: set[int]) -> int:
    """Return how the first rank that failed ended, or 0; the others, which may wait for it, are ended then, as torchrun does."""
    failed = 0
    while ranks:
        pid, status = os.wait()
        ranks.discard(pid)
        if status and not failed:
            failed = os.waitstatus_to_exitcode(status)
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    return failed


def _forked(order: Mapping[str, Any], rank: int) -> int:
    pid = os.fork()
    if pid == 0:
        _become_rank(order, rank)
    return pid


def _become_rank(order: Mapping[str, Any], rank: int) -> NoReturn:
    """Turn the fork into a rank; never returns."""
    code = 1
    try:
        nothing, out = os.open(os.devnull, os.O_RDONLY), os.open(order["said"], os.O_APPEND | os.O_WRONLY)
        for number, to in enumerate((nothing, out, out)):
            os.dup2(to, number)
        os.environ.update({**order["environment"], "RANK": str(rank), "LOCAL_RANK": str(rank)})
        sys.argv = list(order["arguments"])
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
