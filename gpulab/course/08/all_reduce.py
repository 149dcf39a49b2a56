"""08.3: an all-reduce of your own."""

# %% exercise
id = "08.3"
title = "an all-reduce of your own"
answer_name = "all_reduce"
live = True
limit_seconds = 120.0
loads = ["torch", "ipyparallel"]

# %% stub
def all_reduce(x, rank, n):
    """Return the sum of x over all n ranks, on every rank, by send and receive alone."""
    ...

# %% hint
# Cut x into n parts (tensor_split allows different sizes). In each step every rank sends one part
# to rank + 1 and receives another from rank - 1. In the first n - 1 steps it adds what it receives
# to its own part; in the last n - 1 steps it replaces its own part.

# %% hint
# In step s, rank r sends part (r - s) % n and receives part (r - s - 1) % n. After n - 1 steps each
# rank has the complete sum of one part. The other n - 1 steps pass these sums around.

# %% hint
# dist.send waits until the other rank receives. Start with sending = dist.isend(part, right), then
# call dist.recv(buffer, left), then sending.wait().

# %% solution
import torch
import torch.distributed as dist


def all_reduce(x, rank, n):
    """Return the sum of x over all n ranks, on every rank, by send and receive alone."""
    parts = [part.clone() for part in x.tensor_split(n)]
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(2 * (n - 1)):
        k = (rank - step) % n  # the part to send; part k - 1 comes in
        incoming = torch.empty_like(parts[k - 1])
        sending = dist.isend(parts[k], right)
        dist.recv(incoming, left)
        sending.wait()
        parts[k - 1] = parts[k - 1] + incoming if step < n - 1 else incoming
    return torch.cat(parts)

# %% check
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any
from gpulab import parallel
from gpulab.errors import CollectiveTimeoutError, GpulabError, RankDiedError, with_article
from gpulab.lessons import checking, parallel_checks
from gpulab.lessons.content import Refused

RANKS = 4
_WIDE, _NARROW = "float64", "float32"
# (ranks that take part, numbers on each rank, dtype). No size is a multiple of its ranks (10,007 is a prime), so the parts differ in size.
# The last case has another dtype, to check that the function follows the dtype of x.
_CASES = ((4, 10_007, _WIDE), (4, 6, _WIDE), (3, 1_000, _WIDE), (2, 7, _WIDE), (2, 7, _NARROW))
_BYTES = {_WIDE: 8, _NARROW: 4}
_LIMIT_SECONDS = 60.0  # for the whole call; the cluster's own timeout limits how long a message waits
_MESSAGES = ("send", "recv", "send and recv")


def probe(function: Callable[..., Any], cases: Sequence[tuple[int, int, str]]) -> list[dict[str, Any]]:
    """Run on each rank: call the learner's function for each case and compare its result with that of ``dist.all_reduce``."""
    import torch
    import torch.distributed as dist

    rank, found = dist.get_rank(), []
    for n, size, dtype in cases:
        group = dist.new_group(list(range(n)))  # every rank must make the group; the first n take part
        if rank >= n:
            continue
        generator = torch.Generator().manual_seed(100 * size + rank)
        whole = torch.randint(-1000, 1000, (size,), generator=generator)  # whole numbers, so every order of addition gives the same sum
        mine = whole.to(getattr(torch, dtype))
        expected, given = mine.clone(), mine.clone()
        dist.all_reduce(expected, group=group)
        with parallel.observe() as seen:
            result = function(given, rank, n)
        is_tensor = isinstance(result, torch.Tensor)
        values = result.detach().double() if is_tensor and result.shape == mine.shape else None
        found.append({
            "rank": rank, "n": n, "size": size,
            "sent": sum(call.input_bytes for call in seen.calls if call.name == "send"),
            "collectives": [call.name for call in seen.calls if call.name not in _MESSAGES],
            "kind": type(result).__name__, "shape": tuple(result.shape) if is_tensor else (),
            "equal": values is not None and torch.equal(values, expected.double()),
            "own": values is not None and torch.equal(values, mine.double()), "dtype": dtype,
            "mean": values is not None and torch.allclose(n * values, expected.double()),
            "returned": str(result.dtype).removeprefix("torch.") if is_tensor else "",
        })  # fmt: skip
        # A function that calls collectives ends here, in the first case, in which all ranks take part. In a later case its collective
        # would wait for a rank outside the group.
        if found[-1]["collectives"]:
            return found
        dist.barrier(group=group)
    return found


