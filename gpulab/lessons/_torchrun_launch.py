"""Start an exported script's processes where torchrun cannot, with the same environment.

PyTorch's builds for Windows have no libuv, but torchrun requires it, at least up to 2.13
(pytorch/pytorch#148283): it ends before it has started a process. ``init_process_group`` does not
require it there, so the script itself runs. This file needs only Python: ``python
_torchrun_launch.py 2 work.py --results FILE``.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

_HOST = "127.0.0.1"
_POLL_SECONDS = 0.05


def launch(n: int, command: Sequence[str]) -> int:
    """Run a script in n processes of one group; return 0, or 1 if a process failed, after ending
    the others.

    Parameters
    ----------
    n : int
    command : sequence of str
        The script and its arguments.
    """
    with socket.socket() as found:
        found.bind((_HOST, 0))
        port = found.getsockname()[1]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(n):
            place = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": n,
                "LOCAL_WORLD_SIZE": n,
                "MASTER_PORT": port,
            }
            environment = {
                **os.environ,
                "MASTER_ADDR": _HOST,
                **{name: str(value) for name, value in place.items()},
            }
            processes.append(subprocess.Popen([sys.executable, *command], env=environment))
        while True:
            codes = [process.poll() for process in processes]
            if any(codes):
                return 1
            if None not in codes:
                return 0
            time.sleep(_POLL_SECONDS)
    finally:
        for process in processes:
            process.kill()  # one that has ended is left alone
        for process in processes:
            process.wait()


if __name__ == "__main__":
    sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))
