"""How batches come to a run: item by item, as a batch, or from data that lie on the device; none of it changes what is learned."""

from __future__ import annotations

from typing import Any

import pytest

from gpulab import training
from gpulab.errors import InputError
from gpulab.training import Options

SHORT: dict[str, Any] = {"device": "cpu", "steps": 6, "batch_size": 8}


@pytest.mark.parametrize(
    "options",
    [
        {"loading": "items"}, {"loading": "resident"}, {"read_loss": True}, {"loading": "resident", "prefetch": 2},
        {"loading": "items", "prefetch": 2}, {"loading": "items", "workers": 1},
    ],
)  # fmt: skip
def test_the_losses_are_the_same_bit_for_bit(options: dict[str, Any]) -> None:
    """Who loads how, and who reads the loss, changes no number."""
    usual = training.fit("digits-mlp", **SHORT)
    other = training.fit("digits-mlp", **SHORT, **options)
    assert other.losses.tolist() == usual.losses.tolist()
    assert all(getattr(other.options, name) == value for name, value in options.items())


def test_what_makes_no_sense_is_left_out_with_a_note() -> None:
    """No worker for what lies there, nothing to tune without cuDNN."""
    result = training.fit("digits-mlp", **SHORT, loading="resident", workers=2, autotune=True)
    assert (result.options.workers, result.options.autotune) == (0, False)
    assert {"needs no process" in note.sentence or "cuDNN" in note.sentence for note in result.notes if note.code == "skipped"} == {True}
    with pytest.raises(InputError, match="loading is 'eager'"):
        training.fit("digits-mlp", **SHORT, loading="eager")
    with pytest.raises(InputError, match="read_loss"):
        training.fit("digits-mlp", **SHORT, read_loss="yes")


def test_options_of_an_earlier_version_are_still_read() -> None:
    """A file without the new options has their usual values."""
    data = training.fit("digits-mlp", **SHORT).options.to_dict()
    old = {**{key: value for key, value in data.items() if key not in ("loading", "read_loss", "autotune")}, "schema_version": 1}
    assert Options.from_dict(old) == Options.from_dict(data)
