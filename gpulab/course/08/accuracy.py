"""08.16: take it home: accuracy over all ranks."""

# %% exercise
id = "08.16"
title = "take it home: accuracy over all ranks"
answer_name = "accuracy"
live = True
limit_seconds = 150.0
loads = ["torch", "ipyparallel"]

# %% stub
def accuracy(model, batches):
    """Return the share of right answers over the batches of all ranks, on every rank."""
    ...

# %% hint
# Count twice on each rank: the right answers and all answers. Which of the two counts, or which
# ratio, may be added over the ranks?

# %% hint
# A rank may have more batches than another, or none. So no collective may stand inside the loop:
# count first, then exchange once, then divide.

# %% hint
# counts = torch.zeros(2) holds both counts; one dist.all_reduce(counts) adds them over the ranks.
# Around the loop: model.eval(), torch.no_grad(), and at the end the mode that the model had.

# %% solution
import torch
import torch.distributed as dist


def accuracy(model, batches):
    """Return the share of right answers over the batches of all ranks, on every rank."""
    was_training = model.training
    model.eval()
    # right answers, all answers; NCCL exchanges only tensors on a GPU
    counts = torch.zeros(2, dtype=torch.float64, device=next(model.parameters()).device)
    with torch.no_grad():
        for inputs, labels in batches:
            counts[0] += (model(inputs).argmax(1) == labels).sum()
            counts[1] += len(labels)
    model.train(was_training)
    dist.all_reduce(counts)  # once, whatever the number of batches
    return (counts[0] / counts[1]).item()

# %% check
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any
from gpulab import parallel
from gpulab.errors import CollectiveTimeoutError, GpulabError, RankDiedError
from gpulab.lessons import checking, parallel_checks
from gpulab.lessons.content import Refused

RANKS = 4
_LIMIT_SECONDS = 60.0  # for one call on the ranks; the cluster's own timeout limits each collective
_MOST_BYTES = 4096  # for all collectives of a call on one rank: far more than counts need, too few for predictions
# For each case, the sizes of each rank's batches. Alike: every rank has one batch, then three. Uneven: the ranks have different numbers of
# batches, and in the second case a rank has none.
_ALIKE = (((8,),) * RANKS, ((8, 8, 8),) * RANKS)
_UNEVEN = (((40, 40, 40), (16,), (2048, 3), (5, 1)), ((32, 32), (4,), (9, 9, 2), ()))


def data(case: int, rank: int, sizes: Sequence[int]) -> list[Any]:
    """Return a rank's batches, with labels such that the model's accuracy differs from rank to rank."""
    import torch

    generator = torch.Generator().manual_seed(1000 * case + rank)
    batches = []
    for size in sizes:
        inputs = torch.randn(size, 3, generator=generator)
        other = torch.rand(size, generator=generator) < (0.1, 0.8, 0.35, 0.6)[rank]
        batches.append((inputs, (inputs.argmax(1) + other.long()) % 3))
    return batches


def watched(training: bool) -> Any:
    """Return a model, in training mode or not, whose outputs equal its inputs; it records how it is called."""
    import torch

    class Watched(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))
            self.seen: list[tuple[bool, bool]] = []  # (in training mode, with a graph) of each call

        def forward(self, inputs: Any) -> Any:
            out = inputs * self.weight
            self.seen.append((self.training, out.requires_grad))
            return out

    return Watched().train(training)


def probe(function: Callable[..., Any], first: int, cases: Sequence[Sequence[Sequence[int]]]) -> list[dict[str, Any]]:
    """Run on each rank: call the learner's function for each case and note what it returned, sent, and did to the model."""
    import torch.distributed as dist

    rank, found = dist.get_rank(), []
    for number, sizes in enumerate(cases, first):
        in_training = number < len(_ALIKE) + 1  # in the last case the model comes in evaluation mode
        model = watched(in_training)
        right = [sum(int((x.argmax(1) == y).sum()) for x, y in data(number, r, each)) for r, each in enumerate(sizes)]
        with parallel.observe() as seen:
            result = function(model, data(number, rank, sizes[rank]))
        try:
            value = float(result)
        except Exception:  # whatever the learner returned
            value = math.nan
        found.append({
            "rank": rank, "value": value, "kind": type(result).__name__, "calls": len(seen.calls),
            "sent": sum(call.payload_bytes for call in seen.calls), "right": right, "sizes": [sum(each) for each in sizes],
            "training": any(training for training, _ in model.seen), "graph": any(graph for _, graph in model.seen),
            "used": len(model.seen), "mode": in_training, "left": model.training,
        })  # fmt: skip
        dist.barrier()
    return found