def check(answer: Any) -> str:
    _screen(answer)
    with parallel_checks.ranks_of(RANKS) as ranks:
        try:
            reports = ranks.run(probe, answer, _CASES, timeout_seconds=_LIMIT_SECONDS)
        except CollectiveTimeoutError as error:
            ranks.recover()
            raise Refused(
                "Your ranks wait for each other. `send` returns only when the other rank receives: if all send first, "
                "none of them receives. Start the send with `isend`, receive, and then wait for the send. If it does that already: does each rank "
                "receive what is sent to it? The neighbors follow from `rank` and `n`, also on 3 and on 2 of the ranks."
            ) from error
        except RankDiedError as error:
            ranks.recover()
            raise Refused(
                f"{error} A message larger than its buffer ends the process: sender and receiver must agree on the part, "
                "and the buffer needs the dtype of x (torch.empty_like)."
            ) from error
        except GpulabError as error:
            ranks.recover()
            raise Refused(f"Your function failed on the ranks: {error}") from error
    for case in _CASES:
        _judge(*case, [each for report in reports for each in report if (each["n"], each["size"], each["dtype"]) == case])
    return f"The same sums as dist.all_reduce on 2, 3 and 4 ranks. No rank sends more than in a ring: with {RANKS} ranks about 1.5 times the data."


def _screen(answer: Any) -> None:
    """Refuse what shows without a cluster: with n = 1 the sum is x itself, and nothing has to be sent."""
    if not callable(answer):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a function of x, rank and n.")
    try:
        inspect.signature(answer).bind(None, 0, 1)
    except (TypeError, ValueError) as error:
        raise Refused("Your function cannot be called as all_reduce(x, rank, n); it takes these three.") from error
    import torch

    try:
        result = checking.call(answer, torch.arange(5.0), 0, 1)
    except Refused as refusal:
        if "process group" in str(refusal):  # it sends even with n = 1, which needs a process group: the ranks check the rest
            return
        raise
    if not isinstance(result, torch.Tensor):
        raise Refused(f"With one rank alone your function returned {checking.describe(result)}; the check expects a tensor: the sum.")


def _judge(n: int, size: int, dtype: str, reports: Sequence[dict[str, Any]]) -> None:
    where = f"{size:,} numbers of {dtype} on {n} ranks" if dtype == _NARROW else f"{size:,} numbers on {n} ranks"
    for each in reports:
        if each["collectives"]:
            raise Refused(f"Your function calls {each['collectives'][0]}. Use only send and receive (dist.isend, dist.recv).")
        if not each["shape"]:
            one = each["kind"] == "Tensor"  # a tensor without dimensions, as x.sum() returns
            got = "a tensor of one number" if one else with_article(each["kind"])
            why = " The sum goes over the ranks, element by element, so it has the shape of x." if one else ""
            raise Refused(f"{where}: rank {each['rank']} got {got}; the check expects a tensor with the sums, on every rank.{why}")
        if each["shape"] != (size,):
            raise Refused(
                f"{where}: rank {each['rank']} returned the shape {each['shape']}; the check expects ({size},). "
                f"{n} does not divide {size}, so the parts have different sizes: are they put together again in order?"
            )
    wrong = [each["rank"] for each in reports if not each["equal"]]
    if wrong:
        if dtype == _NARROW:  # the same case in float64 was right
            why = "With float64 they were right: do your buffers take the dtype of x, as those of torch.empty_like do?"
        elif all(each["own"] for each in reports):
            why = "Each rank returns its own x still."
        elif all(each["mean"] for each in reports):
            why = "That is the mean over the ranks. Return the sum."
        elif len(wrong) < n:
            why = "The sum has to reach every rank: after the sums are complete, each part goes around once more."
        else:
            why = "Which part does a rank send in a step? Which part does it receive, and is that to be added, or is it already the result?"
        raise Refused(f"{where}: on rank{'s' if len(wrong) > 1 else ''} {', '.join(map(str, wrong))} the sums are wrong. {why}")
    other = next((each["returned"] for each in reports if each["returned"] != dtype), dtype)
    if other != dtype:
        raise Refused(
            f"{where}: the sums are right, but they come back as {other}, and x is {dtype}. Larger numbers would lose digits on the way. Keep the dtype of x."
        )
    data = size * _BYTES[dtype]
    most = 2 * (n - 1) * math.ceil(size / n) * _BYTES[dtype]  # both rounds of a ring, with the largest part
    greedy = max(reports, key=lambda each: each["sent"])
    if greedy["sent"] > most:
        raise Refused(
            f"{where}: the sums are right, but rank {greedy['rank']} sends {greedy['sent']:,} bytes, "
            f"{greedy['sent'] / data:.2f} times the data. In a ring no rank sends more than {most:,}: one part in each step."
        )

