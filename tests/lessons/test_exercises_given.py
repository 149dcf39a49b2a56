"""What an exercise gives an answer to work on, what comes out of it by hand, and what a right answer is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from answered import said, solved

from gpulab import training, transfer
from gpulab.hierarchy import Latency
from gpulab.lessons import (
    _architecture,
    _density,
    _material,
    _nb00,
    _nb01_exercises,
    _nb02_exercises,
    _nb03_exercises,
    _nb04_puzzles,
    _nb04_repairs,
    _nb05_rescue,
    _nb06_exercises,
    _nb06_memory,
    content,
)
from gpulab.lessons.content import Refused
from gpulab.models import Roofline


def asked(id: str) -> list[tuple[tuple[Any, ...], Any]]:
    """What the check gives the course's own answer, one call after the other, and what that returns."""
    answer, calls = solved(id), list[Any]()

    def watched(*given: Any) -> Any:
        calls.append((given, answer(*given)))
        return calls[-1][1]

    state, message = said(id, watched)
    assert state == "passed", message
    return calls


MACHINES = ((1e11, 2e10), (6e13, 4e12), 2.5e10)  # 0.1 and 60 TFLOP/s, 20 GB/s and 4 TB/s, a link of 25 GB/s
GIVEN: dict[str, list[tuple[tuple[Any, ...], Any]]] = {
    "03.11": [
        ((1e8, 1.2e9, 0.0, *MACHINES), 200.0), ((1e12, 1.2e9, 0.0, *MACHINES), 600.0),
        ((1e10, 1e9, 0.0, *MACHINES), 400.0),  # 100 ms of arithmetic over 0.25 ms of bytes
        ((1e8, 1.2e9, 1.2e9, *MACHINES), 60 / 48.3), ((1e12, 1.2e9, 1.2e9, *MACHINES), 10_000 / (50 / 3 + 48)),
        ((1e8, 1.2e9, 0.8e9, *MACHINES), 60 / 32.3),
    ],
    "05.3": [
        ((1000.0, 1e-3, 6e-4), "float16"), ((1e6, 1e-3, 1e-2), "bfloat16"), ((1e6, 1e-3, 1e-3), "float32"),
        ((300.0, 0.02, 0.1), "float8_e4m3fn"), ((40000.0, 1e-4, 0.2), "float8_e5m2"), ((200.0, 1e-6, 1e-3), "float32"),
        ((1e300, 1.0, 1e-3), "float64"), ((1000.0, 1e-3, 1e-9), "float64"), ((1.0, 1e-42, 1e-2), "float64"),
    ],
    "06.9": [
        ((10.0, 0.005, 0.002), 3334), ((8.0, 0.05, 0.01), 200), ((0.5, 2.0, 0.25), 1), ((30.0, 0.0625, 0.0625 - 1 / 1024), 30 * 1024),
        ((10.0, 0.004, 0.005), None), ((3.0, 0.01, 0.01), None),
    ],
    "07.2": [
        ((1_000_000, 0.9, 32), 125_000 + 400_000), ((80_000, 0.25, 32), 10_000 + 240_000),
        ((64_000, 0.05, 8), 64_000), ((1000, 0.0, 32), 4000), ((256_000, 0.5, 8), 32_000 + 128_000),
    ],
    "07.10": [
        ((6, 16, 3, 32), (864, 96 * 2**20)), ((1, 8, 5, 28), (200, 4_917_248)), ((64, 64, 1, 7), (4096, 9_834_496)),
        ((16, 32, 3, 8), (4608, 2 * 2**20)),
    ],
    "07.11": [
        ((128, 128, 3, 1, 16), 75_497_472), ((128, 128, 3, 128, 16), 589_824), ((64, 96, 3, 4, 14), 5_419_008), ((32, 64, 1, 1, 8), 2**18),
        ((48, 48, 5, 48, 9), 194_400),
    ],
    "08.10": [  # 1.2 GB for each byte of a parameter: 9, 16, 2 and 5.5 of them, and 3 GB of activations
        ((1_200_000_000, 3_000_000_000, 8, 1), 13.8e9), ((1_200_000_000, 3_000_000_000, 8, 0), 22.2e9),
        ((1_200_000_000, 3_000_000_000, 8, 3), 5.4e9), ((1_200_000_000, 3_000_000_000, 8, 2), 9.6e9),
        ((64_000_000, 0, 64, 3), 16e6), ((1_000_000, 500_000, 1, 3), 16.5e6),
    ],
}  # fmt: skip


