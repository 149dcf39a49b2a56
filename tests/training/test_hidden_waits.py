"""Hidden synchronisations: each kind is found on its line, once, and what does not wait is not counted."""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from gpulab import training
from gpulab.errors import InputError
from gpulab.training import HiddenWaits, _hidden

X = torch.arange(6.0)
TIMES = torch.arange(6)
one_hot = nn.functional.one_hot
# Operators that wait inside their own CUDA kernels, where nothing of it is seen from outside: by PyTorch's sources (SummaryOps.cu,
# Repeat.cpp, Onehot.cpp) and the manual of torch.linalg.solve ("synchronizes that device with the CPU"); and their forms that do not.
INSIDE = {
    "bincount": lambda x, times: torch.bincount(times), "repeat_interleave": lambda x, times: x.repeat_interleave(times),
    "histc": lambda x, times: torch.histc(x, 4), "one_hot": lambda x, times: one_hot(times),
    "_linalg_check_errors": lambda x, times: torch.linalg.solve(x.diag() + 1e3 * torch.eye(6, device=x.device), x),
}  # fmt: skip
TOLD = {
    "repeats": lambda x, times: x.repeat_interleave(2), "their sum": lambda x, times: x.repeat_interleave(times, output_size=15),
    "ends": lambda x, times: torch.histc(x, 4, 0, 5), "ends by name": lambda x, times: torch.histc(x, 4, min=0, max=5),
    "classes": lambda x, times: one_hot(times, 6), "classes by name": lambda x, times: one_hot(times, num_classes=6),
    "no check": lambda x, times: torch.linalg.solve_ex(x.diag() + 1e3 * torch.eye(6, device=x.device), x),
}  # fmt: skip


def branch() -> None:
    if X.sum() > 3:
        pass


@pytest.mark.parametrize(
    ("what", "fn"),
    [
        ("item", lambda: X.sum().item()), ("item", lambda: float(X[0])), ("item", lambda: int(X[0])), ("item", branch),
        ("nonzero", lambda: torch.nonzero(X)), ("index", lambda: X[X > 2]), ("masked_select", lambda: X.masked_select(X > 2)),
        ("_unique2", lambda: torch.unique(X)), ("cpu", lambda: X.cpu().sum()), ("cpu", lambda: X.cpu().numpy()),
        ("tolist", lambda: X.tolist()[0]),
        ("numpy", lambda: X.numpy()[0]), ("print", lambda: repr(X)), ("print", lambda: f"{X[0]:.2f}"), ("equal", lambda: torch.equal(X, X)),
    ],
)  # fmt: skip
def test_each_kind_is_one_wait(what, fn):
    """One call, one wait, with the name of what waits and this file's line."""
    found = training.hidden_waits(fn, device="cpu")
    assert found.count == 1
    assert found.sites[0].what.startswith(what + ":")
    assert found.sites[0].line.startswith("test_hidden_waits.py line ")


@pytest.mark.parametrize("what", INSIDE)
def test_a_wait_inside_an_operator_is_one_wait(what):
    """It counts once a call, whatever a CPU reads in its place."""
    found = training.hidden_waits(INSIDE[what], X, TIMES, device="cpu")
    assert [(site.what.partition(":")[0], site.count) for site in found.sites] == [(what, 1)]
    assert found.sites[0].line.startswith("test_hidden_waits.py line ")


@pytest.mark.parametrize("what", [*INSIDE, *TOLD, "item"])
def test_inference_mode_hides_no_wait_and_makes_none(what):
    """There an operator that is made of others arrives whole, with another name."""
    fn = {**INSIDE, **TOLD, "item": lambda x, times: x.sum().item()}[what]

    def inferred():
        with torch.inference_mode():
            return fn(X, TIMES)

    assert training.hidden_waits(inferred, device="cpu").count == (what not in TOLD)