def check(answer: Any) -> str:
    _screen(answer)
    with parallel_checks.ranks_of(RANKS) as ranks:
        one, three = zip(*_reports(ranks, answer, 0, _ALIKE), strict=True)
        _judge(one, "each rank has one batch of 8")
        if any(b["calls"] > a["calls"] for a, b in zip(one, three, strict=True)):
            raise Refused(
                "Your function calls a collective for each batch. Ranks rarely have equally many batches; with one more on one rank, that "
                "rank waits for the others without end. Count in the loop, and exchange once after it."
            )
        _judge(three, "each rank has three batches of 8")
        many, none = zip(*_reports(ranks, answer, len(_ALIKE), _UNEVEN), strict=True)
        _judge(many, "the ranks have 120, 16, 2,051 and 6 items")
        _judge(none, "the ranks have 64, 4, 20 and no items")
    return f"The same share on all {RANKS} ranks, also with unequal numbers of batches and with a rank that has none; {_plain(one)}."


def _plain(reports: Sequence[dict[str, Any]]) -> str:
    calls, sent = reports[0]["calls"], reports[0]["sent"]
    return f"{calls} collective{'s' if calls > 1 else ''} of {sent} bytes in all, whatever the number of batches"


def _reports(ranks: Any, answer: Any, first: int, cases: Any) -> list[list[dict[str, Any]]]:
    uneven = cases is _UNEVEN
    try:
        reports: list[list[dict[str, Any]]] = ranks.run(probe, answer, first, cases, timeout_seconds=_LIMIT_SECONDS)
    except CollectiveTimeoutError as error:
        ranks.recover()
        more = " The ranks have unequal numbers of batches here." if uneven else ""
        raise Refused(f"Some ranks enter a collective that another one does not.{more} {_what(error)}.") from error
    except RankDiedError as error:
        ranks.recover()
        raise Refused(f"A collective needs tensors of one size and one dtype on all ranks. {_what(error)}.") from error
    except GpulabError as error:
        ranks.recover()
        more = " In this case a rank has no batches: divide only after the counts of all ranks are added." if uneven else ""
        raise Refused(f"Your function failed on the ranks. {_what(error)}.{more}") from error
    return reports


def _what(error: GpulabError) -> str:
    """Return the first part of the error's text. The advice after it is left out, because the ranks have recovered already."""
    return str(error).removeprefix("run: ").partition(";")[0].replace("rank", "Rank", 1)


def _screen(answer: Any) -> None:
    """Refuse what shows without a cluster. An error about the missing process group is ignored: only the ranks have one."""
    if checking.is_stub(answer):
        checking.call(answer)
    if not callable(answer):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a function of a model and batches.")
    try:
        inspect.signature(answer).bind(None, [])
    except (TypeError, ValueError) as error:
        raise Refused("Your function cannot be called as accuracy(model, batches); it takes these two.") from error
    model = watched(True)
    try:
        checking.call(answer, model, data(0, 0, (8,)))
    except Refused as refusal:
        if "process group" not in str(refusal):
            raise
    if not model.seen:
        raise Refused("Your function never calls the model.")


