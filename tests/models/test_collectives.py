"""Costs of collectives, against algorithms that are carried out on data, message by message."""

import math

import numpy as np
import pytest
from gpulab.errors import InputError
from gpulab.models import collective_cost, collective_message

from texts import table_text

# The oracle: an algorithm is a sequence of rounds. A round is a list of messages (from, to, parts
# of the tensor) sent together. For each part, a rank holds the ranks whose data is in it.


def ring(p, first):
    """Parts passed from neighbor to neighbor: first=-1 reduce-scatters, first=0 gathers."""
    rounds = range(p - 1)
    return [[(r, (r + 1) % p, [(r - k + first) % p]) for r in range(p)] for k in rounds]


def tree(p):
    """In each round the number of ranks that have the data doubles."""
    bits = range((p - 1).bit_length())
    return [[(v, v + 2**b, range(p)) for v in range(2**b) if v + 2**b < p] for b in bits]


def back(rounds):
    """Reverse each message and the order of the rounds."""
    return [[(b, a, parts) for a, b, parts in messages] for messages in reversed(rounds)]


def rotated(p, parts):
    """In each round every rank sends ``parts`` to one other rank, until it has sent to all."""
    return [[(r, (r + k) % p, parts((r + k) % p)) for r in range(p)] for k in range(1, p)]


def in_turn(p, message):
    """One message after another between the root and each other rank."""
    return [[message(r)] for r in range(1, p)]


# (operation, algorithm) -> its rounds, what each rank begins with, and what it must end with.
ALGORITHMS = {
    ("reduce_scatter", "ring"): (lambda p: ring(p, -1), "all", "own sum"),
    ("reduce_scatter", "ring all-reduce"): (lambda p: [*ring(p, -1), *ring(p, 0)], "all", "sum"),
    ("all_reduce", "ring"): (lambda p: [*ring(p, -1), *ring(p, 0)], "all", "sum"),
    ("all_reduce", "tree"): (lambda p: [*back(tree(p)), *tree(p)], "all", "sum"),
    ("all_gather", "ring"): (lambda p: ring(p, 0), "own", "every part"),
    ("broadcast", "tree"): (tree, "root", "every part"),
    ("reduce", "tree"): (lambda p: back(tree(p)), "all", "root's sum"),
    ("reduce", "ring"): (
        lambda p: [*ring(p, -1), *in_turn(p, lambda r: (r, 0, [r]))],
        "all",
        "root's sum",
    ),
    ("gather", "direct"): (
        lambda p: in_turn(p, lambda r: (r, 0, [r])),
        "own",
        "root's parts",
    ),
    ("scatter", "direct"): (
        lambda p: in_turn(p, lambda r: (0, r, [r])),
        "root",
        "own part",
    ),
    ("all_to_all", "direct"): (lambda p: rotated(p, lambda to: [to]), "all", "own sum"),
    ("barrier", "dissemination"): (
        lambda p: (
            [(r, (r + 2**b) % p, []) for r in range(p)] for b in range((p - 1).bit_length())
        ),
        "own",
        "own part",
    ),
}
GOALS = {
    "sum": lambda data, p, n: all(len(one.get(k, ())) == p for one in data for k in range(n)),
    "own sum": lambda data, p, n: all(len(data[r][r]) == p for r in range(p)),
    "root's sum": lambda data, p, n: all(len(data[0][k]) == p for k in range(n)),
    "every part": lambda data, p, n: all(len(one) == n for one in data),
    "root's parts": lambda data, p, n: len(data[0]) == n,
    "own part": lambda data, p, n: all(r in data[r] for r in range(p)),
}


@pytest.mark.parametrize("p", [2, 3, 4, 5, 7, 8, 13])
@pytest.mark.parametrize(("operation", "algorithm"), ALGORITHMS, ids=lambda word: word)
def test_an_algorithm_costs_what_its_messages_cost(operation, algorithm, p):
    """Carried out on data, an algorithm reaches its goal in the model's steps and bytes."""
    rounds, start, goal = ALGORITHMS[operation, algorithm]
    begin = {"all": range(p), "root": ()}
    data = [{k: {r} for k in begin.get(start, [r])} for r in range(p)]
    data[0].update({k: {0} for k in range(p if start == "root" else 0)})
    critical, sent = 0.0, [0.0] * p
    for messages in rounds(p):
        ends = [sorted({m[i] for m in messages}) for i in (0, 1)]
        assert list(map(len, ends)) == [len(messages)] * 2  # a rank sends and receives one at most
        held = [(a, b, {k: set(data[a][k]) for k in some}) for a, b, some in messages]
        critical += max(len(some) for *_, some in held) / p
        for source, target, some in held:
            sent[source] += len(some) / p
            data[target].update({k: data[target].get(k, set()) | v for k, v in some.items()})
    assert GOALS[goal](data, p, p)
    cost = collective_cost(operation, 1.0, p, algorithm)
    assert (cost.steps, cost.critical_bytes) == (len(list(rounds(p))), pytest.approx(critical))
    assert [cost.sent_bytes(r) for r in range(p)] == pytest.approx(sent)
    alone = collective_cost(operation, 1e6, 1, algorithm)
    assert (alone.steps, alone.critical_bytes, alone.sent_bytes(0)) == (0, 0, 0)