@pytest.mark.parametrize("id", GIVEN)
def test_each_case_of_a_check_by_hand(id: str) -> None:
    """What is given and what is right."""
    calls = asked(id)
    assert [given for given, _ in calls] == [given for given, _ in GIVEN[id]]
    for (_, found), (given, right) in zip(calls, GIVEN[id], strict=True):
        assert found == (right if right is None or isinstance(right, str) else pytest.approx(right, rel=1e-9)), given


def test_four_pairs_of_calls_are_compared() -> None:
    """00.9: clearly faster, no difference, in truth slower, one of them noisy; in milliseconds, the speed-ups by hand."""
    calls = asked("00.9")
    in_ms = [[round(one * 1e3, 9) for m in given for one in (m.median_seconds, *m.interval_seconds)] for given, _ in calls]
    assert in_ms == [
        [10, 9.5, 10.6, 2, 1.95, 2.06], [5, 4.9, 5.1, 5.02, 4.9, 5.12], [3, 2.95, 3.06, 4, 3.9, 4.1], [8, 7.96, 8.04, 1, 0.94, 1.05],
    ]  # fmt: skip
    speedups = [round(one, 4) for _, found in calls for one in found]
    assert speedups == [5, 4.6117, 5.4359, 0.996, 0.957, 1.0408, 0.75, 0.7195, 0.7846, 8, 7.581, 8.5532]


def test_single_calls_spread_wider_than_the_interval_of_their_median() -> None:
    """00.9: who takes the shortest and the longest call for the ends of the interval is found out."""
    one = _nb00._made(2.0, 1.9, 2.1)
    assert one.samples_seconds == pytest.approx([1.52, 1.9, 2.0, 2.1, 2.73])
    assert (one.label, one.device, one.first_call_seconds, one.launch_seconds) == ("example", "cpu", 2.0, 2.0)
    assert (one.evidence.device, one.evidence.samples, one.calls_per_sample) == ("an example", 5, 1)


SEEN = {
    "00.7": ("the contest over sizes", _material.Contest), "01.9": ("the latency curve of your memory", Latency),
    "03.3": ("the roofs of your device", Roofline), "03.6": ("the roofs of your device", Roofline),
}  # fmt: skip


