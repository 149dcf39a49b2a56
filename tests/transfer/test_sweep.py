"""Sweeps: which points are measured, what is refused, and what a stop leaves. No test looks at how long anything took."""

import contextlib
import dataclasses
import inspect
import threading
import types

import numpy as np
import pytest
import torch

from gpulab import devices, recordings, transfer
from gpulab.devices import Device
from gpulab.errors import DeviceError, InputError, OutOfMemoryError, StoppedError
from gpulab.evidence import Badge, Environment, Note
from gpulab.transfer import Sweep, _copies, _pinning, _sweep


@pytest.fixture
def fake_gpu(monkeypatch):
    """Let the machine seem to have a GPU whose buffers are host memory; returns a list of what was allocated."""
    made = []

    def make_buffers(direction, memory, device, library, nbytes):
        made.append((direction, memory, nbytes))
        source, target = np.ones(nbytes, dtype=np.uint8), np.zeros(nbytes, dtype=np.uint8)
        return _copies.Buffers(direction, memory, nbytes, lambda size: lambda: np.copyto(target[:size], source[:size]))

    gpu = Device("cuda")
    real_find, real_environment = devices.find, devices.environment
    monkeypatch.setattr(devices, "find", lambda name=None: gpu if name is None or name is gpu else real_find(name))
    monkeypatch.setattr(devices, "environment", lambda device=None, command=None: real_environment("cpu"))
    monkeypatch.setattr(Device, "name", property(lambda self: f"fake {self.kind}"))
    monkeypatch.setattr(_copies, "free_bytes", lambda device: 2**24)
    monkeypatch.setattr(_sweep, "free_bytes", lambda device: 2**24)
    monkeypatch.setattr(_copies, "make_buffers", make_buffers)
    real_measure = _sweep.measure_buffers
    monkeypatch.setattr(
        _sweep, "measure_buffers", lambda b, n, d, deadline, stop=None: real_measure(b, n, Device("cpu"), deadline, stop=stop)
    )
    return made


def test_host_copy_on_a_machine_without_gpu():
    """The CPU's sweep is one series, "host", MEASURED by numpy, with the all-core bandwidth beside it."""
    seen = []
    s = transfer.sweep("cpu", sizes=[2**10, 2**14, 2**12], deadline=0.3, progress=lambda f, text: seen.append((f, text)))
    assert s.series == (("host", "pageable"),)
    assert [p.nbytes for p in s.points] == [2**10, 2**12, 2**14]
    assert s.evidence.badge is Badge.MEASURED
    assert s.library == "numpy"
    assert s.memory_bandwidth_bytes_per_second > 0
    assert all(p.samples >= 1 and p.bytes_per_second > 0 for p in s.points)
    assert Sweep.from_dict(s.to_dict()) == s
    assert seen[-1] == (1.0, "done")
    assert [f for f, _ in seen] == sorted(f for f, _ in seen)
    headers, rows = s.table()
    assert [row[0] for row in rows] == ["host copy"] * 3 + [f"note: {note.code}" for note in s.notes]
    assert {len(row) for row in rows} == {len(headers)}


def test_gpu_sweep_measures_four_series(fake_gpu):
    """Both directions from both kinds of memory; default sizes end at a quarter of what is free (less the margin)."""
    s = transfer.sweep(deadline=0.1)
    assert s.series == (("to_device", "pageable"), ("to_device", "pinned"), ("to_host", "pageable"), ("to_host", "pinned"))
    assert {n for _, _, n in fake_gpu} == {2**21}
    assert len(s.select("to_host", "pinned")) == 12
    assert s.memory_bandwidth_bytes_per_second is None
    assert s.fit("to_device", "pinned").bandwidth_bytes_per_second > 0


def test_a_copy_within_host_memory_goes_by_no_gpus_name_and_is_not_pinned(fake_gpu):
    """It had been swept twice under the GPU's name, once as pinned; on the CPU the same words give the one host series."""
    with pytest.raises(InputError, match=r"'host' is a copy within host memory, which fake cuda has no part in.*device='cpu'"):
        transfer.sweep(directions=("host",), sizes=[2**10])
    assert fake_gpu == []
    assert transfer.sweep("cpu", ("host",), ("pinned",), sizes=[2**10], deadline=0.05).series == (("host", "pageable"),)
    with pytest.raises(InputError, match=r"memory='pinned' for a copy within host memory.*expected memory='pageable'"):
        transfer.measure_copy(4096, "host", "pinned")


