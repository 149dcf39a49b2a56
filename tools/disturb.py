"""Take the cores away in bursts, as neighbours on a shared machine do: a test that fails only
beside this hangs on the machine.

python tools/disturb.py                  until Ctrl-C
make test ARGS=--disturbed               the tests beside it
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator

# One more than the cores that there are: now and then nobody else has any.
BURNERS = (os.cpu_count() or 1) + 1
# Seconds of a burst and of the pause after it: from less than a system's time slice to what a start
# of a program takes.
SPANS = (0.05, 0.2, 0.5, 2.0, 5.0, 15.0)


def burn(seed: int, parent: int) -> None:
    """Work and rest in turns of random length, as long as the parent lives."""
    spans = random.Random(seed)
    while os.getppid() == parent:
        for spend in (lambda: sum(range(5000)), lambda: time.sleep(0.05)):
            end = time.monotonic() + spans.choice(SPANS)
            while time.monotonic() < end and os.getppid() == parent:
                spend()


@contextlib.contextmanager
def disturbed(burners: int = BURNERS) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Let as many processes take the cores away inside; gives them."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes += [
            subprocess.Popen([sys.executable, __file__, str(seed), str(os.getpid())])
            for seed in range(burners)
        ]
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def main(arguments: list[str]) -> int:
    """Burn as a child of ``disturbed``, or begin it and wait for Ctrl-C."""
    if len(arguments) == 2:
        with contextlib.suppress(KeyboardInterrupt):  # a terminal sends it to the children too
            burn(int(arguments[0]), int(arguments[1]))
        return 0
    with disturbed(), contextlib.suppress(KeyboardInterrupt):
        print(
            f"disturb: {BURNERS} programs take the cores away in bursts; Ctrl-C ends them.",
            flush=True,
        )
        while True:
            time.sleep(1.0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
