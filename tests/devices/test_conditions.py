"""Readings of the machine's counters: from files as Linux writes them, and on the machine at hand."""

from __future__ import annotations

import shutil
import sys
from dataclasses import fields
from types import SimpleNamespace

import pytest

from gpulab.devices import Device, conditions, disturbance

STAT = """cpu  1000 0 500 9000 10 0 20 30 0 0
cpu0 400 10 200 4500 5 3 10 20 0 0
cpu1 600 0 300 4500 5 0 10 10 0 0
intr 1 2 3
"""


@pytest.fixture
def proc(tmp_path, monkeypatch):
    """A /proc, a /sys/fs/cgroup and a CPU folder of our own."""
    for name in ("proc", "cgroup", "cpu"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(conditions, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(conditions, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(conditions, "_CPU", tmp_path / "cpu")
    monkeypatch.setattr(conditions, "_tick_seconds", lambda: 0.01)
    return tmp_path


def test_busy_and_stolen_time_of_our_cores(proc):
    """Sums user + nice + system + irq + softirq in ticks of 10 ms, on the cores asked for; steal apart."""
    (proc / "proc" / "stat").write_text(STAT)
    assert conditions._busy_and_stolen([0]) == pytest.approx((6.23, 0.2))  # 400 + 10 + 200 + 3 + 10 ticks; 20 ticks
    assert conditions._busy_and_stolen([0, 1]) == pytest.approx((15.33, 0.3))


def test_cores_that_the_systems_file_numbers_otherwise_are_not_told(proc):
    """In a container of LXC the file counts its cores from 0 (lxcfs), while sched_getaffinity(2) gives the machine's: 4 and 5, or 1 and 3.

    Busy time of 0 would say that nobody else was there, whatever the wait for a core.
    """
    (proc / "proc" / "stat").write_text(STAT)
    assert conditions._busy_and_stolen([4, 5]) == (None, None)
    assert conditions._busy_and_stolen([1, 3]) == (None, None)


def test_run_delay_is_the_second_field(proc):
    """schedstat: time on the core, time waiting for it, slices; in nanoseconds."""
    (proc / "proc" / "thread-self").mkdir()
    file = proc / "proc" / "thread-self" / "schedstat"
    file.write_text("318538745 3385392 20\n")
    assert conditions._run_delay(file) == pytest.approx(3.385392e-3)
    assert conditions._run_delay(proc / "none") is None


def test_the_run_delay_of_a_thread_that_has_ended_stays(proc):
    """In nanoseconds: 5 + 3; the second ends, so 6 + 3; a new one takes its number, so 6 + 3 + 1; it grows, so 7 + 3 + 2."""
    tasks = proc / "proc" / "self" / "task"

    def read(**delays):
        shutil.rmtree(tasks, ignore_errors=True)
        for name, delay in delays.items():
            (tasks / name[1:]).mkdir(parents=True)
            (tasks / name[1:] / "schedstat").write_text(f"70 {delay} 2\n")
        return delays_of.seconds()

    delays_of = conditions._RunDelays()
    assert delays_of.seconds() is None
    found = [read(t11=5, t12=3), read(t11=6), read(t11=6, t12=1), read(t11=7, t12=2)]
    assert found == pytest.approx([8e-9, 9e-9, 10e-9, 12e-9])


@pytest.mark.parametrize(
    ("membership", "file", "content", "seconds"),
    [
        ("0::/user/job\n", "user/job/cpu.stat", "usage_usec 9\nnr_throttled 3\nthrottled_usec 250000\n", 0.25),
        ("0::/\n", "cpu.stat", "throttled_usec 1000000\n", 1.0),
        (
            "4:cpu,cpuacct:/docker/abc\n",
            "cpu,cpuacct/docker/abc/cpu.stat",
            "nr_periods 1\nnr_throttled 1\nthrottled_time 2000000000\n",
            2.0,
        ),
        ("1:cpu:/job\n", "cpu/cpu.stat", "throttled_time 500000000\n", 0.5),  # of the group above
        ("2:memory:/job\n", "memory/cpu.stat", "throttled_time 500000000\n", None),
    ],
)
def test_throttled_time_of_both_cgroup_versions(proc, membership, file, content, seconds):
    """Version 2 counts microseconds, version 1 nanoseconds; the groups above count too; other controllers do not."""
    (proc / "proc" / "self").mkdir()
    (proc / "proc" / "self" / "cgroup").write_text(membership)
    path = proc / "cgroup" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    assert conditions._throttled_seconds() == (seconds if seconds is None else pytest.approx(seconds))


def test_clocks_and_heat(proc):
    """Frequencies are in kHz, the highest or the lowest of the cores; heat events are summed."""
    for core, khz, events in ((0, 3_000_000, 2), (1, 2_000_000, 5)):
        for folder, name, value in (("cpufreq", "scaling_cur_freq", khz), ("thermal_throttle", "core_throttle_count", events)):
            path = proc / "cpu" / f"cpu{core}" / folder
            path.mkdir(parents=True, exist_ok=True)
            (path / name).write_text(f"{value}\n")
    assert conditions._hertz(max, [0, 1], "cpufreq/scaling_cur_freq") == 3e9
    assert conditions._hertz(min, [0, 1], "cpufreq/scaling_cur_freq") == 2e9
    assert conditions._hertz(min, [0, 1], "cpufreq/base_frequency") is None
    assert conditions._sum_of([0, 1], "thermal_throttle/core_throttle_count") == 7


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ((4500, 800, 800, 800), (800, 4500, 800, 800), ""),  # one core at work: the mean of all, 1.725 GHz, lies under the base clock
        ((4500, 4400, 4500, 4300), (4500, 800, 800, 800), ""),  # others went to rest: the mean fell by 63 %
        ((4500, 800, 800, 800), (1500, 1400, 1500, 1400), "the cores' clock fell by 67 % to 1.50 GHz"),
        ((1500, 1400, 1500, 1400), (1500, 1400, 1500, 1400), "the cores' clock is 17 % under the maker's base clock"),
    ],
    ids=["one core at work", "others went to rest", "too hot since", "too hot all the time"],
)
def test_a_core_at_rest_is_no_core_that_is_too_hot(proc, monkeypatch, before, after, told):
    """Four cores of 1.8 GHz guaranteed, in MHz: a core with nothing to do shows the lowest clock it has (Linux, intel_pstate)."""
    monkeypatch.setattr(conditions.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    readings = []
    for clocks in (before, after):
        for core, mhz in enumerate(clocks):
            folder = proc / "cpu" / f"cpu{core}" / "cpufreq"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "scaling_cur_freq").write_text(f"{1000 * mhz}\n")
            (folder / "base_frequency").write_text("1800000\n")
        readings.append(conditions.read(Device("cpu")))
    notes = [str(note) for note in disturbance.from_readings(*readings) if note.code == "throttled"]
    assert [note.split(" while")[0].split(". ")[0] for note in notes] == ([f"throttled: {told}"] if told else [])


def test_machine_without_any_counter(proc):
    """Where nothing can be read every counter is None, and reading is no error."""
    readings = conditions.read(Device("cpu"))
    assert readings.run_delay_seconds is None
    assert readings.throttled_seconds is None
    assert readings.gpu is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
def test_counters_of_the_machine_at_hand_only_grow():
    """Two readings with work between them: no counter falls, and our own CPU time rises."""
    before = conditions.read(Device("cpu"))
    sum(range(300_000))
    after = conditions.read(Device("cpu"))
    assert after.own_cpu_seconds > before.own_cpu_seconds
    assert after.busy_seconds is not None
    for field in fields(before):
        start, end = getattr(before, field.name), getattr(after, field.name)
        if field.name not in ("gpu", "frequency_hertz", "base_frequency_hertz") and start is not None:
            assert end >= start, field.name


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's clock ticks")
def test_a_tick_is_the_systems(monkeypatch):
    """250 ticks a second are 4 ms each (sysconf(3), _SC_CLK_TCK)."""
    monkeypatch.setattr(conditions.os, "sysconf", {"SC_CLK_TCK": 250}.__getitem__)
    assert conditions._tick_seconds() == pytest.approx(0.004)


def test_where_there_is_no_proc_psutil_tells_what_all_processes_took(proc, monkeypatch):
    """User, system and, where the system has it, nice time; on Linux a missing file is a missing figure."""
    times = SimpleNamespace(user=1.0, system=2.0, nice=4.0)
    monkeypatch.setitem(sys.modules, "psutil", SimpleNamespace(cpu_times=lambda: times))
    monkeypatch.setattr(conditions.sys, "platform", "linux")
    assert conditions._busy_and_stolen([0]) == (None, None)
    monkeypatch.setattr(conditions.sys, "platform", "darwin")
    assert conditions._busy_and_stolen([0]) == (7.0, None)
    del times.nice
    assert conditions._busy_from_psutil() == 3.0
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert conditions._busy_from_psutil() is None


def test_a_gpus_counters_are_read_since_the_reading_before(proc, monkeypatch):
    """Of CUDA devices alone; the cores are those that the process may use, or all."""
    asked: list[object] = []
    monkeypatch.setattr(conditions.gpu_readings, "read", lambda device, since: asked.append((str(device), since)) or "now")
    first = conditions.read(Device("cuda", 1))
    assert (first.gpu, conditions.read(Device("cuda"), first).gpu, conditions.read(Device("mps"), first).gpu) == ("now", "now", None)
    assert asked == [("cuda:1", None), ("cuda:0", "now")]
    monkeypatch.setattr(conditions.os, "sched_getaffinity", lambda process: {4, 2}, raising=False)
    assert conditions.read(Device("cpu")).cores == 2
    monkeypatch.delattr(conditions.os, "sched_getaffinity")
    for count, cores in ((3, 3), (None, 1)):
        monkeypatch.setattr(conditions.os, "cpu_count", lambda count=count: count)
        assert conditions.read(Device("cpu")).cores == cores