@pytest.mark.parametrize("what", TOLD)
def test_an_operator_that_was_told_does_not_wait(what):
    """With the size, the ends or the classes given, or without the check, nothing is read."""
    assert training.hidden_waits(TOLD[what], X, TIMES, device="cpu").count == 0


@pytest.mark.parametrize(
    "fn", [lambda: X * 2, lambda: X.sum().detach(), lambda: X[1:3], lambda: X.masked_fill(X > 2, 0), lambda: torch.where(X > 2, X, 0),
           lambda: X.shape, lambda: X[torch.tensor([0, 2])], lambda: X.to("cpu"), lambda: X.size(0) + X.numel()]
)  # fmt: skip
def test_what_does_not_wait_is_not_counted(fn):
    """Arithmetic, views, shapes, and selection by a size that is known."""
    assert training.hidden_waits(fn, device="cpu").count == 0


def test_a_fetch_by_to_counts_where_it_is_asked():
    """On a CPU the word counts once with the switch, what is read of it on the line no more, and a device that a tensor gave never."""

    def count(fn, on=True):
        return training.hidden_waits(fn, device="cpu", count_to_cpu=on).count

    assert count(lambda: X.sum().to("cpu")) == count(lambda: X.sum().to(device="cpu")) == 1
    assert count(lambda: X.sum().to("cpu"), on=False) == 0
    assert count(lambda: X.sum().to("cpu").item()) == count(lambda: X.to("cpu").numpy()) == count(lambda: X.sum().cpu().item()) == 1
    assert count(lambda: X.cpu().sum().item()) == count(lambda: [float(x) for x in X.to("cpu")]) == count(lambda: f"{X[0].cpu():.1f}") == 1
    assert count(lambda: X.to(X.device)) == count(lambda: X.to(torch.float64)) == 0
    with pytest.raises(InputError, match="count_to_cpu"):
        training.hidden_waits(lambda: None, count_to_cpu="yes")


def test_what_was_fetched_waits_no_second_time():
    """It and what is computed of it lie on the host, on any later line; what a device's tensor went into is to be fetched again."""

    def once() -> tuple[float, float, str]:
        y = X.cpu()
        total = (2 * y[1:]).sum()
        return total.item(), float(y[0]), f"{total:.1f}"

    def again() -> float:
        y = X.cpu()
        y.copy_(X * 2)
        return y[1].item()

    def other() -> float:
        y = X.cpu()
        return (y * X).sum().item() + X[1].item()

    def addresses() -> int:
        for _ in range(20):
            X.cpu()
            (X + 1).sum().item()
        return 0

    found = training.hidden_waits(once, device="cpu")
    assert (found.count, found.sites[0].what) == (1, "cpu: fetches the values")
    assert once() == (30.0, 0.0, "30.0")
    assert training.hidden_waits(again, device="cpu").count == 2
    assert training.hidden_waits(other, device="cpu").count == 3
    assert training.hidden_waits(addresses, device="cpu").count == 40


def test_a_training_step():
    """Adam's counters on the host and clipping do not count; the loss that is read does, in each call."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    losses = []

    def step(read: bool) -> None:
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item() if read else loss.detach())

    assert training.hidden_waits(step, False, calls=3, device="cpu").count == 0
    found = training.hidden_waits(step, True, calls=3, device="cpu")
    assert (found.count, found.per_call, len(found.sites)) == (3, 1, 1)
    assert "losses.append(loss.item()" in found.sites[0].line
    assert HiddenWaits.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert "3 waits at 1 place" in repr(found)


def test_the_calls_may_be_a_whole_number_of_numpy() -> None:
    """As many calls as an array's number says; 2.0 and True are no whole numbers."""
    found = training.hidden_waits(torch.ones(1).item, calls=np.uint8(2), device="cpu")
    assert (found.count, found.calls, type(found.calls)) == (2, 2, int)
    for wrong in (2.0, True):
        with pytest.raises(InputError, match="hidden_waits: calls is"):
            training.hidden_waits(torch.ones(1).item, calls=wrong, device="cpu")


