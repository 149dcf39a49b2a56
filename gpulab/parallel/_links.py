"""Links of a set bandwidth between the ranks of one machine, so that communication costs there what it costs on a network.

Each rank steps into a network namespace of its own, joined to a switch by a virtual cable (veth) whose two ends let no more than the set
rate pass (tbf, the kernel's token bucket). The process group talks through it; ipyparallel and the notebook do not. Linux, as root.

with gl.parallel.cluster(n=4) as ranks, gl.parallel.links(ranks, 50e6):
    gl.parallel.sweep(ranks, "all_reduce")
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

from gpulab import _given
from gpulab.errors import DeviceError, GpulabError, InputError, message_of, shown
from gpulab.parallel import _group, _links_step, _rank
from gpulab.parallel._cluster import Ranks
from gpulab.parallel._engines import Engines
from gpulab.units import format_bytes_per_second

_PREFIX = "gpulab"
_SUBNET = "198.18.0"  # for benchmarks of networks, never routed: RFC 2544
_MOST_RANKS = 200
_SLOWEST, _FASTEST = 1e4, 5e9  # bytes a second: below, a test message takes minutes; above, the kernel itself is the limit
# Frames as networks of clusters use them: TCP's and IP's headers are then 0.7 % of the rate in place of 4.
_MTU = 9000
# Two token buckets one behind the other. The first keeps what a sender that found no core could not use, for 10 ms: with one of 2 ms alone,
# four ranks on two busy cores lost 5 to 16 % of the rate. The second lets it be used up at 5 % above the rate only; at full speed passes
# what passes in 2 ms, but no less than what the kernel hands over at once: 64 KiB, and on slow links what passes in 1 ms.
_KEPT_SECONDS, _PEAK = 0.01, 1.05
_LEAST_BURST, _BURST_SECONDS = 2**15, 0.002
_LEAST_HANDED, _MOST_HANDED, _HANDED_SECONDS = 2 * _MTU, 2**16, 0.001
_QUEUE_BYTES = 2**24  # what waits in the bucket's queue; TCP keeps less on the way, so nothing is dropped
_COMMAND_SECONDS = 20.0
_limits: weakref.WeakKeyDictionary[Ranks, float] = weakref.WeakKeyDictionary()  # ranks that are inside links, and the bandwidth


def links_reason() -> str | None:
    """Return why this machine cannot have links of a set bandwidth, in one sentence; None if it can.

    The function tries it: it makes a network namespace and removes it.
    """
    if not sys.platform.startswith("linux"):
        return f"network namespaces exist only on Linux, and this is {sys.platform}"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} cannot be found; expected both (Debian and Ubuntu: the package iproute2)"
    if os.geteuid() != 0:
        return "making network namespaces needs root, and this process is not (in a container: also the capability SYS_ADMIN)"
    name = f"{_PREFIX}-{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
        try:
            _ip("-n", name, "link", "add", "one", "type", "veth", "peer", "name", "two")
            _tc(name, "one", 1e6)
        finally:
            _ip("netns", "del", name)
    except DeviceError as error:
        return message_of(error)
    return None


def link_limit(ranks: Ranks) -> float | None:
    """Return what the links of these ranks are limited to, in bytes a second; None where nothing limits them."""
    return _limits.get(ranks)


@contextlib.contextmanager
def links(ranks: Ranks, bandwidth_bytes_per_second: float) -> Iterator[Ranks]:
    """Let the ranks of a cluster on this machine communicate through links of a set bandwidth within the block.

    Parameters
    ----------
    ranks : Ranks
        A started cluster whose ranks are all on this machine. Its process group is made anew on entering and on leaving the block, so
        groups and models made before do not work inside it.
    bandwidth_bytes_per_second : float
        The bandwidth of each rank's link, in each direction, headers included; 1e4 to 5e9.

    Yields
    ------
    Ranks
        The same ones.

    Raises
    ------
    DeviceError
        If the machine does not allow it: not Linux, ``ip`` or ``tc`` missing, or not enough rights.
    InputError
        If the ranks are not on this machine or the bandwidth is out of range.
    RankError
        If the ranks could not be joined.

    Notes
    -----
    ``recover()`` inside the block attaches the ranks, also new ones, to their links again. The namespaces are always removed at the end of
    the block; if the process was killed, they are removed when links are next started.
    """
    _check(ranks, bandwidth_bytes_per_second)
    remove_stale()
    reason = links_reason()
    if reason is not None:
        raise DeviceError(f"links: {reason}; expected a Linux machine where this process may make such links. Use the links as they are.")
    names = [f"{_PREFIX}-{os.getpid()}-{rank}" for rank in range(ranks.n)]
    switch = f"{_PREFIX}-{os.getpid()}-switch"
    try:
        _build(names, switch, float(bandwidth_bytes_per_second))
        _open(ranks, functools.partial(_open_behind, ranks, names))
        _limits[ranks] = float(bandwidth_bytes_per_second)
        yield ranks
    finally:
        _limits.pop(ranks, None)
        try:
            _open(ranks, functools.partial(_open_at_home, ranks))
        finally:
            _remove([*names, switch])


def _check(ranks: Ranks, bandwidth: float) -> None:
    if not isinstance(ranks, Ranks) or not ranks.ready:
        raise InputError(f"links: ranks is {shown(ranks)}; expected a started cluster. Use `with gl.parallel.cluster(n=2) as ranks:`.")
    if len(set(ranks.hosts)) != 1 or ranks._profile is not None:
        raise InputError("links: these ranks belong to an ipyparallel profile; expected ranks that cluster(n=...) started here.")
    if ranks.n > _MOST_RANKS:
        raise InputError(f"links: {ranks.n} ranks; expected at most {_MOST_RANKS} on one machine. Start fewer.")
    if ranks in _limits:
        raise InputError("links: these ranks have links of a set bandwidth already; expected none. Leave the other block first.")
    if not _given.is_finite(bandwidth) or not _SLOWEST <= bandwidth <= _FASTEST:
        span = " to ".join(format_bytes_per_second(v) for v in (_SLOWEST, _FASTEST))
        raise InputError(f"links: bandwidth_bytes_per_second is {shown(bandwidth)}; expected {span}. Pass for example 50e6.")


def _build(names: list[str], switch: str, bandwidth: float) -> None:
    """Make a namespace a rank, a switch in one of its own, and cables between them."""
    handed = str(min(max(int(bandwidth * _HANDED_SECONDS), _LEAST_HANDED), _MOST_HANDED))
    _ip("netns", "add", switch)
    _ip("-n", switch, "link", "add", "switch", "mtu", str(_MTU), "type", "bridge")
    _ip("-n", switch, "link", "set", "switch", "up")
    for rank, name in enumerate(names):
        _ip("netns", "add", name)
        plug, cable = f"port{rank}", ["link", "add", "rank", "mtu", str(_MTU), "type", "veth", "peer", "name", f"port{rank}"]
        _ip("-n", name, *cable, "mtu", str(_MTU), "netns", switch)
        _ip("-n", switch, "link", "set", plug, "master", "switch", "up")
        _ip("-n", name, "addr", "add", f"{_address(rank)}/24", "dev", "rank")
        _ip("-n", name, "link", "set", "rank", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "link", "set", "rank", "gso_max_size", handed)
        _ip("-n", switch, "link", "set", plug, "gso_max_size", handed)
        _tc(name, "rank", bandwidth)  # what the rank sends
        _tc(switch, plug, bandwidth)  # what it receives


def _address(rank: int) -> str:
    return f"{_SUBNET}.{rank + 1}"


def _tc(namespace: str, interface: str, bandwidth: float) -> None:
    kept, burst = (min(max(int(bandwidth * seconds), _LEAST_BURST), _QUEUE_BYTES) for seconds in (_KEPT_SECONDS, _BURST_SECONDS))
    rates = ["rate", f"{round(8 * bandwidth)}bit", "burst", str(kept), "peakrate", f"{round(8 * _PEAK * bandwidth)}bit", "mtu", str(burst)]
    _run(["tc", "-n", namespace, "qdisc", "add", "dev", interface, "root", "tbf", *rates, "limit", str(_QUEUE_BYTES)])


def _open(ranks: Ranks, opener: Callable[[Engines], tuple[str, ...]]) -> None:
    """Make the process group anew by an opener, now and at each ``recover()``; ranks that died or hang are left to that."""
    ranks._opener = opener
    engines = ranks._engines
    if engines is None or engines.deaths():
        return
    with ranks._busy:
        ranks._broken = "their links were being changed"
        if _group.close(engines):
            ranks._open_group()


def _open_behind(ranks: Ranks, names: list[str], engines: Engines) -> tuple[str, ...]:
    """Bring each rank into its namespace, new engines too, and open the process group there; return the ranks' machines."""
    _group._gather(engines, [(_rank.set_threads, ranks._threads)] * ranks.n, "load torch")
    _group._gather(engines, [(_links_step.enter, name) for name in names], "enter their links")
    meeting = _address(0)
    port = _group._store(engines, meeting, 0)
    calls = [
        (_rank.open_group, place, meeting, port, _address(place.rank), ranks.timeout_seconds, "gloo")
        for place in _group._places(ranks.hosts)
    ]
    _group._gather(engines, calls, "open the process group")
    return ranks.hosts


def _open_at_home(ranks: Ranks, engines: Engines) -> tuple[str, ...]:
    """Bring each rank back, which a new engine is already, and open the process group as without links, from now on."""
    _group._gather(engines, [(_links_step.leave,)] * ranks.n, "leave their links")
    ranks._opener = None
    return ranks._open_plain(engines)


def remove_stale() -> None:
    """Remove the namespaces that a process left behind which is no more."""
    folder = Path("/run/netns")
    if not folder.is_dir() or shutil.which("ip") is None:
        return
    left = []
    for path in folder.glob(f"{_PREFIX}-*-*"):
        pid = path.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            left.append(path.name)
    _remove(left)


def _remove(names: list[str]) -> None:
    for name in names:
        if (Path("/run/netns") / name).exists():
            with contextlib.suppress(GpulabError):  # gone already, or to be found by the next start
                _ip("netns", "del", name)


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMMAND_SECONDS)
    except subprocess.CalledProcessError as error:
        raise DeviceError(f"`{' '.join(command)}` failed: {message_of(Exception(error.stderr))}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"`{' '.join(command)}` failed: {message_of(error)}") from error
