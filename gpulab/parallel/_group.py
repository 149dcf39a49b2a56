"""The process group among engines: which engine is which rank, where they meet, and whether their
libraries agree.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from typing import Any

from gpulab.errors import InputError, RankError, message_of
from gpulab.parallel import _rank
from gpulab.parallel._engines import Engines
from gpulab.parallel._failures import named

_OPEN_SECONDS = 60.0
_CLOSE_SECONDS = 3.0
_POLL_SECONDS = 0.05
_LIBRARIES = ("torch", "ipyparallel", "gpulab", "cloudpickle")
# An expression, since a function could not be found by an engine without gpulab; nothing heavy is
# imported. A library that runs from its source, as on a machine where nothing was installed, has no
# metadata; then the module itself is asked.
_FACTS = (
    "(lambda sys, socket, find, seek: {'python': '%d.%d' % sys.version_info[:2], 'host': "
    "socket.gethostname(), 'versions': "
    "{name: next((d.version for d in find(name=name)), 'none' if seek(name) is None else "
    "__import__(name).__version__) "
    f"for name in {_LIBRARIES!r}}}}})"
    "(__import__('sys'), __import__('socket'), "
    "__import__('importlib.metadata').metadata.distributions, "
    "__import__('importlib.util').util.find_spec)"
)


def open_on(
    engines: Engines, timeout_seconds: float, threads: int, backend: str | None, port: int
) -> tuple[str, ...]:
    """Give the engines ranks in their order, and open a process group among them; return each
    rank's machine.

    Raises
    ------
    RankError
        If the engines' libraries differ, or if the group cannot be formed.
    InputError
        If the port is in use.
    """
    n = len(engines.ids)
    facts = _gather(engines, [(eval, _FACTS)] * n, "report their versions")
    check_versions(facts)
    hosts = tuple(found["host"] for found in facts)
    _gather(engines, [(_rank.set_threads, threads)] * n, "load torch")
    gpus = _gather(engines, [(_rank.gpus,)] * n, "count their GPUs")
    places = _places(hosts)
    backend = choose_backend(
        backend, [count - place.local_world_size for count, place in zip(gpus, places, strict=True)]
    )
    towards = "127.0.0.1" if len(set(hosts)) == 1 else str(engines.address)
    (meeting,) = _gather(engines, [(_rank.address_towards, towards)], "find their address")
    port = _store(engines, meeting, port)
    others = _gather(engines, [(_rank.address_towards, meeting)] * n, "find their address")
    others[0] = meeting
    _gather(
        engines,
        [
            (_rank.open_group, place, meeting, port, own, timeout_seconds, backend)
            for place, own in zip(places, others, strict=True)
        ],
        "open the process group",
    )
    return hosts


def close(engines: Engines) -> bool:
    """Let every rank leave the process group; return whether all did, which those who hang do
    not.
    """
    jobs = [engines.client[engine].apply_async(_rank.close_group) for engine in engines.ids]
    end = time.monotonic() + _CLOSE_SECONDS
    while not all(job.done() for job in jobs):
        if time.monotonic() > end or engines.deaths():
            return False
        time.sleep(_POLL_SECONDS)
    return all(job.successful() for job in jobs)


def check_versions(facts: list[dict[str, Any]]) -> None:
    """Refuse engines that cannot work together.

    Raises
    ------
    RankError
        Naming the first library that differs or is missing, and which ranks have what.
    """
    for library in ("python", *_LIBRARIES):
        ranks = defaultdict(list)
        for rank, found in enumerate(facts):
            version = (
                found["python"] if library == "python" else found["versions"].get(library, "none")
            )
            ranks[re.sub(r"\+.*", "", version)].append(rank)
        if len(ranks) > 1 or (library in {"torch", "gpulab"} and "none" in ranks):
            who = ", ".join(f"{version} on {named(those)}" for version, those in ranks.items())
            raise RankError(
                f"cluster: the engines have different versions of {library} ({who}); expected the "
                "same everywhere. "
                "Start them all from one environment."
                if len(ranks) > 1
                else f"cluster: the engines have no {library}; expected it to be installed. "
                "Install gpulab where they run."
            )


def choose_backend(asked: str | None, spare_gpus: list[int]) -> str:
    """Return the backend: what was asked for, else NCCL beside gloo where each rank can have a GPU
    of its own, else gloo.

    Parameters
    ----------
    asked : str or None
    spare_gpus : list of int
        For each rank, the GPUs of its machine less the ranks there: below 0 where there is not one
        for each.

    Raises
    ------
    InputError
        If NCCL was asked for and a rank would have no GPU of its own, which NCCL refuses.
    """
    poor = [rank for rank, spare in enumerate(spare_gpus) if spare < 0]
    if asked is None:
        return "gloo" if poor else "cpu:gloo,cuda:nccl"
    if "nccl" in asked and poor:
        raise InputError(
            f"cluster: backend {asked!r} needs a GPU for each rank, and there are none left for "
            f"{named(poor)}; expected one for each. "
            "Pass backend='gloo', or leave it out."
        )
    return asked


def _store(engines: Engines, address: str, port: int) -> int:
    """Have rank 0 open the store at which the ranks meet."""
    try:
        (port,) = _gather(engines, [(_rank.open_store, address, port)], "open the port")
    except RankError as error:
        if re.search(
            r"EADDRINUSE|address already in use|in use", str(error.__cause__), re.IGNORECASE
        ):
            raise InputError(
                f"cluster: port {port} is in use on rank 0's machine; expected a free one. Pass "
                "another, or leave port out."
            ) from error
        raise
    return int(port)


def _places(hosts: tuple[str, ...]) -> list[_rank.Place]:
    """Return each rank's place, from the machines in rank order."""
    seen: dict[str, int] = defaultdict(int)
    places = []
    for rank, host in enumerate(hosts):
        places.append(_rank.Place(rank, len(hosts), seen[host], hosts.count(host)))
        seen[host] += 1
    return places


def _gather(engines: Engines, calls: list[tuple[Any, ...]], doing: str) -> list[Any]:
    """Call one thing on each of the first engines, at once; return the results.

    Raises
    ------
    RankError
        If an engine raises, dies, or does not answer.
    """
    jobs = [
        engines.client[engine].apply_async(*call)
        for engine, call in zip(engines.ids, calls, strict=False)
    ]
    end = time.monotonic() + _OPEN_SECONDS
    while not all(job.done() for job in jobs):
        deaths = engines.deaths()
        late = [rank for rank, job in enumerate(jobs) if not job.done()]
        if deaths or time.monotonic() > end:
            what = (
                "; ".join(f"rank {rank} {how}" for rank, how in deaths.items())
                or f"{named(late)} did not answer in {_OPEN_SECONDS:.0f} s"
            )
            raise RankError(
                f"cluster: {what} when the ranks had to {doing}; expected every rank to answer. "
                "Start the cluster again.",
                tuple(deaths or late),
            )
        time.sleep(_POLL_SECONDS)
    results = []
    for rank, job in enumerate(jobs):
        try:
            results.append(job.get(1.0))
        except Exception as error:
            raise RankError(
                f"cluster: rank {rank} could not {doing} ({message_of(error)}); expected it to. "
                "Check that its machine reaches the others, "
                "and that gpulab is installed there.",
                (rank,),
            ) from error
    return results