def test_the_modes_are_off_afterwards():
    """After the call, and after one that raised, nothing is watched."""
    with pytest.raises(InputError, match="raised ZeroDivisionError"):
        training.hidden_waits(lambda: 1 / 0, device="cpu")
    found = training.hidden_waits(lambda: X.sum().item(), device="cpu")
    X.sum().item()
    assert found.count == 1
    with pytest.raises(InputError, match="not its result"):
        training.hidden_waits(3)


def test_cudas_own_count_stands_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that is warned in the calls PyTorch's warning alone counts; its mode is the caller's afterwards, also where a call raised."""
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", asked.append)
    monkeypatch.setattr(_hidden.devices, "find", lambda device: SimpleNamespace(name="a GPU", torch_type="cuda"))

    def loop() -> None:
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally at ...)", stacklevel=1)
        warnings.warn("another library's", stacklevel=1)
        X.sum().item()  # lies on the host, where a GPU's program waits for nothing

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = training.hidden_waits(loop, calls=3)
        assert heard == []
    assert (found.count, found.warned, found.calls, asked) == (0, 6, 3, ["warn", 0])
    assert found.table() == (
        ("loop: where the host waits", "what it calls", "times"),
        [("nowhere", "the host never waits", "0"), ("CUDA's debug mode counted", "", "6")],
    )
    with pytest.raises(
        InputError, match=r"^hidden_waits: the function raised ZeroDivisionError \(division by zero\); expected it to run\."
    ):
        training.hidden_waits(lambda: 1 / 0)
    assert asked == ["warn", 0] * 2


@pytest.mark.parametrize(
    ("kind", "counts", "given", "by_name", "fetches"),
    [
        ("cuda", False, ("cpu",), {}, True), ("cuda", False, (torch.device("cpu"),), {}, True), ("cuda", False, ("cuda:0",), {}, False),
        ("cuda", False, (), {"device": "cpu:0"}, True), ("cuda", False, (torch.float16,), {}, False),
        ("cuda", False, (torch.float16,), {"device": torch.device("cpu")}, True), ("cuda", False, (), {}, False),
        ("cpu", True, ("cpu",), {}, True), ("cpu", True, (torch.device("cpu"),), {}, False), ("cpu", False, ("cpu",), {}, False),
        ("cpu", True, (), {"device": "cpu"}, True), ("cpu", True, ("meta",), {}, False),
    ],
)  # fmt: skip
def test_when_to_is_a_fetch(kind: str, counts: bool, given: tuple, by_name: dict, fetches: bool) -> None:
    """On an accelerator whatever names the host, by its place or by name; on a CPU the word alone, and only where it is asked for."""
    assert _hidden._Waits(kind, counts).asks_for_host((X, *given), by_name) is fetches


@pytest.mark.gpu
def test_cudas_debug_mode_counts_the_same():
    """On a device the count of reads and masks is CUDA's own, and a tensor on the host does not count."""
    x = torch.arange(6.0, device="cuda")

    def loop() -> None:
        x.sum().item()
        x[x > 2]
        X.sum().item()

    found = training.hidden_waits(loop, device="cuda")
    assert found.count == 2 == found.warned


@pytest.mark.gpu
@pytest.mark.parametrize("what", [*INSIDE, *TOLD])
def test_cudas_debug_mode_sees_the_waits_inside_operators(what):
    """It warns, once or twice, where a call counts once, and not where the operator was told."""
    x, times = X.cuda(), TIMES.cuda()
    fn = {**INSIDE, **TOLD}[what]
    fn(x, times)  # what a library waits for at its first call is not asked
    found = training.hidden_waits(fn, x, times, device="cuda")
    assert found.count == (what in INSIDE)
    assert (found.warned > 0) == (what in INSIDE)