@pytest.mark.parametrize("id", SEEN)
def test_what_a_machine_gave_is_taken_and_put_back(id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an answer is checked again with what its student saw."""
    for owner, name in ((_architecture, "_curve"), (_density, "_kept")):
        monkeypatch.setattr(owner, name, None)
    monkeypatch.setattr(_material, "_contests", {})
    seen, one = content.exercise(id).seen, object()
    assert seen is not None
    assert (seen.words, seen.kind, seen.get()) == (*SEEN[id], None)
    seen.put(one)
    assert seen.get() is one


def test_five_works_by_hand() -> None:
    """03.3: operations and bytes of 2^24 numbers, of 4,096 x 4,096 weights and of 1,024 x 1,024 matrices."""
    n = 2**24
    assert {name: work.nbytes for name, work in _nb03_exercises.five_works().items()} == {
        "add": 12 * n, "sum": pytest.approx(4 * n, rel=1e-6), "softmax": 8 * n, "one row": pytest.approx(4 * n, rel=1e-3),
        "matmul": 12 * 2**20,
    }  # fmt: skip
    assert _nb03_exercises.five_works()["one row"].flops == 2 * n + 4096  # and a bias
    assert _nb03_exercises.five_works()["matmul"].flops == 2**31


def test_warps_that_diverge_by_hand() -> None:
    """01.3: side by side all 16, by warps none, and the one in which the first hundred end."""
    assert _nb01_exercises._divergent_warps() == [16, 0, 1]
    assert _nb01_exercises._expected(np.array([5.0, 7.0, 9.0, 11.0])).tolist() == [10.0, -7.0, 18.0, -11.0]


def test_the_loop_is_given_numbers_of_the_logistic_map() -> None:
    """02.2: 65,536 of them between 0.1 and 0.9, float32."""
    (((_, a), _),) = asked("02.2")
    assert (a.dtype, a.shape) == (np.float32, (65_536,))
    assert a == pytest.approx(0.1 + 0.8 * np.arange(65_536) / 65_535, rel=1e-6)


def test_three_links_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """02.5: quick and wide to slow and narrow, with noise of 3 %; the line is tried at five sizes, the largest first."""
    sizes: list[int] = []
    judge = _nb02_exercises._judge_size
    monkeypatch.setattr(_nb02_exercises, "_judge_size", lambda size, *rest: (sizes.append(size), judge(size, *rest))[1])
    calls = asked("02.5")
    assert len(calls) == 3
    for ((nbytes, seconds), _), (latency, bandwidth, seed) in zip(calls, ((5e-6, 50e9, 1), (12e-6, 12e9, 2), (30e-6, 6e9, 3)), strict=True):
        link = transfer.link("pcie4-x16", latency_seconds=latency, bandwidth_bytes_per_second=bandwidth)
        points = link.sweep(noise_ratio=0.03, seed=seed).select()
        assert nbytes.tolist() == [point.nbytes for point in points]
        assert seconds.tolist() == [point.median_seconds for point in points]
    assert sizes == [700 * 2**20, 96 * 2**20, 700_000, 24_000, 1500] * 3


def test_the_settings_of_the_straight_line() -> None:
    """03.8: 65,536 numbers; ordinary ones, negative ones, and ones where a lost term would show. Of them half are left to count."""
    calls = asked("03.8")
    settings = [(0.5, 2.0, 3.0, 1.0), (-1.0, 0.25, -2.0, 0.5), (10.0, 5.0, 0.5, -7.0)]
    assert [given[1:] for given, _ in calls] == [*settings, settings[0], settings[0]]
    assert [len(given[0]) for given, _ in calls] == [65_536] * 4 + [32_768]


def test_gradients_end_beside_powers_of_two() -> None:
    """05.7: 500 of each set, 40 of them zero; a thousandth beside a power, exactly on it, and so near below that 65,520 comes first."""
    calls = asked("05.7")
    ends = [(-34, -1.001, -4, 0.999), (-29, 1.001, 3, -0.999), (-40, -1.0, -18, 0.999), (-26, 1.001, 9, 0.9999)]
    for ((gradients,), _), (low, smallest, high, largest) in zip(calls, ends, strict=True):
        kept = gradients[gradients != 0]
        by_size = kept[np.argsort(np.abs(kept))]
        assert (len(gradients), len(kept)) == (500, 460)
        assert (by_size[0], by_size[-1]) == (smallest * 2.0**low, largest * 2.0**high)
        assert np.abs(by_size[1]) > 4 * np.abs(by_size[0])
        assert np.abs(by_size[-1]) > 4 * np.abs(by_size[-2])
    assert [found for _, found in calls] == [(2.0**9, 2.0**20), (2.0**4, 2.0**13), (2.0**16, 2.0**34), (2.0, 2.0**6)]


def test_the_rescued_run_has_forty_batches() -> None:
    """05.9: of 64 digits each, one behind the other, and from the front again where the next would not be full."""
    data = training.task("digits-mlp").train
    batches = _nb05_rescue._batches()
    assert [len(y) for _, y in batches] == [64] * 40
    for k in (0, 1, 20, 39):
        start = 64 * k % (len(data) - 64)
        assert torch.equal(batches[k][1], data[slice(start, start + 64)][1])
    assert 1.5 < 40 * 64 / len(data) < 2.5  # about two passes


def test_the_epoch_is_the_same_each_time() -> None:
    """06.7: a small network, SGD at 0.1 and eight batches of 16, whatever was drawn before; nobody else's random numbers move."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    (model, optimizer, batches), (other, _, same) = _nb06_exercises._training(), _nb06_exercises._training()
    assert torch.equal(torch.get_rng_state(), before)
    assert [tuple(p.shape) for p in model.parameters()] == [(16, 8), (16,), (3, 16), (3,)]
    assert (type(optimizer), optimizer.defaults["lr"]) == (torch.optim.SGD, 0.1)
    assert [(tuple(x.shape), tuple(y.shape)) for x, y in batches] == [((16, 8), (16,))] * 8
    assert {int(label) for _, y in batches for label in y} == {0, 1, 2}
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for one, two in zip(batches, same, strict=True) for a, b in zip(one, two, strict=True))


