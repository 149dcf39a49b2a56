"""A class's share of a GPU: the fraction that PyTorch is asked for, derived by hand, and a sentence for what cannot be."""

from __future__ import annotations

import gc
import os
import types
from typing import Any

import pytest
import torch

from gpulab import magics
from gpulab.memory._share import apply_share

TOTAL = 80 * 2**30


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Two GPUs of 80 GiB that keep what they are asked, where nothing is set for other libraries."""
    for name in ("XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_CPP_MIN_LOG_LEVEL"):
        monkeypatch.setenv(name, "")  # so that it is put back as it was
        monkeypatch.delenv(name)
    kept: list[tuple[float, int]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(total_memory=TOTAL))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, index: kept.append((share, index)))
    return kept


@pytest.mark.parametrize(("text", "share"), [("10 GiB", 0.125), ("25 %", 0.25), ("100%", 1.0), ("80 GiB", 1.0)])
def test_a_share_is_set_on_every_gpu(asked: list[tuple[float, int]], text: str, share: float) -> None:
    """10 of 80 GiB is an eighth; a percentage is itself."""
    assert text in apply_share({"GPULAB_GPU_MEMORY": text})
    assert asked == [(share, 0), (share, 1)]


@pytest.mark.parametrize("text", ["much", "-1 GiB", "0 %", "101 %", "90 GiB", "nan %", "inf %"])
def test_what_is_no_share_is_said_and_a_kernel_starts(asked: list[tuple[float, int]], text: str) -> None:
    """A mistake in the server's configuration caps nothing, and says so in one sentence."""
    said = apply_share({"GPULAB_GPU_MEMORY": text})
    assert "caps nothing" in said
    assert asked == []


def test_a_size_that_one_gpu_lacks_caps_none(asked: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """20 GiB on GPUs of 80 and 16 GiB: the first one must not be capped while the sentence says that nothing is."""
    sizes = (TOTAL, 16 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(total_memory=sizes[index]))
    assert "caps nothing (the GPU has 16.0 GiB)" in apply_share({"GPULAB_GPU_MEMORY": "20 GiB"})
    assert asked == []


def test_who_takes_a_share_leaves_the_rest_of_the_gpu(asked: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX and TensorFlow are asked for no more than they need, by the variables of their manuals; what a learner has set stays."""
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "false")
    apply_share({})
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" not in os.environ
    apply_share({"GPULAB_GPU_MEMORY": "10 GiB"})
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "false"


def test_nothing_is_asked_without_the_variable_or_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is set, or there is no GPU, nothing is said."""
    assert apply_share({}) == ""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert apply_share({"GPULAB_GPU_MEMORY": "10 GiB"}) == ""


def test_loading_the_extension_takes_the_share(
    asked: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """%load_ext gpulab caps the kernel and tells its user."""
    monkeypatch.setenv("GPULAB_GPU_MEMORY", "20 GiB")
    formatter = types.SimpleNamespace(for_type_by_name=lambda *names: None)
    shell: Any = types.SimpleNamespace(
        register_magic_function=lambda *words: None, display_formatter=types.SimpleNamespace(mimebundle_formatter=formatter)
    )
    magics.register(shell)
    assert asked == [(0.25, 0), (0.25, 1)]
    assert "20 GiB" in capsys.readouterr().out


@pytest.mark.gpu
def test_a_gpu_keeps_the_share() -> None:
    """On a GPU, what passes the share raises an out-of-memory error, and what fits does not."""
    before = torch.cuda.get_per_process_memory_fraction() if hasattr(torch.cuda, "get_per_process_memory_fraction") else 1.0
    try:
        gc.collect()
        torch.cuda.empty_cache()  # what an earlier test left in the allocator would be given out without asking the cap
        assert apply_share({"GPULAB_GPU_MEMORY": "1 GiB"})
        assert torch.empty(2**28, dtype=torch.uint8, device="cuda").numel() == 2**28
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2**31, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(before)