def test_what_does_not_fit_is_told_before_allocating(fake_gpu):
    """A size that was asked for and does not fit is an error with the largest that does; nothing is allocated."""
    with pytest.raises(OutOfMemoryError, match=r"buffers of 1\.00 GiB do not fit into the 16\.0 MiB"):
        transfer.sweep(sizes=[2**10, 2**30])
    assert fake_gpu == []


def test_a_series_that_cannot_be_had_becomes_a_note(fake_gpu, monkeypatch):
    """Where page-locked memory is refused, the other series are reported, and a note says what was left out."""
    real = _copies.make_buffers

    def refuse(direction, memory, device, library, nbytes):
        if memory == "pinned":
            raise RuntimeError("CUDA error: out of memory")
        return real(direction, memory, device, library, nbytes)

    monkeypatch.setattr(_copies, "make_buffers", refuse)
    s = transfer.sweep(sizes=[2**10], deadline=0.1)
    assert s.series == (("to_device", "pageable"), ("to_host", "pageable"))
    assert [n.code for n in s.notes if n.code == "skipped"] == ["skipped", "skipped"]


def test_stop_keeps_what_was_reached():
    """A stop in the middle returns the points so far with the note "stopped"; at the start there is nothing to return."""
    event = threading.Event()
    s = transfer.sweep(
        "cpu", sizes=[2**10, 2**12, 2**14], deadline=0.3, progress=lambda f, _: event.set() if f > 0.5 else None, stop=event.is_set
    )
    assert 1 <= len(s.points) < 3
    assert s.notes[-1].code == "stopped"
    with pytest.raises(StoppedError, match="before the first point"):
        transfer.sweep("cpu", sizes=[2**10], stop=lambda: True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sizes": [0]}, "0 bytes"),
        ({"sizes": [-5]}, "-5 bytes"),
        ({"sizes": [True]}, "True bytes"),
        ({"sizes": []}, "no sizes"),
        ({"directions": ("sideways",)}, "direction is 'sideways'"),
        ({"directions": "to_host"}, "directions is"),
        ({"memory": ()}, "memory is"),
        ({"memory": ("paged",)}, "memory is 'paged'"),
        ({"library": "jax"}, "library is 'jax'"),
        ({"deadline": 0}, "deadline"),
        ({"deadline": True}, "deadline"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments, words):
    """Whatever cannot be swept is refused at once."""
    with pytest.raises(InputError, match=words):
        transfer.sweep("cpu", **arguments)


def test_unknown_device():
    """A device that is not there is the device layer's sentence."""
    with pytest.raises(DeviceError, match="not on this machine"):
        transfer.sweep("cuda:9")


def test_unknown_series():
    """Asking a sweep for a series that it lacks names those that it has."""
    s = transfer.link("pcie4").sweep()
    with pytest.raises(InputError, match="to_device/pinned, to_host/pinned"):
        s.fit("to_device", "pageable")


def test_measure_copy():
    """One copy as a measurement, with its bytes; refusals are those of the sweep."""
    m = transfer.measure_copy(4096, "host", deadline=0.05)
    assert (m.nbytes, m.device) == (4096, "cpu")
    with pytest.raises(InputError, match="no link to copy over"):
        transfer.measure_copy(4096, "to_device", device="cpu")
    with pytest.raises(InputError, match="0 bytes"):
        transfer.measure_copy(0)
    with pytest.raises(OutOfMemoryError, match="expected at most"):
        transfer.measure_copy(2**50, "host")


def test_recorded_sweep_is_rebuilt():
    """A recording's transfer entries come back as a sweep with the badge RECORDED; without any, None."""
    environment = Environment(
        "2026-01-02T03:04:05+00:00", "Linux", "some CPU", 4, 2**33, "some GPU", "cuda", "570.1", "3.12", {"torch": "2.9"}
    )
    timing = recordings.Timing(np.array([1e-5, 1.1e-5]), 2, 1.05e-5, (1e-5, 1.1e-5), 1e-4, 1e-6, None, 1, None, 1024.0, ())
    params = {k: {"direction": "to_host", "memory": "pinned", "nbytes": 2**k} for k in (10, 11, 12, 13, 30)}
    entries = [recordings.Entry("transfer", params[k], timing) for k in range(10, 14)]
    entries.append(recordings.Entry("transfer", params[30], None, "time did not reach it"))
    recording = recordings.Recording("some-gpu", environment, {}, {}, "0.1.0", tuple(entries))
    s = transfer.recorded_sweep(recording)
    assert s.evidence.badge is Badge.RECORDED
    assert [p.nbytes for p in s.select("to_host", "pinned")] == [2**10, 2**11, 2**12, 2**13]
    assert s.points[0].samples == 2
    assert Sweep.from_dict(s.to_dict()) == s
    assert transfer.recorded_sweep(dataclasses.replace(recording, entries=())) is None


def test_all_core_bandwidth_fits_into_what_is_free(monkeypatch):
    """On a machine with little memory the bandwidth is measured on a smaller array."""
    monkeypatch.setattr(_sweep, "free_bytes", lambda device: 2**26)
    assert transfer.memory_bandwidth_bytes_per_second(0.05) > 1e8


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_gpu_copies(library):
    """On a GPU each series moves its bytes, pinned memory is not slower for large copies, and latency is between 1 and 200 us."""
    pytest.importorskip(library)
    s = transfer.sweep("cuda", library=library, sizes=[2**10, 2**14, 2**18, 2**22, 2**26], deadline=6)
    assert len(s.series) == 4
    for direction in ("to_device", "to_host"):
        pageable, pinned = (s.select(direction, memory)[-1] for memory in ("pageable", "pinned"))
        assert pinned.median_seconds < 1.1 * pageable.median_seconds
        assert 1e-6 < s.select(direction, "pinned")[0].median_seconds < 200e-6


@pytest.mark.gpu
def test_pinning_cost_on_a_gpu():
    """Pinning 64 MiB costs more than one pinned copy of it."""
    cost = transfer.pinning_cost(2**26, "cuda")
    assert cost.pin_seconds > cost.pinned_copy_seconds


def test_pinning_needs_a_gpu():
    """A CPU has nothing to pin for."""
    with pytest.raises(InputError, match="no pinned memory"):
        transfer.pinning_cost(2**20, "cpu")


def test_stale_read_ends_fresh():
    """After waiting every element is new, whatever was read at once; a thread does the copy on a CPU."""
    r = transfer.stale_read(2**22, "cpu")
    assert 0 <= r.stale_ratio <= 1
    assert r.after_ratio == 0
    with pytest.raises(InputError, match="bytes"):
        transfer.stale_read(-1)
    with pytest.raises(OutOfMemoryError):
        transfer.stale_read(2**50, "cpu")


@pytest.mark.gpu
def test_stale_read_on_a_gpu():
    """Reading a non-blocking copy of 256 MiB at once sees old values; after waiting none."""
    r = transfer.stale_read(2**28, "cuda")
    assert r.stale_ratio > 0.5
    assert r.after_ratio == 0


def test_a_stale_read_on_a_gpu_starts_the_copy_and_looks_at_once(monkeypatch):
    """With a stand-in for the tensors: a non-blocking copy into pinned memory; the device is waited for before it and between the looks."""
    log = []
    values = iter([_pinning._OLD, _pinning._NEW])

    class Pinned:
        """What ``pin_memory`` returns."""

        def copy_(self, source, non_blocking=False):
            log.append(("copy", non_blocking))

        def numpy(self):
            log.append("look")
            return np.full(4, next(values), dtype=np.uint8)

    device = types.SimpleNamespace(synchronize=lambda: log.append("wait"), name="A GPU")
    monkeypatch.setattr(torch, "full", lambda *given, **named: types.SimpleNamespace(pin_memory=Pinned))
    assert _pinning._gpu_readings(4, device) == (1.0, 0.0)
    assert log == ["wait", ("copy", True), "look", "wait", "look"]


def test_a_stale_read_without_a_gpu_waits_for_its_thread(monkeypatch):
    """A copy that takes long: at once everything is old, and after the wait nothing."""
    real, go = np.copyto, threading.Event()

    def slow(target, source):
        go.wait(5)
        real(target, source)

    looks = _pinning._stale_ratio

    def look(target):
        ratio = looks(target)
        go.set()
        return ratio

    monkeypatch.setattr(np, "copyto", slow)
    monkeypatch.setattr(_pinning, "_stale_ratio", look)
    assert _pinning._thread_readings(10_000) == (1.0, 0.0)


def test_the_share_of_old_values_is_seen_from_elements_all_over_the_array():
    """Of 40,960 elements each tenth is looked at: a quarter that is old counts a quarter."""
    target = np.full(40_960, _pinning._NEW, dtype=np.uint8)
    target[-10_240:] = _pinning._OLD
    assert _pinning._stale_ratio(target) == 0.25
    assert _pinning._stale_ratio(target[-3:]) == 1.0


@pytest.mark.parametrize(("direction", "memory"), [("to_device", "pageable"), ("to_host", "pageable"), ("to_device", "pinned")])
def test_each_copy_of_pytorchs_is_waited_for(direction, memory, monkeypatch):
    """The first bytes of ones reach the other buffer, without blocking from pinned memory alone, and then the device is waited for."""
    log, made = [], []
    empty, copy_ = torch.empty, torch.Tensor.copy_
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory, **named: made.append(pin_memory) or empty(*size, **named))
    monkeypatch.setattr(torch.Tensor, "copy_", lambda b, a, non_blocking=False: log.append((len(a), non_blocking, b)) or copy_(b, a))

    class Gpu:
        """A device whose memory is the host's."""

        def __str__(self):
            return "cpu"

        def synchronize(self):
            log.append("wait")

    buffers = _copies.make_buffers(direction, memory, Gpu(), "torch", 16)
    buffers.copy(4)()
    (size, non_blocking, target), waited = log
    assert (size, non_blocking, waited, made) == (4, memory == "pinned", "wait", [memory == "pinned"])
    assert target.tolist() == ([1] * 4 if direction == "to_device" else [0] * 4)  # the host's buffer holds ones
    assert (buffers.direction, buffers.memory, buffers.largest) == (direction, memory, 16)


