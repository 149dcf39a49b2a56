"""What collectives cost: each algorithm's messages are written out here, carried out on real data, and counted."""

import math
from collections import defaultdict

import pytest

from gpulab import models
from gpulab.errors import InputError
from gpulab.models._gloo import GLOO_ALGORITHMS, gloo_wire_bytes

# An oracle of its own: each function gives the algorithm as rounds of messages (from, to, payload parts), and carries them out on
# sets or sums, so that a wrong schedule shows in the data. Messages of one round go at the same time; a rank sends and receives one.


class Machine:
    """Ranks that pass messages in rounds, and count what they pass."""

    def __init__(self, ranks):
        self.ranks, self.rounds, self.sent, self.critical = ranks, 0, defaultdict(float), 0.0

    def pass_round(self, messages):
        """Pass messages (from, to, share) at once: no rank sends or receives two."""
        assert len({m[0] for m in messages}) == len({m[1] for m in messages}) == len(messages)
        self.rounds += 1
        self.critical += max(m[2] for m in messages)
        for source, _, share in messages:
            self.sent[source] += share


def ring_reduce_scatter(machine, data):
    """data[rank][part] are sums as sets of contributors; afterwards rank r has part r of all."""
    p = machine.ranks
    for k in range(p - 1):
        moves = [(r, (r + 1) % p, (r - k - 1) % p) for r in range(p)]
        values = [data[r][part] for r, _, part in moves]
        machine.pass_round([(r, to, 1 / p) for r, to, _ in moves])
        for (_, to, part), value in zip(moves, values, strict=True):
            assert not data[to][part] & value  # nothing is added twice
            data[to][part] = data[to][part] | value


def ring_all_gather(machine, data):
    """Afterwards each rank has every part; rank r begins with part r."""
    p = machine.ranks
    for k in range(p - 1):
        moves = [(r, (r + 1) % p, (r - k) % p) for r in range(p)]
        values = [data[r][part] for r, _, part in moves]
        machine.pass_round([(r, to, 1 / p) for r, to, _ in moves])
        for (_, to, part), value in zip(moves, values, strict=True):
            data[to][part] = value


def tree_broadcast(machine, have):
    """The ranks that have it double."""
    reach = 1
    while reach < machine.ranks:
        machine.pass_round([(v, v + reach, 1.0) for v in range(reach) if v + reach < machine.ranks])
        have.update(v + reach for v in range(reach) if v + reach < machine.ranks)
        reach *= 2


def tree_reduce(machine, sums):
    """The broadcast's messages backwards."""
    reach = 1
    while reach < machine.ranks:
        reach *= 2
    while reach > 1:
        reach //= 2
        moves = [(v + reach, v) for v in range(reach) if v + reach < machine.ranks]
        machine.pass_round([(a, b, 1.0) for a, b in moves])
        for a, b in moves:
            assert not sums[a] & sums[b]
            sums[b] = sums[b] | sums[a]


def doubling(machine, sums, halving):
    """All-reduce by recursive doubling or, with parts, by halving and doubling; ranks beyond a power of two fold in and out."""
    p = machine.ranks
    k = p.bit_length() - 1
    extra = p - 2**k
    if extra:
        machine.pass_round([(2 * i, 2 * i + 1, 1.0) for i in range(extra)])
        for i in range(extra):
            sums[2 * i + 1] = sums[2 * i + 1] | sums[2 * i]
    working = [2 * i + 1 for i in range(extra)] + list(range(2 * extra, p))
    shares = [2.0 ** -(i + 1) for i in range(k)] + [2.0 ** -(k - i) for i in range(k)] if halving else [1.0] * k
    distances = [2 ** (k - 1 - i) for i in range(k)] + [2**i for i in range(k)] if halving else [2**i for i in range(k)]
    for share, distance in zip(shares, distances, strict=True):
        machine.pass_round([(working[i], working[i ^ distance], share) for i in range(len(working))])
        before = {r: sums[r] for r in working}
        for i, r in enumerate(working):
            sums[r] = before[r] | before[working[i ^ distance]]
    if extra:
        machine.pass_round([(2 * i + 1, 2 * i, 1.0) for i in range(extra)])
        for i in range(extra):
            sums[2 * i] = sums[2 * i + 1]


def agrees(machine, operation, algorithm):
    """The counted rounds, bytes in turn and bytes by rank are those of the model."""
    cost = models.collective_cost(operation, 1.0, machine.ranks, algorithm)
    assert cost.steps == machine.rounds
    assert cost.critical_bytes == pytest.approx(machine.critical)
    assert [cost.sent_bytes(r) for r in range(machine.ranks)] == pytest.approx([machine.sent[r] for r in range(machine.ranks)])


