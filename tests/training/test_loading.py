"""How batches come to a run: item by item, as a batch, or from data that lie on the device; none of it changes what is learned."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpulab import devices, training
from gpulab.errors import InputError
from gpulab.training import Data, Options
from gpulab.training._feed import Feed, Order

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


class OnCuda:
    """What stands in for a tensor that lies on a GPU."""

    is_cuda, device = True, "cpu"

    def __init__(self, there: torch.Tensor) -> None:
        self.there = there

    def __getitem__(self, chosen: torch.Tensor) -> torch.Tensor:
        return self.there[chosen]


def test_on_cuda_a_batch_of_resident_data_makes_no_host_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The indices are pinned and copied without waiting, as PyTorch's manual asks; on a CPU neither is done."""
    asked: list[Any] = []
    real = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: asked.append("pinned") or self)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *a, **kw: asked.append(kw["non_blocking"]) or real(self, *a, **kw))
    data = Data(torch.arange(12.0), torch.arange(12))
    for wrap, wanted in ((OnCuda, ["pinned", True]), (lambda tensor: tensor, [False])):
        order = Order(12, 4, 0, 0, 3)
        feed = Feed(
            data, order, workers=0, prefetch=0, pinned=False, loading="resident", device=devices.Device("cpu"),
            to_device=lambda batch, w=wrap: (w(batch[0]), w(batch[1])),
        )  # fmt: skip
        for indices in order:
            asked.clear()
            assert [part.tolist() for part in next(feed)] == [indices.tolist()] * 2
            assert asked == wanted


def test_a_thread_ahead_copies_on_a_stream_of_the_runs_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the second GPU the stream, and the one that waits for its copies, are the second's; for a CPU none is asked for."""
    asked: list[Any] = []
    stream = SimpleNamespace(record_event=lambda: "copied", wait_event=asked.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Stream", lambda *index: asked.append(("made on", *index)) or stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda one: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *index: asked.append(("waits on", *index)) or stream)
    data = Data(torch.arange(4.0), torch.arange(4))
    for device, wanted in (("cuda", [("made on", 1), ("waits on", 1), "copied"]), ("cpu", [])):
        asked.clear()
        feed = Feed(
            data, Order(4, 4, 0, 0, 1), workers=0, prefetch=1, pinned=False, device=devices.Device(device, 1), to_device=lambda batch: batch
        )
        assert sorted(next(feed)[1].tolist()) == [0, 1, 2, 3]
        feed.close()
        assert asked == wanted


def test_a_closed_feed_leaves_no_thread() -> None:
    """Closed while the thread ahead still copies, it waits for the end of that copy."""
    copying = threading.Event()

    def copy(batch: Any) -> Any:
        copying.set()
        time.sleep(0.05)
        return batch

    data, order = Data(torch.arange(8.0), torch.arange(8)), Order(8, 1, 0, 0, 8)
    feed = Feed(data, order, workers=0, prefetch=1, pinned=False, device=devices.Device("cpu"), to_device=copy)
    assert copying.wait(10)
    feed.close()
    assert "gpulab-prefetch" not in [thread.name for thread in threading.enumerate()]
    with pytest.raises(StopIteration):
        next(feed)


class Broken(Data):
    """Data that cannot be read."""

    def __getitem__(self, indices: Any) -> Any:
        raise OSError("no such picture")


def test_a_feed_that_failed_leaves_no_process_while_its_error_is_kept() -> None:
    """A notebook keeps the last error, and with it the loader: its processes end all the same."""
    data = Broken(torch.zeros(8, 1), torch.zeros(8, dtype=torch.int64))
    before = set(multiprocessing.active_children())
    feed = Feed(
        data, Order(8, 2, 0, 0, 4), workers=2, prefetch=1, pinned=False, device=devices.Device("cpu"), to_device=lambda batch: batch
    )
    with pytest.raises(OSError, match="no such picture") as kept:
        next(feed)
    assert set(multiprocessing.active_children()) - before
    feed.close()
    assert not set(multiprocessing.active_children()) - before
    assert kept.tb is not None


@pytest.mark.parametrize(("prefetch", "ahead"), [(0, 2), (1, 1), (5, 5)])
def test_what_processes_are_told(prefetch: int, ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many batches ahead as were asked for, two as PyTorch's own loader has it where nothing was; whole batches, in the run's order."""
    told: dict[str, Any] = {}

    class Loader:
        def __init__(self, data: Any, **options: Any) -> None:
            told.update(options, data=data)

        def __iter__(self) -> Any:
            return iter([("inputs", "targets")])

    monkeypatch.setattr(torch.utils.data, "DataLoader", Loader)
    data, order = Data(torch.arange(8.0), torch.arange(8)), Order(8, 2, 3, 0, 4)
    feed = Feed(data, order, workers=2, prefetch=prefetch, pinned=True, device=devices.Device("cpu"), to_device=lambda batch: batch)
    assert next(feed) == ("inputs", "targets")
    assert not feed.on_device
    assert (told["data"], told["batch_sampler"]) == (data, order)
    assert (told["num_workers"], told["prefetch_factor"], told["pin_memory"]) == (2, ahead, True)
    assert told["generator"].initial_seed() == 3
    batch = (torch.ones(1), torch.ones(1))
    assert told["collate_fn"](batch) is batch


def test_a_thread_ahead_keeps_no_program_from_ending() -> None:
    """A notebook's kernel that is shut down in the middle of a run ends, whatever is being copied."""
    data, order = Data(torch.arange(8.0), torch.arange(8)), Order(8, 1, 0, 0, 8)
    feed = Feed(data, order, workers=0, prefetch=1, pinned=False, device=devices.Device("cpu"), to_device=lambda batch: batch)
    assert [thread.daemon for thread in threading.enumerate() if thread.name == "gpulab-prefetch"] == [True]
    assert feed.on_device
    feed.close()


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
