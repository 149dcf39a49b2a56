"""Links and processors as formulas, and copies that are measured.

The measured GPU is an H200 behind PyTorch's functions, on a clock that its copies advance.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpulab import devices, recordings, transfer
from gpulab.errors import DeviceError, GpulabError, InputError, OutOfMemoryError, StoppedError

from fake_machine import MIB, Clock, lines, play_gpus, play_link, private_turns  # noqa: F401
from refusals import refused


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A GPU whose copies take 10 us and 10 GB/s, or 20 GB/s from pinned memory."""
    clock = Clock()
    play_gpus(monkeypatch, synchronize=clock.finish, free_bytes=16 * MIB)
    play_link(monkeypatch, clock)
    return clock


def test_what_named_links_take_for_granted(approved: Any) -> None:
    """Latency, rate, assumptions, source: PCIe from published measurements, NVLink as stated.

    By hand: half the rate from pageable memory; a user's own numbers are labeled as chosen.
    """
    links = [transfer.link(name) for name in transfer.link_names()]
    links += [transfer.link("PCIe5", memory="pageable"), transfer.link("pcie4_x16", 5e-6)]
    links += [transfer.link("pcie4", 5e-6, 20e9), transfer.link(bandwidth_bytes_per_second=1e9)]
    text = [
        f"{one.name}: {one.latency_seconds:g} s, {one.bandwidth_bytes_per_second:g} B/s\n"
        f"  {one.evidence.sentence}"
        for one in links
    ]
    model = transfer.processor("nvidia-h200")
    text += [
        f"{p.name}: {dict(p.flops_per_second)}, {p.bytes_per_second:g} B/s, {p.launch_seconds} s"
        f"\n  {p.evidence.sentence}"
        for p in (model,)
    ]
    assert "\n".join(text) == approved


def test_times_of_links_and_processors_by_hand() -> None:
    """10 us + 250 kB at 25 GB/s are 20 us; 42.5 TFLOP take a second and a launch, 3.77 TB too."""
    assert transfer.link("pcie4", 1e-5, 25e9).seconds(250_000) == pytest.approx(2e-5)
    h200 = transfer.processor("nvidia-h200")
    of_a_second = [
        h200.seconds(42.5e12, 0),
        h200.seconds(1e12, 3.77e12),
        h200.seconds(785e12, 0, "bfloat16"),
    ]
    assert of_a_second == pytest.approx([1 + 2.5e-6] * 3)


def test_a_modelled_sweep_is_the_formula() -> None:
    """Both directions from 1 KiB to 1 GiB; with noise the fit finds the link's numbers again."""
    link = transfer.link("pcie4", 1e-5, 25e9)
    exact, noisy = link.sweep(), link.sweep(noise_ratio=0.03, seed=1)
    assert exact.series == (("to_device", "pinned"), ("to_host", "pinned"))
    assert [p.nbytes for p in exact.select("to_host")] == [2**k for k in range(10, 31)]
    assert all(p.median_seconds == link.seconds(p.nbytes) for p in exact.points)
    assert noisy == link.sweep(noise_ratio=0.03, seed=1) != link.sweep(noise_ratio=0.03)
    assert {exact.evidence.badge, noisy.evidence.badge, exact.points[0].samples} == {"MODELLED", 0}
    found = noisy.fit()
    assert found.latency_seconds == pytest.approx(1e-5, rel=0.1)
    assert found.bandwidth_bytes_per_second == pytest.approx(25e9, rel=0.05)
    by_name = transfer.sweep(link="pcie4", sizes=[2**20, 2**10])
    assert [p.nbytes for p in by_name.select()] == [2**10, 2**20]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    "call",
    [
        lambda: transfer.link("pci"),
        lambda: transfer.link("pcie4", 0.0),
        lambda: transfer.link("pcie4", None, float("inf")),
        lambda: transfer.link("pcie4", memory="paged"),
        lambda: transfer.link("pcie4").seconds(-1),
        lambda: transfer.link("pcie4").sweep(sizes=[]),
        lambda: transfer.link("pcie4").sweep(sizes=[0]),
        lambda: transfer.link("pcie4").sweep(noise_ratio=1),
        lambda: transfer.link("pcie4").sweep(seed=-1),
        lambda: transfer.processor("h200"),
        lambda: transfer.processor("nvidia-h200").seconds(1, 1, "int8"),
        lambda: transfer.link("pcie4").sweep().select("host"),
        lambda: transfer.sweep("cpu", sizes=[1.5]),
        lambda: transfer.sweep("cpu", directions="to_device"),
        lambda: transfer.sweep("cpu", directions=("up",)),
        lambda: transfer.sweep("cpu", deadline=0),
        lambda: transfer.measure_copy(4096, "to_device", device="cpu"),
        lambda: transfer.measure_copy(4096, "host", "pinned"),
        lambda: transfer.link("pcie4").sweep().fit().predict("1 MiB"),
        lambda: transfer.link("pcie4").sweep().fit().predict(-1),
        lambda: transfer.measure_copy(2**50, "host"),
        lambda: transfer.sweep("cuda", sizes=[2**30]),  # only 16 MiB are free
        lambda: transfer.sweep("cuda", ("host",)),
        lambda: transfer.recorded_sweep("nvidia-h200"),
    ],
)
def test_what_is_no_link_size_or_series_is_refused(call: Callable[[], Any]) -> None:
    """Invalid links, sizes and series are refused before anything is allocated or measured."""
    assert refused(GpulabError, call).type in (InputError, OutOfMemoryError)


