"""Occupy the CPU cores in bursts, as other users of a shared machine do. A test that fails only
beside this program depends on the machine's load.

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

# One more than there are cores: at times, no core is left for other programs.
BURNERS = (os.cpu_count() or 1) + 1
# Seconds that a burst, or the pause after it, may last: from less than a system's time slice to the
# time that a program takes to start.
SPANS = (0.05, 0.2, 0.5, 2.0, 5.0, 15.0)


def burn(seed: int, parent: int) -> None:
    """Occupy a core and sleep in turns of random length, as long as the parent lives."""
    spans = random.Random(seed)
    while os.getppid() == parent:
        for spend in (lambda: sum(range(5000)), lambda: time.sleep(0.05)):
            end = time.monotonic() + spans.choice(SPANS)
            while time.monotonic() < end and os.getppid() == parent:
                spend()


@contextlib.contextmanager
def disturbed(burners: int = BURNERS) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run ``burners`` processes that occupy the cores inside the block; yield them."""
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
    """Occupy a core as a child of ``disturbed``; without arguments, start it until Ctrl-C."""
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