def test_what_memory_is_recovered_from() -> None:
    """06.14: two that halve to 256, one that fits at once, one that is no power of two; then a room too small for one item."""
    assert [given[1] for given, _ in asked_to_recover()][:5] == [1024, 100, 4096, 1000, 4]


def asked_to_recover() -> list[tuple[tuple[Any, ...], Any]]:
    """The calls, one of which ends with an error."""
    answer, calls = solved("06.14"), list[Any]()

    def watched(*given: Any) -> Any:
        calls.append((given, None))
        return answer(*given)

    assert said("06.14", watched)[0] == "passed"
    return calls


@pytest.mark.parametrize("batch", [-1, 2.5, 0.5, "4", True, None])
def test_a_step_takes_a_whole_batch(batch: Any) -> None:
    """06.14: half an item is none; a step on no items is told apart, for it would succeed."""
    from gpulab.errors import InputError

    with pytest.raises(InputError, match=r"step: a batch of .*expected a whole number from 1\. Halve with //"):
        _nb06_memory._Attempts().step(batch)
    with pytest.raises(Refused, match="a loss of nan"):
        _nb06_memory._Attempts().step(0)


def test_weights_to_round_have_rows_of_all_widths() -> None:
    """07.6: one with a row of zeros, one as it is, one whose rows are up to 10,000 times narrower, one that is all positive."""
    calls = asked("07.6")
    assert [bits for (_, bits), _ in calls] == [8, 4, 2] * 5
    dead, plain, spread, shifted, negative = (calls[3 * k][0][0] for k in range(5))
    assert [tuple(each.shape) for each in (dead, plain, spread, shifted)] == [(6, 20)] * 3 + [(4, 30)]
    assert [bool((row == 0).all()) for row in dead] == [False, False, True, False, False, False]
    assert torch.equal(dead[[0, 1, 3, 4, 5]], plain[[0, 1, 3, 4, 5]])
    assert (spread / plain)[:, 0].tolist() == pytest.approx([1, 0.01, 10, 0.1, 1, 0.001])
    assert 0.5 <= float(shifted.min()) < float(shifted.max()) < 1.5
    assert torch.equal(negative, -spread)


def test_three_tables_are_translated() -> None:
    """10.4: 40 rows of six columns far from zero, of which another one goes with the first each time: i is 3, 5 and 2."""
    calls = asked("10.4")
    for ((x,), found), place in zip(calls, (3, 5, 2), strict=True):
        assert (x.shape, x.dtype, len(found)) == ((40, 6), np.float32, place)
        assert np.argmax(np.corrcoef(x, rowvar=False)[0, 1:]) + 1 == place
        assert (x.mean(axis=0) > 4).all()
        assert np.corrcoef(x, rowvar=False)[0, place] > 0.85
    assert np.ptp([x.mean(axis=0) for ((x,), _) in calls]) > 20


TOLD = {
    "01.6": "10 blocks, 40 of 48 warps, limited by registers, the most of all.",  # 65,536 // (48 x 128) blocks of four warps
    "01.7": "40 registers and 37.0 KiB keep 75% on 9.0: one register or one KiB more, and a whole block less fits.",
    "02.8": "In 16 x 16.0 MiB you reach 92% of the ideal gain (MODELLED over pcie4-x16).",  # 16 x 0.655 + 0.646 ms for 2 x 10.334 ms
    "03.8": "2.00 MiB became 1.00 MiB in 2 operators: 50% of the traffic, the same numbers.",  # eight and four arrays of 256 KiB
    "03.11": "A sum gains at most 200x and a product 600x on these processors; with the copies it is 1.24x and 155x.",
    "04.4": "4.0 sectors for each request, as few as 32 floats can take: the lanes of a warp take neighbours.",
    "04.14": "144 KiB instead of 1.02 MiB: each element that is loaded is used by 16 threads.",
    "06.5": "5 workers, each 2 ahead: the accelerator waits 6.2% of the time (MODELLED).",  # 2 ms of copying before each step of 30 ms
    "07.10": "A convolution has 1/116,508 of the linear layer's weights at 32x32: the same few at each place, and none from afar.",
    "08.10": "1.2 billion parameters on 8 ranks: 20.7 GiB a rank become 5.03 GiB, and 2.79 GiB of that are activations that no stage "
    "splits.",
    "10.2": "4.02 ms: compiled before, waited for, and nothing else in it. The call itself returned after 20.0 us.",
    # 400 x 32 x 4 bytes once, and 4 bytes; in the loop 40 times, and 20 times 4 + 128 bytes.
    "10.6": "22 runs, 50.0 KiB fed and 4 B fetched; the loop had 1.95 MiB fed and 2.58 KiB fetched.",
}  # fmt: skip