@pytest.mark.parametrize(("direction", "memory"), [("to_device", "pageable"), ("to_host", "pageable"), ("to_device", "pinned")])
def test_each_copy_of_cupys_is_waited_for(direction, memory, monkeypatch):
    """On its own device, by ``set`` and ``get`` with a buffer that is there, and then its stream is waited for (CuPy's manual)."""
    log = []

    class There:
        """An array on the device."""

        def __init__(self, size):
            self.size = size

        def __getitem__(self, part):
            return There(part.stop)

        def set(self, a):
            log.append(("set", self.size, a.tolist()))

        def get(self, out):
            log.append(("get", self.size, out.tolist()))

    @contextlib.contextmanager
    def on(index):
        log.append(index)
        yield

    stream = types.SimpleNamespace(synchronize=lambda: log.append("wait"))
    cupy = types.SimpleNamespace(
        zeros=lambda size, dtype: There(size), cuda=types.SimpleNamespace(Device=on, get_current_stream=lambda: stream), uint8=np.uint8
    )
    monkeypatch.setattr(_copies._backends, "backend", lambda name: types.SimpleNamespace(module=cupy))
    pinned = types.SimpleNamespace(empty_pinned=lambda shape, dtype: log.append("pinned") or np.zeros(shape, dtype))
    monkeypatch.setattr(_copies.importlib, "import_module", lambda name: {"cupyx": pinned}[name])
    buffers = _copies.make_buffers(direction, memory, Device("cuda", 1), "cupy", 16)
    assert log == ([1] if memory == "pageable" else ["pinned", 1])
    log.clear()
    buffers.copy(4)()
    assert log == [1, ("set" if direction == "to_device" else "get", 4, [1] * 4), "wait"]