# %% wrong: times the data
import torch
import torch.distributed as dist


def all_reduce(x, rank, n):
    """Return the sum of x over all n ranks, on every rank, by send and receive alone."""
    total = x.clone()
    sends = [dist.isend(x, k) for k in range(n) if k != rank]
    for k in range(n):
        if k != rank:
            other = torch.empty_like(x)
            dist.recv(other, k)
            total += other
    for send in sends:
        send.wait()
    return total

# %% wrong: has to reach every rank
import torch
import torch.distributed as dist


def all_reduce(x, rank, n):
    """Return the sum of x over all n ranks, on every rank, by send and receive alone."""
    total = x.clone()
    if rank > 0:
        dist.send(x, 0)
    else:
        for k in range(1, n):
            other = torch.empty_like(x)
            dist.recv(other, k)
            total += other
    return total

# %% wrong: calls all_reduce
import torch
import torch.distributed as dist


def all_reduce(x, rank, n):
    """Return the sum of x over all n ranks, on every rank, by send and receive alone."""
    if n > 1:
        dist.all_reduce(x)
    return x

# %% wrong: its own x still
import torch
import torch.distributed as dist


def all_reduce(x, rank, n):
    """Return the sum of x over all n ranks, on every rank, by send and receive alone."""
    return x

# %% wrong: already the result
import torch
import torch.distributed as dist


def all_reduce(x, rank, n):
    """Return the sum of x over all n ranks, on every rank, by send and receive alone."""
    parts = [part.clone() for part in x.tensor_split(n)]
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(2 * (n - 1)):
        k = (rank - step) % n  # the part to send; part k - 1 comes in
        incoming = torch.empty_like(parts[k - 1])
        sending = dist.isend(parts[k], right)
        dist.recv(incoming, left)
        sending.wait()
        parts[k - 1] = parts[k - 1] + incoming if step < n else incoming
    return torch.cat(parts)

# %% wrong: if all send first
import torch
import torch.distributed as dist


def all_reduce(x, rank, n):
    """Return the sum of x over all n ranks, on every rank, by send and receive alone."""
    parts = [part.clone() for part in x.tensor_split(n)]
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(2 * (n - 1)):
        k = (rank - step) % n  # the part to send; part k - 1 comes in
        incoming = torch.empty_like(parts[k - 1])
        dist.send(parts[k], right)
        dist.recv(incoming, left)
        parts[k - 1] = parts[k - 1] + incoming if step < n - 1 else incoming
    return torch.cat(parts)

# %% wrong: do your buffers take the dtype of x
import torch
import torch.distributed as dist


def all_reduce(x, rank, n):
    """Return the sum of x over all n ranks, on every rank, by send and receive alone."""
    parts = [part.clone() for part in x.tensor_split(n)]
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(2 * (n - 1)):
        k = (rank - step) % n  # the part to send; part k - 1 comes in
        incoming = torch.empty(parts[k - 1].shape, dtype=torch.float64)
        sending = dist.isend(parts[k], right)
        dist.recv(incoming, left)
        sending.wait()
        parts[k - 1] = parts[k - 1] + incoming if step < n - 1 else incoming
    return torch.cat(parts)

# %% wrong: takes these three
import torch
import torch.distributed as dist


def all_reduce(x):
    return x

# %% wrong: expects a function
all_reduce = 'sum'

# %% wrong: they come back as float32
import torch
import torch.distributed as dist


def all_reduce(x, rank, n):
    """Return the sum of x over all n ranks, on every rank, by send and receive alone."""
    parts = [part.float() for part in x.tensor_split(n)]
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(2 * (n - 1)):
        k = (rank - step) % n
        incoming = torch.empty_like(parts[k - 1])
        sending = dist.isend(parts[k], right)
        dist.recv(incoming, left)
        sending.wait()
        parts[k - 1] = parts[k - 1] + incoming if step < n - 1 else incoming
    return torch.cat(parts)


# %% wrong: the mean over the ranks
import torch
import torch.distributed as dist


def all_reduce(x, rank, n):
    """Return the sum of x over all n ranks, on every rank, by send and receive alone."""
    parts = [part.clone() for part in x.tensor_split(n)]
    right, left = (rank + 1) % n, (rank - 1) % n
    for step in range(2 * (n - 1)):
        k = (rank - step) % n  # the part to send; part k - 1 comes in
        incoming = torch.empty_like(parts[k - 1])
        sending = dist.isend(parts[k], right)
        dist.recv(incoming, left)
        sending.wait()
        parts[k - 1] = parts[k - 1] + incoming if step < n - 1 else incoming
    return torch.cat(parts) / n
