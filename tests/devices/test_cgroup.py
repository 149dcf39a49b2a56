"""Limits of containers, read from made-up trees of both cgroup versions."""

import pytest

from gpulab.devices import _cgroup


def _tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def test_version_2_takes_the_tightest_limit_of_all_levels(tmp_path):
    """A slice's limit binds the job below it even if the job itself has none."""
    root = _tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slurm/job1",
            "sys/fs/cgroup/slurm/memory.max": 8 * 2**30,
            "sys/fs/cgroup/slurm/memory.current": 3 * 2**30,
            "sys/fs/cgroup/slurm/memory.stat": f"anon 5\ninactive_file {2**30}",
            "sys/fs/cgroup/slurm/job1/memory.max": "max",
            "sys/fs/cgroup/slurm/job1/cpu.max": "150000 100000",
            "sys/fs/cgroup/cpu.max": "max 100000",
        },
    )
    assert _cgroup.memory_limit_bytes(root) == 8 * 2**30
    assert _cgroup.memory_free_bytes(root) == 6 * 2**30  # 8 granted, 3 used, of which 1 is file cache that comes back
    assert _cgroup.cpu_quota_cores(root) == 1.5


def test_version_1_reads_each_controller_under_its_own_path(tmp_path):
    """Memory and CPU may lie under different paths; the largest number stands for no limit."""
    root = _tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/docker/abc\n1:cpu,cpuacct:/docker/abc",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": 2**30,
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": 2**29,
            "sys/fs/cgroup/memory/docker/abc/memory.stat": "inactive_file 1\ntotal_inactive_file 0",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": 9223372036854771712,
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": 200000,
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": 100000,
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1,
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000,
        },
    )
    assert _cgroup.memory_limit_bytes(root) == 2**30
    assert _cgroup.memory_free_bytes(root) == 2**29
    assert _cgroup.cpu_quota_cores(root) == 2.0


def test_a_container_that_sees_its_own_group_as_root_is_read_there(tmp_path):
    """The path of /proc/self/cgroup may not exist below the mount: then the mount itself speaks."""
    root = _tree(
        tmp_path, {"proc/self/cgroup": "0::/not/visible/here", "sys/fs/cgroup/memory.max": 2**30, "sys/fs/cgroup/cpu.max": "50000 100000"}
    )
    assert _cgroup.memory_limit_bytes(root) == 2**30
    assert _cgroup.cpu_quota_cores(root) == 0.5


@pytest.mark.parametrize("text", ["", "0::/", "nonsense", "0::/../../etc", "::::"])
def test_no_limit_and_no_files_mean_none(tmp_path, text):
    """Empty, odd and hostile listings give no limit and no exception."""
    root = _tree(tmp_path, {"proc/self/cgroup": text, "sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/cpu.max": "odd"})
    assert _cgroup.memory_limit_bytes(root) is None
    assert _cgroup.memory_free_bytes(root) is None
    assert _cgroup.cpu_quota_cores(root) is None


@pytest.mark.parametrize(
    ("limit", "used", "cache", "free"),
    [
        (2**60 - 1, 2**59, 0, 2**60 - 1 - 2**59), (2**60, 5, 0, None), (9223372036854771712, 5, 0, None),  # as large stands for none
        (1, 0, 0, 1), (0, 5, 0, None), (100, 150, 20, 0), (100, 30, 50, 100), (100, "odd", 20, 100),
    ],
)  # fmt: skip
def test_what_a_limit_leaves(tmp_path, limit, used, cache, free):
    """Never less than nothing, nor more than all of it; what cannot be read is not used."""
    files = {"memory.max": limit, "memory.current": used, "memory.stat": f"inactive_file {cache}\nodd"}
    root = _tree(tmp_path, {"proc/self/cgroup": "0::/", **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}})
    assert (_cgroup.memory_free_bytes(root), _cgroup.memory_limit_bytes(root)) == (free, None if free is None else limit)


def test_a_cpu_quota_needs_two_numbers(tmp_path):
    """A quota without a period, or three words, is none; the smallest of all levels binds."""
    root = _tree(
        tmp_path, {"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "300000 100000", "sys/fs/cgroup/a/b/cpu.max": "7 7 7"}
    )
    assert _cgroup.cpu_quota_cores(root) == 3.0
    _tree(root, {"sys/fs/cgroup/a/b/cpu.max": "250000 100000", "sys/fs/cgroup/cpu.max": "900000"})
    assert _cgroup.cpu_quota_cores(root) == 2.5