def test_what_pinning_costs_by_hand(monkeypatch):
    """A pinning of 30 ms, copies of 2 and 5 ms: it has paid after ten; a third of the time each, and twice the room."""
    asked = []

    def measured(seconds, samples):
        environment = types.SimpleNamespace(date="2026-01-02")
        return types.SimpleNamespace(median_seconds=seconds, samples_seconds=[seconds] * samples, environment=environment)

    monkeypatch.setattr(devices, "find", lambda name: types.SimpleNamespace(torch_type="cuda", name="A GPU"))
    monkeypatch.setattr(_pinning, "check_room", lambda *given: asked.append(given[2:]))
    monkeypatch.setattr(
        _pinning.timing,
        "measure",
        lambda fn, device, deadline, label: asked.append((fn.__name__, device, deadline)) or measured(30e-3, 2),
    )
    copies = {"pinned": measured(2e-3, 3), "pageable": measured(5e-3, 4)}
    monkeypatch.setattr(_pinning, "measure_copy", lambda n, to, memory, where, deadline: asked.append((n, to, deadline)) or copies[memory])
    cost = transfer.pinning_cost(device="cuda")
    assert (cost.nbytes, [given[-1] for given in asked]) == (2**26, [2**27, 1.0, 1.0, 1.0])
    asked.clear()
    cost = transfer.pinning_cost(1024, "cuda", deadline=3.0)
    assert asked == [("to_device", 2048), ("pin_memory", "cpu", 1.0), (1024, "to_device", 1.0), (1024, "to_device", 1.0)]
    assert (cost.nbytes, cost.pin_seconds, cost.pinned_copy_seconds, cost.pageable_copy_seconds) == (1024, 30e-3, 2e-3, 5e-3)
    assert cost.copies_to_pay == pytest.approx(10)
    assert (cost.evidence.samples, cost.evidence.device, cost.evidence.date) == (9, "A GPU", "2026-01-02")
    assert dataclasses.replace(cost, pageable_copy_seconds=2e-3).copies_to_pay is None


