"""Each test of the lessons has a progress file of its own."""

from __future__ import annotations

import pathlib

import pytest

from gpulab.lessons import _policy, _predictions, _store


@pytest.fixture(autouse=True)
def progress_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Point the lessons at a fresh file and an empty kernel."""
    where = tmp_path / "kept" / "progress.json"
    monkeypatch.setenv("GPULAB_PROGRESS", str(where))
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))
    monkeypatch.delenv("GPULAB_SOLUTIONS", raising=False)
    monkeypatch.setenv("GPULAB_CLASS", str(tmp_path / "class.json"))
    (tmp_path / "class.json").write_text('{"solutions": "show"}')
    monkeypatch.setattr(_predictions, "_known", {})
    monkeypatch.setattr(_predictions, "_observers", {})
    monkeypatch.setattr(_store, "_pending", {})
    assert _policy.policy().solutions == "show"
    return where