def _judge(reports: Sequence[dict[str, Any]], where: str) -> None:
    first = reports[0]
    right, total = sum(first["right"]), sum(first["sizes"])
    expected = right / total
    shares = [r / n for r, n in zip(first["right"], first["sizes"], strict=True) if n]
    for each in reports:
        if not math.isfinite(each["value"]):
            got = "nothing" if each["kind"] == "NoneType" else f"a value of the type {each['kind']} that is not a number"
            raise Refused(f"When {where}, rank {each['rank']} returns {got}; the check expects the share, on every rank.")
    off = next((each for each in reports if abs(each["value"] - expected) > 1e-5), None)
    if off:
        said = f"When {where}, rank {off['rank']} returns {off['value']:.4f}; the check expects {expected:.4f}."
        if any(abs(each["value"] - expected) <= 1e-5 for each in reports):
            raise Refused(
                f"{said} Other ranks have the right share. `dist.reduce` gives the sums to one rank only; `dist.all_reduce` gives them to all."
            )
        raise Refused(f"{said} {_why(reports, shares)}")
    if any(each["training"] for each in reports):
        raise Refused("The model is in training mode while you count: dropout would drop, and batch norm would use the batch. Call model.eval().")
    if any(each["graph"] for each in reports):
        raise Refused("Each forward pass keeps a graph for a backward pass that never comes. Put the loop under torch.no_grad().")
    if any(each["used"] and each["mode"] and not each["left"] for each in reports):
        raise Refused("The model was in training mode before your function and is not after it: the next training step would go wrong.")
    if any(each["used"] and each["left"] and not each["mode"] for each in reports):
        raise Refused(
            "The model was in evaluation mode before your function and is in training mode after it. Note model.training at the beginning, "
            "and at the end go back to that mode."
        )
    greedy = max(reports, key=lambda each: each["sent"])
    if greedy["sent"] > _MOST_BYTES:
        raise Refused(f"The share is right, but rank {greedy['rank']} exchanges {greedy['sent']:,} bytes. Two numbers are enough.")


def _why(reports: Sequence[dict[str, Any]], shares: Sequence[float]) -> str:
    values = [each["value"] for each in reports]
    right, sizes = reports[0]["right"], reports[0]["sizes"]
    own = [r / n if n else math.nan for r, n in zip(right, sizes, strict=True)]
    if all(abs(v - o) < 1e-5 for v, o in zip(values, own, strict=True) if math.isfinite(o)):
        return "That is the share of its own batches. The counts of the other ranks are missing."
    means = (sum(shares) / len(shares), sum(shares) / len(reports))
    if any(abs(values[0] - mean) < 1e-5 for mean in means):
        return "That is the mean of the ranks' shares, in which an item on a rank with few counts for more. Add counts, then divide."
    if abs(values[0] - sum(shares)) < 1e-5 or abs(values[0] - sum(right) / sizes[0]) < 1e-5:
        return "Only one count, or a ratio, is added over the ranks. Add both counts, the right answers and all answers, then divide."
    if abs(values[0] - 100 * sum(right) / sum(sizes)) < 1e-3:
        return "That is in percent. Return the share, a number from 0 to 1."
    if abs(values[0] - 1 + sum(right) / sum(sizes)) < 1e-5:
        return "That is the share of wrong answers."
    if max(values) - min(values) > 1e-5:
        return "The ranks return different shares. After the exchange each of them must have the same counts."
    return "Which answers does each rank count, and what is added over the ranks?"

# %% wrong: mean of the ranks' shares
import torch
import torch.distributed as dist


def accuracy(model, batches):
    """Return the share of right answers over the batches of all ranks, on every rank."""
    right = total = 0
    model.eval()
    with torch.no_grad():
        for inputs, labels in batches:
            right += (model(inputs).argmax(1) == labels).sum().item()
            total += len(labels)
    model.train()
    share = torch.tensor(right / max(total, 1))
    dist.all_reduce(share)
    return share.item() / dist.get_world_size()

# %% wrong: for each batch
import torch
import torch.distributed as dist


def accuracy(model, batches):
    """Return the share of right answers over the batches of all ranks, on every rank."""
    right = total = 0
    model.eval()
    with torch.no_grad():
        for inputs, labels in batches:
            counts = torch.tensor([(model(inputs).argmax(1) == labels).sum(), len(labels)])
            dist.all_reduce(counts)
            right, total = right + counts[0].item(), total + counts[1].item()
    model.train()
    return right / total