@pytest.mark.parametrize(
    ("kind", "direction", "memory", "library", "words"),
    [
        ("cuda", "to_host", "pinned", "cupy", None), ("rocm", "to_device", "pinned", "torch", None),
        ("xpu", "to_device", "pinned", "torch", None),
        ("mps", "to_host", "pageable", "torch", None), ("cpu", "host", "pinned", "cupy", None),
        ("xpu", "to_host", "pageable", "cupy", r"^f: cupy has no arrays on a xpu; expected a CUDA device\. Pass library='torch'\.$"),
        ("mps", "to_host", "pinned", "torch", r"^f: a mps has no pinned memory to copy from; expected CUDA\. Pass memory='pageable'\.$"),
        ("cpu", "to_host", "pageable", "torch", r"^f: a cpu has no link to copy over; expected an accelerator\. Pass direction='host' or"),
    ],
)  # fmt: skip
def test_which_copies_a_device_has(monkeypatch, kind, direction, memory, library, words):
    """By its kind: page-locked memory is CUDA's and Intel's, CuPy's arrays are CUDA's and ROCm's, a CPU copies within itself."""
    monkeypatch.setattr(Device, "name", property(lambda self: f"a {self.kind}"))
    with contextlib.nullcontext() if words is None else pytest.raises(InputError, match=words):
        _copies.check_series("f", direction, memory, Device(kind), library)


@pytest.mark.parametrize(
    ("kind", "direction", "host", "device", "fits"),
    [
        ("cpu", "host", 2200, None, 1000), ("cuda", "to_device", 1100, 5500, 1000), ("cuda", "to_host", 5500, 1100, 1000),
        ("mps", "to_device", 2200, 9999, 1000), ("cuda", "to_device", None, 1100, 1000), ("cuda", "host", 2200, 11, 1000),
    ],
)  # fmt: skip
def test_two_buffers_need_room_where_they_lie(monkeypatch, kind, direction, host, device, fits):
    """One on each side, or both on the host, where a GPU has no memory of its own too; with a tenth to spare, to the byte."""
    monkeypatch.setattr(Device, "name", property(lambda self: f"a {self.kind}"))
    monkeypatch.setattr(_copies, "free_bytes", lambda place: host if place.is_cpu else device)
    _copies.check_room("f", Device(kind), direction, fits)
    with pytest.raises(
        OutOfMemoryError, match=r"^f: buffers of 1001 B do not fit into the .* that are free on a .*; expected at most 1000 B\."
    ):
        _copies.check_room("f", Device(kind), direction, fits + 1)


