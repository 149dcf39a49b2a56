"""What other machines recorded, in the shape of what this one measures."""

from __future__ import annotations

import numpy as np
import pytest

from gpulab.evidence import Environment
from gpulab.recordings import Entry, Recording, Timing
from gpulab.timing import recorded


@pytest.mark.parametrize(("kind", "device"), [("cpu", "cpu"), ("cuda", "cuda:0"), ("rocm", "cuda:0"), ("mps", "mps:0")])
def test_a_recorded_entry_as_a_measurement(kind, device):
    """PyTorch's name of the device, the workload with its size and type, and each figure of the recording in its place."""
    environment = Environment(
        date="2026-11-20T10:00:00+00:00", system="Linux", processor="P", cores=2, memory_bytes=2**34, device="a device", device_kind=kind,
        driver=None, python="3.12.3", libraries={}, command="gpulab record",
    )  # fmt: skip
    timing = Timing(np.array([1.0, 2.0, 3.0]), 3, 2.0, (1.0, 3.0), 9.0, 0.5, 4.0, 7, 11.0, 13.0, ())
    entry = Entry("catalogue", {"workload": "matmul", "n": 64, "dtype": "float32"}, timing)
    recording = Recording("invented", environment, {}, {}, "0.1.0", (entry,))
    m = recorded.measurement(recording, entry)
    assert (m.label, m.device, m.samples_seconds.tolist(), m.median_seconds) == ("matmul n=64 float32", device, [1.0, 2.0, 3.0], 2.0)
    assert (m.interval_seconds, m.first_call_seconds, m.launch_seconds, m.with_transfer_seconds) == ((1.0, 3.0), 9.0, 0.5, 4.0)
    assert (m.calls_per_sample, m.flops, m.nbytes, m.evidence.badge, m.evidence.samples) == (7, 11.0, 13.0, "RECORDED", 3)
    assert m.environment == environment
    assert recorded.measurement(recording, Entry("launch", {"operation": "graph"}, timing)).label == "launch graph"
    assert recorded.measurement(recording, Entry("catalogue", entry.params, None, "no memory")) is None


def test_what_each_recorded_machine_measured(monkeypatch):
    """Of two machines the one that has the case."""

    class Machine:
        def __init__(self, has):
            self.has = has

        def find(self, experiment, **params):
            return "entry" if self.has and (experiment, params) == ("catalogue", {"workload": "add", "n": 4, "dtype": "float32"}) else None

    machines = {"one": Machine(True), "other": Machine(False)}
    monkeypatch.setattr(recorded, "names", lambda: list(machines))
    monkeypatch.setattr(recorded, "load", machines.get)
    monkeypatch.setattr(recorded, "measurement", lambda recording, entry: (recording, entry))
    assert recorded.recorded("add", 4) == {"one": (machines["one"], "entry")}
