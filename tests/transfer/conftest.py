"""Measurements of these tests take their turns among themselves only."""

import pytest


@pytest.fixture(autouse=True)
def private_turns(monkeypatch, tmp_path):
    """Keep the lock of this test out of everybody else's way."""
    monkeypatch.setenv("GPULAB_LOCK_DIR", str(tmp_path))