def test_a_gpu_sweep_finds_its_link(clock: Clock, approved: Any) -> None:
    """Both directions from both kinds of memory, and the fit gives back 10 us, 10 and 20 GB/s."""
    found = transfer.sweep("cuda", deadline=0.02)
    assert found.series == tuple(
        (d, m) for d in ("to_device", "to_host") for m in ("pageable", "pinned")
    )
    # Without sizes: up to a quarter of what is free, less a tenth to spare (here of 16 MiB).
    assert [p.nbytes for p in found.select()] == [2**k for k in range(10, 22)]
    for memory, rate in (("pageable", 1e10), ("pinned", 2e10)):
        fit = found.fit("to_host", memory)
        assert fit.latency_seconds == pytest.approx(1e-5, rel=1e-3)
        assert fit.bandwidth_bytes_per_second == pytest.approx(rate, rel=1e-3)
    assert (found.evidence.badge, fit.evidence) == ("MEASURED", found.evidence)
    assert found.evidence.samples == sum(p.samples for p in found.points)
    few = transfer.sweep("cuda", ("to_host",), sizes=[2**20, 2**12], deadline=0.1)
    assert lines(dataclasses.replace(few, notes=())) == approved
    own = transfer.link(deadline=0.05)
    assert (own.name, own.evidence.badge) == ("NVIDIA H200, pinned memory", "MEASURED")
    assert own.bandwidth_bytes_per_second == pytest.approx(2e10, rel=1e-3)


def test_a_machine_that_cannot_pin_memory(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note replaces the pinned series; a request for pinned memory alone is an error."""
    empty = torch.empty

    def refuse(*args: Any, pin_memory: bool = False, **options: Any) -> Any:
        if pin_memory:
            raise RuntimeError("CUDA error: OS call failed or operation not supported on this OS")
        return empty(*args, **options)

    monkeypatch.setattr(torch, "empty", refuse)
    found = transfer.sweep("cuda", sizes=[4096], deadline=0.1)
    assert [memory for _, memory in found.series] == ["pageable", "pageable"]
    assert [note.code for note in found.notes if note.code == "skipped"] == ["skipped"] * 2
    refused(DeviceError, transfer.measure_copy, 4096, "to_device", "pinned", "cuda")


@pytest.mark.usefixtures("clock")
def test_one_copy() -> None:
    """A copy of 1 MB at 10 us and 10 GB/s takes 110 us. All cores that copy 10 GB/s read and write
    20 GB/s.
    """
    m = transfer.measure_copy(10**6, "to_device", "pageable", "cuda", deadline=0.05)
    assert (
        m.median_seconds, m.nbytes, m.device, transfer.memory_bandwidth_bytes_per_second(0.05)
    ) == (pytest.approx(1.1e-4), 1e6, "cuda:0", pytest.approx(2e10, rel=0.01))  # fmt: skip


@pytest.mark.slow  # measures this machine's ceilings
def test_the_sweep_of_a_cpu_is_a_host_copy() -> None:
    """One measured NumPy series, beside the bandwidth of all cores; a stop keeps its points."""
    seen: list[float] = []
    options: dict[str, Any] = {"deadline": 0.1, "progress": lambda *p: seen.append(p[0])}
    found = transfer.sweep("cpu", sizes=[8192, 4096], **options)
    assert (found.series, found.library) == ((("host", "pageable"),), "numpy")
    assert [p.nbytes for p in found.points] == [4096, 8192]
    assert found.memory_bandwidth_bytes_per_second > 0
    assert (found.evidence.badge, seen) == ("MEASURED", [0.0, 0.5, 1.0, 1.0])
    stop = lambda: len(seen) > 5  # noqa: E731
    stopped = transfer.sweep("cpu", sizes=[4096, 8192], stop=stop, **options)
    assert [p.nbytes for p in stopped.points] == [4096]
    assert stopped.memory_bandwidth_bytes_per_second is None
    assert stopped.notes[-1].code == "stopped"
    refused(StoppedError, transfer.sweep, "cpu", sizes=[4096], stop=lambda: True)
    # without an accelerator there is no link to measure
    assert not devices.default().is_cpu or transfer.link() == transfer.link("pcie4-x16")


def test_a_recorded_sweep_has_the_recordings_numbers(approved: Any) -> None:
    """Each point has its entry's numbers; a recording without copies has no sweep."""
    recording = recordings.load("nvidia-h200")
    found = transfer.recorded_sweep(recording)
    points = {(p.direction, p.memory, p.nbytes): p for p in found.points}
    entries = recording.select("transfer")
    assert (len(points), found.evidence.badge) == (len(entries), "RECORDED")
    for e in entries:
        p = points[e.params["direction"], e.params["memory"], e.params["nbytes"]]
        by_hand = (e.timing.median_seconds, e.timing.interval_seconds, e.timing.sample_count)
        assert (p.median_seconds, p.interval_seconds, p.samples) == by_hand
        assert p.bytes_per_second == p.nbytes / p.median_seconds
    assert transfer.recorded_sweep(dataclasses.replace(recording, entries=())) is None
    assert lines(found) == approved


@pytest.mark.gpu
def test_copies_to_a_real_gpu() -> None:
    """All four series are measured with PyTorch; each copy is waited for: 64 MiB take longer than
    4 KiB, though both are queued in the same time.
    """
    found = transfer.sweep("cuda", sizes=[2**12, 2**16, 2**20, 2**26], deadline=4)
    assert (len(found.series), found.library, found.evidence.badge) == (4, "torch", "MEASURED")
    for small, *_, large in (found.select(*series) for series in found.series):
        assert large.median_seconds > 4 * small.median_seconds