def test_the_time_is_latency_for_each_step_and_bytes_over_bandwidth():
    """By hand: 4 ranks, 8 MB, 1 ms, 1 GB/s. A ring (the default) takes 6 + 12 ms, a tree 4 + 32."""
    link = {"latency_seconds": 1e-3, "bandwidth_bytes_per_second": 1e9}
    ring, tree = (collective_cost("all_reduce", 8e6, 4, name, **link) for name in (None, "tree"))
    assert (ring.algorithm, ring.seconds, tree.seconds) == (
        "ring",
        pytest.approx(18e-3),
        pytest.approx(36e-3),
    )
    # The root sends to two children, the next rank to one; with another root the ranks rotate.
    cost = collective_cost("broadcast", 100.0, np.int64(4))
    found = [[cost.sent_bytes(r, root) for r in range(4)] for root in (0, 3)]
    assert found == [[200, 100, 0, 0], [100, 0, 0, 200]]


@pytest.mark.parametrize(
    "name", [("all_reduce", "ring"), ("all_reduce", "tree"), ("reduce", "ring")]
)
@pytest.mark.parametrize("p", [2, 7])
def test_a_message_is_the_inverse_of_a_cost(name, p):
    """From two costs on a line follow the latency and bandwidth that the costs were made with."""
    made = {"latency_seconds": 3e-5, "bandwidth_bytes_per_second": 2e9}
    small, large = (collective_cost(name[0], n, p, name[1], **made).seconds for n in (0, 1e6))
    line = {"latency_seconds": small, "bandwidth_bytes_per_second": 1e6 / (large - small)}
    assert collective_message(name[0], p, name[1], **line) == pytest.approx((3e-5, 2e9))
    line["latency_seconds"] = -1e-6  # a fitted line may begin below zero, a latency may not
    assert collective_message(name[0], p, name[1], **line)[0] == 0


LINE = {"latency_seconds": 1e-5, "bandwidth_bytes_per_second": 1e9}


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: collective_cost("sum", 1, 2), "sum"),
        (lambda: collective_cost("all_reduce", 1, 2, "star"), "star"),
        (lambda: collective_cost("all_reduce", 1, 0), "ranks is 0"),
        (lambda: collective_cost("all_reduce", 1, 2**20 + 1), "ranks is 1048577"),
        (lambda: collective_cost("all_reduce", -1, 4), "nbytes is -1"),
        (lambda: collective_cost("all_reduce", 1, 4, latency_seconds=math.nan), "nan"),
        (lambda: collective_cost("all_reduce", 1, 4, bandwidth_bytes_per_second=0), "is 0"),
        (lambda: collective_cost("broadcast", 1, 4).sent_bytes(4), "rank is 4"),
        (lambda: collective_cost("broadcast", 1, 4).sent_bytes(0, root=-1), "root is -1"),
        (lambda: collective_message("all_reduce", 1, "ring", **LINE), "1 ranks"),
        (lambda: collective_message("barrier", 4, "dissemination", **LINE), "barrier"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(call, value):
    """Unknown names, numbers out of range and collectives that send nothing are refused."""
    with pytest.raises(InputError, match=value):
        call()
    assert collective_cost("all_reduce", 0, 2**20).seconds == 0


def test_costs_as_they_are_shown(approved):
    """4 ranks, 8 MiB, 1 ms, 1 MiB/s: 6 messages of 2 MiB take 12 s."""
    link = {"latency_seconds": 1e-3, "bandwidth_bytes_per_second": 2**20}
    shown = [collective_cost(name[0], 2.0**23, 4, name[1], **link) for name in ALGORITHMS]
    assert "\n".join(f"{one!r}\n{table_text(one._repr_html_())}" for one in shown) == approved
