"""Each test of the lessons has a folder and a progress file of its own, and a known machine."""

from pathlib import Path

import pytest
from course import know_this_machine


@pytest.fixture(autouse=True)
def progress_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The progress file of this test, in a folder without a class's settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPULAB_PROGRESS", str(tmp_path / "kept" / "progress.json"))
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))
    know_this_machine()
    return tmp_path / "kept" / "progress.json"