@pytest.mark.parametrize("p", [2, 3, 4, 5, 6, 7, 8, 13, 16])
def test_rings_and_trees_do_what_they_say_and_cost_what_the_model_says(p):
    """Each algorithm is carried out on data: every rank ends with all contributions, after the rounds and bytes of the model."""
    everyone = set(range(p))
    machine, data = Machine(p), [[{r} for _ in range(p)] for r in range(p)]
    ring_reduce_scatter(machine, data)
    assert all(data[r][r] == everyone for r in range(p))
    agrees(machine, "reduce_scatter", "ring")
    ring_all_gather(machine, data)
    assert all(part == everyone for parts in data for part in parts)
    agrees(machine, "all_reduce", "ring")
    agrees(machine, "reduce_scatter", "ring all-reduce")
    machine, data = Machine(p), [[{r} if r == part else set() for part in range(p)] for r in range(p)]
    ring_all_gather(machine, data)
    assert all(data[r] == [{part} for part in range(p)] for r in range(p))
    agrees(machine, "all_gather", "ring")
    machine, have = Machine(p), {0}
    tree_broadcast(machine, have)
    assert have == everyone
    agrees(machine, "broadcast", "tree")
    machine, sums = Machine(p), [{r} for r in range(p)]
    tree_reduce(machine, sums)
    assert sums[0] == everyone
    agrees(machine, "reduce", "tree")
    tree_broadcast(machine, have)
    agrees(machine, "all_reduce", "tree")


@pytest.mark.parametrize("p", [2, 3, 4, 5, 6, 7, 8, 13, 16])
def test_doubling_and_direct_algorithms_cost_what_the_model_says(p):
    """Recursive doubling, Rabenseifner's algorithm and the direct ones, likewise."""
    for halving, name in ((False, "recursive doubling"), (True, "halving and doubling")):
        machine, sums = Machine(p), [{r} for r in range(p)]
        doubling(machine, sums, halving)
        assert all(s == set(range(p)) for s in sums)
        agrees(machine, "all_reduce", name)
    for operation, algorithm, share in (("all_to_all", "direct", 1 / p), ("all_reduce", "direct", 1.0)):
        machine = Machine(p)
        for k in range(1, p):
            machine.pass_round([(r, (r + k) % p, share) for r in range(p)])
        agrees(machine, operation, algorithm)
    for operation, share in (("scatter", 1 / p), ("broadcast", 1.0)):
        machine = Machine(p)
        for r in range(1, p):
            machine.pass_round([(0, r, share)])
        agrees(machine, operation, "direct")
    machine = Machine(p)
    for r in range(1, p):
        machine.pass_round([(r, 0, 1 / p)])
    agrees(machine, "gather", "direct")
    machine, data = Machine(p), [[{r} for _ in range(p)] for r in range(p)]
    ring_reduce_scatter(machine, data)
    for r in range(1, p):
        machine.pass_round([(r, 0, 1 / p)])
    agrees(machine, "reduce", "ring")


@pytest.mark.parametrize("p", [2, 3, 5, 8, 11])
def test_a_broadcast_by_scatter_and_all_gather_sends_each_part_once_down_the_tree(p):
    """The scatter's messages by hand: a holder of a block hands its upper half on; then the ring."""
    machine = Machine(p)
    holds = {0: list(range(p))}
    size = 1
    while size < p:
        size *= 2
    while size > 1:
        size //= 2
        moves = [(v, [part for part in parts if part >= v + size]) for v, parts in holds.items()]
        moves = [(v, v + size, parts) for v, parts in moves if parts]
        machine.rounds += 1
        machine.critical += max(len(parts) for _, _, parts in moves) / p
        for v, to, parts in moves:
            machine.sent[v] += len(parts) / p
            holds[to] = parts
            holds[v] = [part for part in holds[v] if part not in parts]
    assert holds == {v: [v] for v in range(p)}
    ring_all_gather(machine, [[{r} if r == part else set() for part in range(p)] for r in range(p)])
    agrees(machine, "broadcast", "scatter and all-gather")