def test_one_copy_is_measured_on_the_device_that_was_asked_for(fake_gpu, monkeypatch):
    """With the precision of a sweep's point, its bytes and its words; within the host by the CPU, whatever the device."""
    asked = []
    monkeypatch.setattr(_copies.timing, "measure", lambda fn, **options: asked.append(options) or "measured")
    assert transfer.measure_copy(4096) == transfer.measure_copy(4096, "to_host", "pinned", deadline=0.5) == "measured"
    assert transfer.measure_copy(4096, "host", device="cuda") == "measured"
    common = {"relative_width": 0.02, "nbytes": 4096, "clock": None, "stop": None}
    assert asked == [
        {"device": Device("cuda"), "deadline": 1.0, "label": "host to device pageable 4.00 KiB", **common},
        {"device": Device("cuda"), "deadline": 0.5, "label": "device to host pinned 4.00 KiB", **common},
        {"device": Device("cpu"), "deadline": 1.0, "label": "host copy pageable 4.00 KiB", **common},
    ]
    assert [made[:2] for made in fake_gpu] == [("to_device", "pageable"), ("to_host", "pinned"), ("host", "pageable")]


@pytest.mark.parametrize(("free", "nbytes"), [(2**26, 2**23), (2**40, 2**28), (None, 2**28)])
def test_all_cores_read_and_write(monkeypatch, free, nbytes):
    """Two arrays in a quarter of what is free, 256 MiB each at most: read and written in half a second, by hand."""
    asked = []
    monkeypatch.setattr(_sweep, "free_bytes", lambda device: free)
    monkeypatch.setattr(_sweep, "check_room", lambda *given: asked.append(given))
    for name in ("ones", "zeros"):
        monkeypatch.setattr(torch, name, lambda count: torch.empty(count, device="meta"))
    monkeypatch.setattr(
        _sweep.timing, "measure", lambda fn, source, **options: asked.append(options) or types.SimpleNamespace(median_seconds=0.5)
    )
    assert transfer.memory_bandwidth_bytes_per_second() == 2 * nbytes / 0.5
    assert asked == [
        ("memory_bandwidth_bytes_per_second", Device("cpu"), "host", nbytes), {"device": "cpu", "deadline": 0.5, "label": "all cores copy"},
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "memory", "own"), [
    ("cuda", "pinned", True), ("cuda", "pageable", True), ("mps", "pageable", True), ("mps", "pinned", False), ("cpu", "pageable", False),
])  # fmt: skip
def test_a_link_without_a_name_is_this_machines_own(monkeypatch, kind, memory, own):
    """Where it has an accelerator with such memory: fitted to its copies there; else, or with a number of one's own, the usual model."""
    asked = []
    monkeypatch.setattr(devices, "default", lambda: Device(kind))
    monkeypatch.setattr(Device, "name", property(lambda self: "A GPU"))
    made = transfer.link("pcie5").sweep()
    monkeypatch.setattr(_sweep, "sweep", lambda *given, **options: asked.append((*given, options)) or made)
    found = transfer.link(memory=memory)
    assert asked == ([(Device(kind), ("to_device",), (memory,), {"deadline": 3.0})] if own else [])
    assert found.name == (f"A GPU, {memory} memory" if own else "pcie4-x16")
    assert found.bandwidth_bytes_per_second == pytest.approx(53e9 if own else 26e9 if memory == "pinned" else 13e9)
    asked.clear()
    for options in ({"latency_seconds": 1e-6}, {"bandwidth_bytes_per_second": 1e9}, {"name": "pcie3"}):
        assert transfer.link(memory=memory, **options).name in ("pcie4-x16", "pcie3-x16")
    assert asked == []


def test_what_disturbed_points_is_told_once_with_their_number(fake_gpu, monkeypatch):
    """The first one's sentence stands for all; what concerns a point alone is not told; the words of a sweep, by hand."""
    told = iter([("contended", "first"), ("deadline", "no"), ("contended", "second"), ("throttled", "hot")])

    def measured(buffers, nbytes, device, deadline, stop=None):
        note = Note(*next(told))
        return types.SimpleNamespace(samples_seconds=[0] * 3, median_seconds=1e-3, interval_seconds=(9e-4, 2e-3), notes=(note,))

    monkeypatch.setattr(_sweep, "measure_buffers", measured)
    s = transfer.sweep(directions=("to_device", "to_host"), memory=("pageable",), sizes=[2**10, 2**20], deadline=1.0)
    assert [(n.code, n.sentence) for n in s.notes] == [
        ("contended", "2 of 4 points; the first: first"),
        ("throttled", "1 of 4 points; the first: hot"),
    ]
    assert (s.evidence.samples, s.library, s.device) == (12, "torch", "fake cuda")
    headers, rows = s.table()
    assert headers == ("direction", "host memory", "size", "time (median)", "95 %", "rate", "samples")
    assert rows[1] == ("host to device", "pageable", "1.00 MiB", "1.00 ms", "900 us to 2.00 ms", "1.05 GB/s", "3")
    assert rows[4] == ("note: contended", "2 of 4 points; the first: first", "", "", "", "", "")
    assert transfer.link("pcie4").sweep([2**10]).table()[1][0][4:] == ("", "102 MB/s", "modelled")
    assert repr(s) == "<sweep of fake cuda: host to device pageable, device to host pageable; 4 points, MEASURED>"
    assert repr(dataclasses.replace(s, points=s.points[:1])) == "<sweep of fake cuda: host to device pageable; 1 point, MEASURED>"
    assert repr(dataclasses.replace(s, points=())) == "<sweep of fake cuda: no point; 0 points, MEASURED>"


