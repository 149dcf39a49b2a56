"""Write a file whole or not at all, so that a crash or a full disk never leaves half of one behind."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``: whoever reads sees the old file or the new one, never a part.

    Parameters
    ----------
    path : Path
        The file; its folder is made where it is missing.
    content : bytes
        What the file shall hold.

    Raises
    ------
    OSError
        If the folder cannot be written to, or the disk is full; what stood at ``path`` stands there still.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