def test_doubling_of_an_all_gather_and_halving_need_only_logarithmically_many_steps():
    """From the paper's formulas: ceil(log2 p) steps, (p - 1) / p of the bytes; recursive halving only for powers of two."""
    for p, steps in ((2, 1), (3, 2), (4, 2), (8, 3), (9, 4)):
        cost = models.collective_cost("all_gather", 9e6, p, "doubling")
        assert (cost.steps, cost.critical_bytes) == (steps, pytest.approx(9e6 * (p - 1) / p))
    assert models.collective_cost("reduce_scatter", 8e6, 8, "halving").steps == 3
    with pytest.raises(InputError, match=r"halving among 6 ranks; expected a power of two"):
        models.collective_cost("reduce_scatter", 8e6, 6, "halving")
    assert models.collective_cost("barrier", 0, 5).steps == 3


def test_the_time_is_steps_times_latency_plus_bytes_over_bandwidth():
    """By hand: 4 ranks, 8 MB, 1 ms, 1 GB/s. Ring: 6 ms + 12 ms; tree: 4 ms + 32 ms. Latency decides small ones, bytes large ones."""
    link = {"latency_seconds": 1e-3, "bandwidth_bytes_per_second": 1e9}
    assert models.collective_cost("all_reduce", 8e6, 4, "ring", **link).seconds == pytest.approx(18e-3)
    assert models.collective_cost("all_reduce", 8e6, 4, "tree", **link).seconds == pytest.approx(36e-3)
    small = [models.collective_cost("all_reduce", 1e3, 64, a, **link).seconds for a in ("ring", "recursive doubling")]
    large = [models.collective_cost("all_reduce", 1e9, 64, a, **link).seconds for a in ("ring", "recursive doubling")]
    assert small[0] > small[1]
    assert large[0] < large[1]


def test_bus_bandwidth_is_that_of_nccl_tests():
    """Their PERFORMANCE.md: all-reduce 2 (n - 1) / n, all-gather and reduce-scatter (n - 1) / n, broadcast and reduce 1."""
    rates = {"all_reduce": 1.5, "all_gather": 0.75, "reduce_scatter": 0.75, "all_to_all": 0.75, "broadcast": 1.0, "reduce": 1.0}
    rates |= {"gather": 0.75, "scatter": 0.75}
    for operation, share in rates.items():
        assert models.bus_bandwidth(operation, 8e9, 4, 2.0) == pytest.approx(4e9 * share)
    assert math.isnan(models.bus_bandwidth("barrier", 0, 4, 1.0))
    assert math.isnan(models.bus_bandwidth("all_reduce", 1e9, 4, 0.0))
    # With no latency a ring's bus bandwidth is the link's own.
    for p in (2, 7, 64):
        ring = models.collective_cost("all_reduce", 1e9, p, bandwidth_bytes_per_second=5e9)
        assert ring.bus_bytes_per_second == pytest.approx(5e9)


def test_one_rank_alone_sends_nothing():
    """Whatever the algorithm."""
    for operation in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter", "barrier"):
        for algorithm in models.collective_algorithms(operation):
            cost = models.collective_cost(operation, 1e6, 1, algorithm)
            assert (cost.steps, cost.critical_bytes, cost.sent_bytes(0)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"operation": "sum"}, "expected one of: all_reduce"),
        ({"algorithm": "star"}, "algorithm of all_reduce is 'star'"),
        ({"ranks": 0}, "ranks is 0"),
        ({"ranks": 2.0}, "ranks is 2.0"),
        ({"nbytes": -1}, "nbytes is -1"),
        ({"latency_seconds": math.nan}, "latency_seconds is nan"),
        ({"bandwidth_bytes_per_second": 0}, "bandwidth_bytes_per_second is 0"),
    ],
)
def test_what_cannot_be_is_refused_with_its_value(given, words):
    """Each in one sentence."""
    with pytest.raises(InputError, match=words):
        models.collective_cost(**{"operation": "all_reduce", "nbytes": 1e6, "ranks": 4, **given})


def test_ranks_and_roots_are_counted_round():
    """The root's bytes follow the root; a rank that is none is refused; the result goes through JSON."""
    cost = models.collective_cost("broadcast", 100.0, 4)
    assert [cost.sent_bytes(r) for r in range(4)] == [200, 100, 0, 0]
    assert [cost.sent_bytes(r, root=3) for r in range(4)] == [100, 0, 0, 200]
    with pytest.raises(InputError, match="rank is 4"):
        cost.sent_bytes(4)
    assert models.CollectiveCost.from_dict(cost.to_dict()) == cost
    assert "MODELLED" in cost._repr_html_()