def test_sizes_and_times_that_are_not_given(monkeypatch):
    """64 MiB are pinned and 256 MiB looked at, as the page says; a recording alone becomes a sweep; a deadline ends."""
    asked = []
    monkeypatch.setattr(_pinning, "check_room", lambda *given: asked.append(given[2:]))
    monkeypatch.setattr(_pinning, "_thread_readings", lambda nbytes: (0.5, 0.0))
    assert (transfer.stale_read(device="cpu").nbytes, asked) == (2**28, [("host", 2**28)])
    with pytest.raises(InputError, match=r"^recorded_sweep: got a str; expected a Recording\. Pass gl\.recordings\.load\(name\)\.$"):
        transfer.recorded_sweep("nvidia-h200")


# What a call without options means; what it leaves to the device or the machine is None.
USUAL = {
    "break_even": {"dtype": "float32", "deadline": 30.0},
    "link": {"memory": "pinned", "deadline": 3.0},
    "measure_copy": {"direction": "to_device", "memory": "pageable", "library": "torch", "deadline": 1.0},
    "measure_overlap": {"deadline": 2.0},
    "memory_bandwidth_bytes_per_second": {"deadline": 0.5},
    "overlap": {"nbytes": 67_108_864, "chunks": 8},
    "pinning_cost": {"nbytes": 67_108_864, "deadline": 3.0},
    "pipeline_seconds": {"launch_seconds": 0.0},
    "stale_read": {"nbytes": 268_435_456},
    "sweep": {"directions": ("to_device", "to_host"), "memory": ("pageable", "pinned"), "library": "torch", "deadline": 20.0},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(USUAL))
def test_what_a_call_without_options_means(name):
    """Figures in the course's text and in recordings were made with these."""
    found = inspect.signature(getattr(transfer, name)).parameters.items()
    left = {key: parameter.default for key, parameter in found if parameter.default not in (None, inspect.Parameter.empty)}
    assert left == USUAL[name]


@pytest.mark.parametrize(
    ("kind", "room", "readings", "who"),
    [("cuda", "to_host", "gpu", "a cuda"), ("mps", "host", "thread", "a cpu"), ("cpu", "host", "thread", "a cpu")],
)
def test_a_stale_read_says_who_made_the_copy(monkeypatch, kind, room, readings, who):
    """A GPU's copy engine where there is one that works beside the host; else a thread, and no accelerator has a part in it."""
    asked = []
    monkeypatch.setattr(Device, "name", property(lambda self: f"a {self.kind}"))
    monkeypatch.setattr(devices, "find", lambda name: Device(kind) if name is None else Device(name))
    monkeypatch.setattr(_pinning, "check_room", lambda *given: asked.append(given))
    monkeypatch.setattr(_pinning, "_gpu_readings", lambda nbytes, device: asked.append(("gpu", nbytes)) or (0.75, 0.25))
    monkeypatch.setattr(_pinning, "_thread_readings", lambda nbytes: asked.append(("thread", nbytes)) or (0.75, 0.25))
    r = transfer.stale_read(1000)
    assert asked == [("stale_read", Device(kind), room, 1000), (readings, 1000)]
    assert (r.nbytes, r.stale_ratio, r.after_ratio) == (1000, 0.75, 0.25)
    assert (r.evidence.device, r.evidence.samples, r.evidence.badge) == (who, 1, Badge.MEASURED)
