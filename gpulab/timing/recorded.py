"""Measurements of the catalog on recorded machines, in the same form as live ones."""

from __future__ import annotations

from gpulab.recordings import Entry, Recording, load, names
from gpulab.timing.measurement import Measurement


def measurement(recording: Recording, entry: Entry | None) -> Measurement | None:
    """Return an entry as a measurement, or None where it was not recorded.

    ``samples_seconds`` are the thinned samples; the median, the interval and ``evidence.samples``
    are of all of them.
    """
    if entry is None or entry.timing is None:
        return None
    timing = entry.timing
    params = dict(entry.params)
    label = " ".join(
        [
            str(params.pop("workload", entry.experiment)),
            *(f"{name}={value}" if name == "n" else str(value) for name, value in params.items()),
        ]
    )
    kind = recording.environment.device_kind
    return Measurement(
        label=label,
        device="cpu" if kind == "cpu" else f"{'cuda' if kind == 'rocm' else kind}:0",
        samples_seconds=timing.samples_seconds,
        median_seconds=timing.median_seconds,
        interval_seconds=timing.interval_seconds,
        first_call_seconds=timing.first_call_seconds,
        launch_seconds=timing.launch_seconds,
        with_transfer_seconds=timing.with_transfer_seconds,
        calls_per_sample=timing.calls_per_sample,
        flops=timing.flops,
        nbytes=timing.nbytes,
        notes=timing.notes,
        evidence=recording.evidence(entry),
        environment=recording.environment,
        energy_joules=timing.energy_joules,
        energy_error_joules=timing.energy_error_joules,
    )


def recorded(workload: str, n: int, dtype: str = "float32") -> dict[str, Measurement]:
    """Return what each recorded machine measured for a workload: machine name to measurement.

    An empty mapping means "not recorded yet". Damaged recordings raise ``RecordingError``.
    """
    loaded = {name: load(name) for name in names()}
    made = {
        name: measurement(one, one.find("catalogue", workload=workload, n=n, dtype=dtype))
        for name, one in loaded.items()
    }
    return {name: m for name, m in made.items() if m is not None}