# %% wrong: its own batches
import torch


def accuracy(model, batches):
    """Return the share of right answers over the batches of all ranks, on every rank."""
    model.eval()
    with torch.no_grad():
        right = sum((model(inputs).argmax(1) == labels).sum().item() for inputs, labels in batches)
    model.train()
    return right / sum(len(labels) for _, labels in batches)

# %% wrong: rank 1 returns nothing
import torch
import torch.distributed as dist


def accuracy(model, batches):
    """Return the share of right answers over the batches of all ranks, on every rank."""
    counts = torch.zeros(2)
    model.eval()
    with torch.no_grad():
        for inputs, labels in batches:
            counts += torch.tensor([(model(inputs).argmax(1) == labels).sum(), len(labels)])
    model.train()
    dist.reduce(counts, 0)
    if dist.get_rank() == 0:
        return (counts[0] / counts[1]).item()

# %% wrong: in training mode while
import torch
import torch.distributed as dist


def accuracy(model, batches):
    """Return the share of right answers over the batches of all ranks, on every rank."""
    counts = torch.zeros(2)
    with torch.no_grad():
        for inputs, labels in batches:
            counts += torch.tensor([(model(inputs).argmax(1) == labels).sum(), len(labels)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()

# %% wrong: Add both counts
import torch
import torch.distributed as dist


def accuracy(model, batches):
    """Return the share of right answers over the batches of all ranks, on every rank."""
    right, total = torch.zeros(1), 0
    model.eval()
    with torch.no_grad():
        for inputs, labels in batches:
            right += (model(inputs).argmax(1) == labels).sum()
            total += len(labels)
    model.train()
    dist.all_reduce(right)
    return right.item() / max(total, 1)

# %% wrong: a rank has no batches
import torch
import torch.distributed as dist


def accuracy(model, batches):
    """Return the share of right answers over the batches of all ranks, on every rank."""
    right = total = 0
    model.eval()
    with torch.no_grad():
        for inputs, labels in batches:
            right += (model(inputs).argmax(1) == labels).sum().item()
            total += len(labels)
    model.train()
    weighted = torch.tensor([right / total * total, total])
    dist.all_reduce(weighted)
    return (weighted[0] / weighted[1]).item()

# %% wrong: gives the sums to one rank only
import torch
import torch.distributed as dist


def accuracy(model, batches):
    """Return the share of right answers over the batches of all ranks, on every rank."""
    was_training = model.training
    model.eval()
    counts = torch.zeros(2)
    with torch.no_grad():
        for inputs, labels in batches:
            counts[0] += (model(inputs).argmax(1) == labels).sum()
            counts[1] += len(labels)
    model.train(was_training)
    dist.reduce(counts, 0)
    return (counts[0] / counts[1]).item()


# %% wrong: evaluation mode before
import torch
import torch.distributed as dist


def accuracy(model, batches):
    """Return the share of right answers over the batches of all ranks, on every rank."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.float64)  # right answers, all answers
    with torch.no_grad():
        for inputs, labels in batches:
            counts[0] += (model(inputs).argmax(1) == labels).sum()
            counts[1] += len(labels)
    model.train()
    dist.all_reduce(counts)  # once, whatever the number of batches
    return (counts[0] / counts[1]).item()

# %% wrong: keeps a graph
import torch
import torch.distributed as dist


def accuracy(model, batches):
    """Return the share of right answers over the batches of all ranks, on every rank."""
    was_training = model.training
    counts = torch.zeros(2)
    model.eval()
    for inputs, labels in batches:
        counts += torch.tensor([(model(inputs).argmax(1) == labels).sum(), len(labels)])
    model.train(was_training)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()

# %% wrong: is not after it
import torch
import torch.distributed as dist


def accuracy(model, batches):
    """Return the share of right answers over the batches of all ranks, on every rank."""
    counts = torch.zeros(2)
    model.eval()
    with torch.no_grad():
        for inputs, labels in batches:
            counts += torch.tensor([(model(inputs).argmax(1) == labels).sum(), len(labels)])
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()