def test_gloo_sends_what_its_algorithm_needs_and_144_bytes_a_message():
    """By hand, 4 ranks and 4,096 float32: payload share plus messages; a message costs its sender 96 bytes and its receiver 48."""
    n = 16384
    by_hand = {
        "all_reduce": [n * 3 // 2 + 12 * 144] * 4,
        "reduce_scatter": [n * 3 // 2 + 12 * 144] * 4,
        "all_gather": [n * 3 // 4 + 6 * 144] * 4,
        "all_to_all": [n * 3 // 4 + 3 * 144] * 4,
        "broadcast": [2 * n + 192, n + 96 + 48, 48, 48],
        "gather": [144, n // 4 + 96, n // 4 + 96, n // 4 + 96],
        "scatter": [n * 3 // 4 + 288, 48, 48, 48],
        "reduce": [n * 3 // 4 + 6 * 144 + 144, *[n + 6 * 144 + 96] * 3],
        "barrier": [288] * 4,
    }
    for operation, sent in by_hand.items():
        assert list(gloo_wire_bytes(operation, 4096, 4)) == sent
        # Headers aside it is the general model's, for the algorithm that gloo uses.
        cost = models.collective_cost(operation, n, 4, GLOO_ALGORITHMS[operation])
        for rank in range(4):
            assert 0 <= sent[rank] - cost.sent_bytes(rank) <= 12 * 144


def test_gloo_in_large_pieces_and_uneven_parts():
    """8 MiB among 2 ranks: 8 segments of 1 MiB a phase of which each rank sends half; 5 elements leave some segments short or empty."""
    assert gloo_wire_bytes("all_reduce", 2**21, 2) == (2**23 + 8 * 144,) * 2
    # Its reduce sends all but two segments, 6 MiB, where 4 would do; then rank 1 hands its part of 4 MiB to the root.
    root, other = gloo_wire_bytes("reduce", 2**21, 2)
    assert (root, other) == (6 * 2**20 + 6 * 144 + 48, 6 * 2**20 + 6 * 144 + 4 * 2**20 + 96)
    # 5 float32 over 2 ranks: 4 segments of 8 bytes, of which the last is empty and the third half full.
    assert gloo_wire_bytes("all_reduce", 5, 2) == (4 + 16 + 3 * 96 + 3 * 48,) * 2
    with pytest.raises(InputError, match=r"5 elements over 2 ranks"):
        gloo_wire_bytes("all_gather", 5, 2)
    with pytest.raises(InputError, match="root is 2"):
        gloo_wire_bytes("broadcast", 5, 2, root=2)
    with pytest.raises(InputError, match=r"elements is 1\.5"):
        gloo_wire_bytes("broadcast", 1.5, 2)


@pytest.mark.parametrize(("operation", "algorithm"), [("all_reduce", "ring"), ("all_reduce", "tree"), ("all_gather", "ring")])
@pytest.mark.parametrize("ranks", [2, 4, 7])
def test_a_message_told_from_a_line_is_the_one_that_made_it(operation: str, algorithm: str, ranks: int) -> None:
    """Two points of the cost's own line give back the latency and the bandwidth that it was made with."""
    made = {"latency_seconds": 3e-5, "bandwidth_bytes_per_second": 2e9}
    small, large = (models.collective_cost(operation, n, ranks, algorithm, **made).seconds for n in (1e3, 1e6))
    slope = (large - small) / (1e6 - 1e3)
    told = models.collective_message(
        operation, ranks, algorithm, latency_seconds=small - 1e3 * slope, bandwidth_bytes_per_second=1 / slope
    )  # fmt: skip
    assert told == pytest.approx((3e-5, 2e9), rel=1e-6)


def test_no_message_is_told_where_none_is_sent() -> None:
    """One rank sends nothing, and a barrier no bytes: a sentence, not a division by zero."""
    for operation, ranks in (("all_reduce", 1), ("barrier", 4)):
        with pytest.raises(InputError, match="sends nothing"):
            models.collective_message(
                operation, ranks, models.collective_algorithms(operation)[0], latency_seconds=1e-5, bandwidth_bytes_per_second=1e9
            )


def test_a_latency_below_nothing_counts_as_none() -> None:
    """A fitted line may begin below zero; no message takes less than no time."""
    line = {"latency_seconds": -1e-6, "bandwidth_bytes_per_second": 1e9}
    assert models.collective_message("all_reduce", 4, "ring", **line) == (0.0, 1.5e9)


def test_a_cost_as_a_table_and_in_words():
    """4 ranks, 8 MiB, 1 ms, 1 MiB/s by hand: 6 messages of 2 MiB; a barrier moves nothing and has no bandwidth; a broadcast has one."""
    cost = models.collective_cost("all_reduce", 2**23, 4, "ring", latency_seconds=1e-3, bandwidth_bytes_per_second=2**20)
    assert repr(cost) == "<all_reduce of 8.00 MiB among 4 by ring: 6 steps, 12.0 MiB in turn, 12.0 s>"
    assert cost.table() == (
        ("all_reduce of 8.00 MiB, 4 ranks, ring", ""),
        [("messages in turn", "6"), ("bytes in turn", "12.0 MiB"), ("sent by rank 0", "12.0 MiB"), ("time", "12.0 s"),
         ("bus bandwidth", "1.05 MB/s")],
    )  # fmt: skip
    barrier = models.collective_cost("barrier", 0, 5, latency_seconds=1e-3)
    assert [row[0] for row in barrier.table()[1]] == ["messages in turn", "bytes in turn", "sent by rank 0", "time"]
    assert models.collective_cost("broadcast", 1e6, 4, bandwidth_bytes_per_second=2e6).table()[1][-1] == ("bus bandwidth", "1.00 MB/s")
    assert models.collective_cost("reduce_scatter", 1.0, 2).evidence.assumptions.startswith(
        "ring: parts passed on, each rank adding its own;"
    )


def test_gloo_among_three_ranks_round_the_second():
    """6 float32 in parts of 8 bytes, rank 1 the root, by hand: parts of two segments, trees that fold round, 96 and 48 bytes a message."""
    by_hand = {
        "all_reduce": [32 + 8 * 144] * 3,
        "reduce_scatter": [32 + 8 * 144] * 3,
        "all_gather": [16 + 4 * 144] * 3,
        "all_to_all": [16 + 2 * 144] * 3,
        "broadcast": [48, 2 * (24 + 96), 48],
        "gather": [8 + 96, 2 * 48, 8 + 96],
        "scatter": [48, 2 * (8 + 96), 48],
        "reduce": [16 + 4 * 144 + 8 + 96, 16 + 4 * 144 + 2 * 48, 16 + 4 * 144 + 8 + 96],
        "barrier": [2 * 144] * 3,
    }
    assert {operation: list(gloo_wire_bytes(operation, 6, 3, root=1)) for operation in by_hand} == by_hand


def test_gloos_reduce_cuts_between_elements():
    """5 float32 over 2 ranks, by hand: segments of 8 bytes, not of 5; rank 0 passes on the half full one, rank 1 two and its part of 4."""
    assert gloo_wire_bytes("reduce", 5, 2) == (4 + 96 + 3 * 48, 16 + 4 + 3 * 96 + 48)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: gloo_wire_bytes("sum", 4, 2), "^gloo_wire_bytes: operation is 'sum'"),
        (lambda: gloo_wire_bytes("barrier", 4, 1), "^gloo_wire_bytes: ranks is 1; expected a whole number from 2"),
        (lambda: gloo_wire_bytes("barrier", -1, 2), "^gloo_wire_bytes: elements is -1; expected a whole number from 0"),
        (
            lambda: gloo_wire_bytes("barrier", 4, 2, element_bytes=0),
            "^gloo_wire_bytes: element_bytes is 0; expected a whole number from 1",
        ),
        (lambda: gloo_wire_bytes("reduce", 4, 2, root=-1), "^gloo_wire_bytes: root is -1; expected a rank from 0 to 1"),
        (lambda: gloo_wire_bytes("reduce", 4, 2, root=True), "^gloo_wire_bytes: root is True"),
        (lambda: models.collective_algorithms("sum"), "^collective_algorithms: operation is 'sum'"),
        (lambda: models.bus_bandwidth("sum", 1, 2, 1.0), "^bus_bandwidth: operation is 'sum'"),
        (lambda: models.collective_cost("sum", 1, 2), "^collective_cost: operation is 'sum'"),
        (lambda: models.collective_cost("all_reduce", 1, 2**20 + 1), "^collective_cost: ranks is 1048577; .* 1 to 1,048,576"),
        (lambda: models.collective_cost("all_reduce", 1, True), "^collective_cost: ranks is True"),
        (lambda: models.collective_cost("all_reduce", 1e30, 2), r"^collective_cost: nbytes is 1e\+30"),
        (lambda: models.collective_cost("broadcast", 1, 4).sent_bytes(0, root=True), "^sent_bytes: root is True; .* 0 to 3"),
        (lambda: models.collective_cost("broadcast", 1, 4).sent_bytes(-1), "^sent_bytes: rank is -1"),
    ],
)
def test_each_refusal_names_its_function(call, words):
    """The function that was called, the argument and its value come first; the bound itself is the last that is let through."""
    with pytest.raises(InputError, match=words):
        call()
    assert models.collective_cost("all_reduce", 0, 2**20).seconds == 0