@pytest.mark.parametrize("id", TOLD)
def test_what_a_right_answer_is_told(id: str) -> None:
    """Its numbers by hand."""
    assert said(id, solved(id)) == ("passed", TOLD[id])


# Of each launch: what it is called, the grid, the block. Whole blocks, a last one that is partly full, one alone, one of a single element.
TRIALS: dict[str, tuple[Any, list[tuple[str, Any, Any]]]] = {
    "04.2": (
        _nb04_repairs._difference_trials,
        [("for 100 elements", 1, 128), ("for 256 elements", 2, 128), ("for 1,000 elements", 8, 128), ("for 1 elements", 1, 128)],
    ),
    "04.4": (
        _nb04_repairs._centre_trials,
        [
            (f"for {rows} x {columns} elements in blocks of 64 threads", grid, 64)
            for rows, columns, grid in ((128, 64, 2), (100, 96, 2), (33, 256, 1), (70, 50, 2))
        ],
    ),
    "04.6": (_nb04_repairs._sum_trials, [("with 1 block", 1, 256), ("with 5 blocks", 5, 256)]),
    "04.7": (_nb04_repairs._rotate_trials, [(f"for {n} elements", grid, 64) for n, grid in ((128, 2), (100, 2), (65, 2), (30, 1))]),
    "04.8": (_nb04_puzzles._scan_trials, [(f"for {n} elements", grid, 128) for n, grid in ((128, 1), (384, 3), (200, 2))]),
    "04.10": (
        _nb04_puzzles._blur_trials,
        [(f"for {y} x {x} elements", grid, (16, 16)) for y, x, grid in ((48, 48, (3, 3)), (40, 50, (4, 3)), (16, 5, (1, 1)))],
    ),
    "04.12": (
        _nb04_puzzles._softmax_trials,
        [
            ("for rows of 1000 elements", 3, 128), ("for rows of 100 elements", 2, 128),
            ("for rows of elements near 1,000, whose exponentials overflow unless the largest is subtracted first", 2, 128),
            ("for rows of elements near -1,000, whose exponentials all vanish unless the largest is subtracted first: it is one of the "
             "row's, and not 0", 2, 128),
        ],
    ),
    "04.14": (_nb04_puzzles._matmul_trials, [("for 64 x 64 matrices", (4, 4), (16, 16)), ("for 40 x 40 matrices", (3, 3), (16, 16))]),
}  # fmt: skip


def test_whole_numbers_of_a_kernel_are_of_one_digit() -> None:
    """04: from -9 to 9, each of them; what results are written over is 77, which none of them is."""
    numbers = _nb04_repairs.whole(np.random.default_rng(0), 100, 50)
    assert (numbers.shape, numbers.dtype, np.unique(numbers).tolist()) == ((100, 50), np.float32, list(range(-9, 10)))
    assert set(_nb04_repairs.held(numbers).ravel().tolist()) == {77.0}


@pytest.mark.parametrize("id", TRIALS)
def test_a_kernel_is_tried_with_these_launches(id: str) -> None:
    """Sums of whole numbers are compared for equality; only a softmax may be off, by a hundred-thousandth of the largest."""
    trials, launches = TRIALS[id]
    made = trials()
    assert [(trial.words, trial.grid, trial.block) for trial in made] == launches
    assert {trial.tolerance for trial in made} == {1e-5 if id == "04.12" else 0.0}


def test_rows_of_a_softmax_by_size_and_place() -> None:
    """04.12: three of a thousand and two of a hundred near 0, two of 320 near 1,000 and two of 200 near -1,000."""
    rows = [trial.arguments[0] for trial in _nb04_puzzles._softmax_trials()]
    assert [(x.shape, round(float(x.mean()), -1)) for x in rows] == [((3, 1000), 0), ((2, 100), 0), ((2, 320), 1000), ((2, 200), -1000)]
