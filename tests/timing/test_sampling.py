"""The sampler and its loops on scripted clocks: exact times, no sleeping, no real clock."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab.errors import InputError
from gpulab.timing import sampling
from gpulab.timing._loop import make_waiting_loops
from gpulab.timing.sampling import MOST_KEPT, Sampled, make_loops, sample, sample_in_turns


class Clock:
    """A clock that moves when told, by ``per_read`` at each reading, and shows only whole steps of ``step``."""

    def __init__(self, per_read: float = 0.0, step: float = 0.0) -> None:
        self.now, self.per_read, self.step, self.reads = 0.0, per_read, step, 0

    def __call__(self) -> float:
        """Return the time."""
        self.now += self.per_read
        self.reads += 1
        return self.now // self.step * self.step if self.step else self.now


def work(clock: Clock, seconds: float | Callable[[], float], finish: float = 0.0) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return a call that takes ``seconds`` and leaves ``finish`` seconds of work to a device, and the device's synchronise."""
    pending = 0.0

    def call() -> None:
        nonlocal pending
        clock.now += seconds() if callable(seconds) else seconds
        pending += finish

    def synchronize() -> None:
        nonlocal pending
        clock.now += pending
        pending = 0.0

    return call, synchronize


def sampled(clock: Clock, seconds: float | Callable[[], float], finish: float = 0.0, **options: object) -> Sampled:
    """Sample such a call through its loops."""
    loops = make_loops(work(clock, seconds, finish)[0], (), lambda: None, clock)
    if finish:
        call, synchronize = work(clock, seconds, finish)
        loops = make_loops(call, (), synchronize, clock)
    return sample(loops.work, clock, empty=loops.empty, **options)


@given(st.integers(0, 60), st.lists(st.integers(), max_size=5))
@settings(max_examples=60, deadline=None)
def test_loops_call_as_often_as_asked(calls: int, args: list[int]) -> None:
    """The unrolled loop makes exactly so many calls, with the arguments given; its twin makes none."""
    seen = []
    loops = make_loops(lambda *given: seen.append(given), tuple(args), lambda: None, Clock())
    loops.empty(calls)
    assert seen == []
    loops.work(calls)
    assert seen == [tuple(args)] * calls


def test_loops_split_returned_from_finished() -> None:
    """Three calls of 2 s that leave 5 s each to the device: returned after 6 s, finished after 21 s."""
    clock = Clock()
    call, synchronize = work(clock, 2.0, finish=5.0)
    assert make_loops(call, (), synchronize, clock).work(3) == (6.0, 21.0)


def test_each_result_is_waited_for_where_the_library_asks() -> None:
    """Three calls of 2 s, 5 s until each result is there, 1 s for the device: returned after 6 s, finished after 24; none without work."""
    clock = Clock()
    call, _ = work(clock, 2.0)
    seen: list[object] = []

    def waits(seconds: float) -> Callable[..., None]:
        def wait(*given: object) -> None:
            seen.extend(given)
            clock.now += seconds

        return wait

    loops = make_waiting_loops(lambda value: (call(), value)[1], ("result",), waits(1.0), waits(5.0), clock)
    assert loops.work(3) == (6.0, 24.0)
    assert seen == ["result"] * 3
    assert loops.empty(3) == (0.0, 3.0)


def test_steady_call_stops_at_a_third_of_the_deadline() -> None:
    """Calls of 1/1024 s (exact in binary) are precise at the first look, a third of 2 s: 683 calls, of one length."""
    result = sampled(Clock(), 1 / 1024)
    assert result.stopped_by == "precision"
    assert len(result.samples_seconds) == 683  # the first whole number of calls in 2/3 s: 1024 * 2/3 = 682.67
    assert result.interval_seconds == (1 / 1024, 1 / 1024)
    assert (result.calls_per_sample, result.kept_every, result.overhead_seconds) == (1, 1, 0.0)
    assert result.sample_starts_seconds[:3].tolist() == [0.0, 1 / 1024, 2 / 1024]


def test_launch_and_finish_are_kept_apart() -> None:
    """A call that returns after 1 ms and finishes after 4 has both, for each sample."""
    result = sampled(Clock(), 1 / 1024, finish=3 / 1024)
    assert set(result.launch_seconds) == {1 / 1024}
    assert set(result.samples_seconds) == {4 / 1024}


def test_noisy_call_runs_to_the_deadline() -> None:
    """Noise of 50 % can't be brought to 2 % in 2 s: all of the deadline is used, and the call in flight finished."""
    rng = np.random.default_rng(0)
    clock = Clock()
    result = sampled(clock, lambda: 1e-3 * float(np.exp(0.5 * rng.standard_normal())))
    assert result.stopped_by == "deadline"
    assert 2.0 <= clock.now < 2.02
    low, high = result.interval_seconds
    assert low < 1e-3 < high
    assert high - low > 0.02e-3


def test_precision_that_is_asked_is_reached() -> None:
    """Stopping by precision means that the interval is at most so wide, and wider demands stop earlier."""
    counts = []
    for width in (0.05, 0.02, 0.01):
        rng = np.random.default_rng(1)
        result = sampled(Clock(), lambda rng=rng: 1e-3 * (1 + 0.1 * float(rng.standard_normal())), relative_width=width, deadline=20.0)
        low, high = result.interval_seconds
        assert result.stopped_by == "precision"
        assert high - low <= width * np.median(result.samples_seconds)
        counts.append(len(result.samples_seconds))
    assert counts[0] <= counts[1] <= counts[2]


def test_own_time_of_the_clock_is_subtracted_exactly() -> None:
    """A clock that takes 1/65536 s to read adds one reading to each launch and two to each finish; none is left."""
    result = sampled(Clock(per_read=2**-16), 2**-8)
    assert result.overhead_seconds == 2 * 2**-16
    assert set(result.samples_seconds) == {2**-8}
    assert set(result.launch_seconds) == {2**-8}


def test_short_calls_are_batched_until_a_sample_is_long_against_the_clock() -> None:
    """Calls of 0.1 us on a clock with steps of 1 us: a sample takes a hundred steps or more, so it is right within 2 %."""
    result = sampled(Clock(step=1e-6), 1e-7, deadline=0.05)
    assert result.calls_per_sample >= 1000
    assert np.median(result.samples_seconds) == pytest.approx(1e-7, rel=0.02)
    assert result.samples_seconds * result.calls_per_sample == pytest.approx(result.calls_per_sample * 1e-7, abs=1.001e-6)


def test_call_far_longer_than_the_step_is_not_batched() -> None:
    """Calls of 1 ms on a clock that takes 1 us to read are sampled one by one."""
    assert sampled(Clock(per_read=1e-6), 1e-3, deadline=0.2).calls_per_sample == 1


def test_times_are_never_negative() -> None:
    """A call shorter than the overhead's own wobble gives zero, and not less."""
    rng = np.random.default_rng(0)
    run = lambda calls: (0.0, float(rng.random()) * 1e-3)  # noqa: E731
    clock = Clock(per_read=1e-4)
    result = sample(run, clock, empty=run, deadline=0.5)
    assert (result.samples_seconds >= 0).all()
    assert (result.launch_seconds >= 0).all()
    assert (result.samples_seconds == 0).any()


def test_clock_that_does_not_move_is_refused() -> None:
    """On a clock that stands still the deadline would never come, so the sampling ends with one sentence."""
    with pytest.raises(InputError, match="stood still during 65,536 calls"):
        sampled(Clock(), 0.0)


def test_work_no_longer_than_the_empty_loop_gives_no_interval() -> None:
    """Where the loop alone takes as long as with the work, nothing is left, and the reason says so."""
    clock = Clock()

    def same(calls: int) -> tuple[float, float]:
        clock.now += 1e-3 * calls
        return 1e-3 * calls, 1e-3 * calls

    result = sample(same, clock, empty=same, deadline=0.2)
    assert not result.samples_seconds.any()
    assert result.interval_seconds is None
    assert "no further in 1 call than without" in result.no_interval_reason


@pytest.mark.parametrize(("seconds", "samples"), [(0.9, 3), (1.5, 3), (2.0, 2), (2.5, 2), (7.0, 1)])
def test_slow_calls_give_a_few_samples_and_no_interval(seconds: float, samples: int) -> None:
    """Three samples where three calls take less than three times the deadline of 2 s, else what does; at least one; and a reason."""
    result = sampled(Clock(), seconds)
    assert result.samples_seconds.tolist() == pytest.approx([seconds] * samples)
    assert result.stopped_by == "deadline"
    assert result.interval_seconds is None
    assert "needs 20" in result.no_interval_reason


@pytest.mark.parametrize("stop", [0.07, 0.08, 0.2])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_first_sample_that_was_stopped_is_not_the_only_one(stop: float, rows: int) -> None:
    """Calls of 1 ms, the first of 1 ms and a stop longer than the deadline of 50 ms: three samples, whose median is the call's."""
    clock = Clock()

    def run(calls: int) -> tuple[float, float]:
        seconds = calls * 1e-3 + (0.0 if clock.now else stop)
        clock.now += seconds
        return seconds, seconds

    for one in sample_in_turns([run] * rows, clock, call_seconds=[1e-3] * rows, deadline=0.05):
        assert (len(one.samples_seconds), one.stopped_by) == (3, "deadline")
        assert np.median(one.samples_seconds) == pytest.approx(1e-3)


def test_a_stop_between_two_samples_ends_nothing_either() -> None:
    """The second of the samples lasts 9 s, with a deadline of 2 s: the third call of 0.9 s still fits, without a hint from before."""
    seconds = iter([0.9, 9.0, 0.9])
    assert sampled(Clock(), lambda: next(seconds)).samples_seconds.tolist() == pytest.approx([0.9, 9.0, 0.9])


def test_stop_is_asked_before_each_sample() -> None:
    """Stopping after seven questions leaves seven samples; stopping at once leaves none, with a reason."""
    asked = iter(range(100))
    result = sampled(Clock(), 1e-3, stop=lambda: next(asked) == 7)
    assert (result.stopped_by, len(result.samples_seconds)) == ("stopped", 7)
    nothing = sampled(Clock(), 1e-3, stop=lambda: True)
    assert (nothing.stopped_by, len(nothing.samples_seconds), nothing.interval_seconds) == ("stopped", 0, None)
    assert nothing.no_interval_reason.startswith("0 samples")


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_errors_of_the_call_pass(error: type[BaseException]) -> None:
    """An interrupt or an error in the fifth call comes out as it is."""
    calls = iter(range(10))

    def fails() -> float:
        if next(calls) == 4:
            raise error
        return 1e-3

    with pytest.raises(error):
        sampled(Clock(), fails)


def test_many_samples_are_thinned_and_both_levels_stay() -> None:
    """Forty thousand calls that alternate between two times: memory stays bounded, the samples span the deadline, both are seen alike."""
    turn = iter(range(10**6))
    clock = Clock()
    result = sampled(clock, lambda: 40e-6 if next(turn) % 2 else 60e-6, relative_width=1e-6)
    assert result.kept_every == 8  # 40,000 / 8 = 5,000: between half of 8,192 and all
    assert MOST_KEPT / 2 <= len(result.samples_seconds) <= MOST_KEPT
    assert np.mean(result.samples_seconds > 50e-6) == pytest.approx(0.5, abs=0.03)
    assert (np.diff(result.sample_starts_seconds) > 0).all()
    assert result.sample_starts_seconds[-1] > 1.99


def test_progress_rises_from_zero_to_one() -> None:
    """Progress is told about twenty times a second of the clock, never falls, and ends at most at 1."""
    told: list[tuple[float, str]] = []
    rng = np.random.default_rng(0)
    sampled(Clock(), lambda: 1e-3 * float(np.exp(0.5 * rng.standard_normal())), progress=lambda *step: told.append(step))
    fractions = [fraction for fraction, _ in told]
    assert 30 <= len(told) <= 41
    assert fractions == sorted(fractions)
    assert fractions[0] < 0.01
    assert 0.95 < fractions[-1] <= 1.0
    assert told[-1][1].endswith("samples")


def test_taking_turns() -> None:
    """Two functions run one sample each in turn, get as many samples, and share the deadline."""
    clock, order = Clock(), []

    def run(name: str, seconds: float) -> Callable[[int], tuple[float, float]]:
        def once(calls: int) -> tuple[float, float]:
            order.append(name)
            clock.now += seconds * calls
            return seconds * calls, seconds * calls

        return once

    first, second = sample_in_turns([run("a", 2**-10), run("b", 2**-8)], clock)
    assert "".join(order).startswith("abababab")
    assert order.count("a") == order.count("b") == len(first.samples_seconds) == len(second.samples_seconds)
    assert set(first.samples_seconds) == {2**-10}
    assert set(second.samples_seconds) == {2**-8}
    assert first.stopped_by == second.stopped_by == "precision"
    assert clock.now == pytest.approx(2 / 3, abs=2**-7)


@pytest.mark.parametrize("rounds", range(MOST_KEPT - 1, MOST_KEPT + 6))
def test_a_batched_row_and_one_of_single_calls_keep_the_samples_of_the_same_rounds(rounds: int) -> None:
    """Calls of 10 ns and of 1 us, a clock that costs 1 ns: only one is batched. Wherever the sampling ends, both have as many samples,
    and those of one pair began within one round: 100 ns and more of the one, 1 us of the other, some readings of the clock.
    """
    clock, left = Clock(per_read=1e-9), iter(range(rounds))

    def run(seconds: float) -> Callable[[int], tuple[float, float]]:
        def once(calls: int) -> tuple[float, float]:
            clock.now += seconds * calls
            return seconds * calls, seconds * calls

        return once

    short, long = sample_in_turns([run(1e-8), run(1e-6)], clock, deadline=100.0, relative_width=1e-9, stop=lambda: next(left, None) is None)
    assert short.calls_per_sample > long.calls_per_sample == 1
    assert len(short.samples_seconds) == len(long.samples_seconds)
    apart = long.sample_starts_seconds[1:] - short.sample_starts_seconds[1:]  # the first round also looks for the batch
    assert 0 < apart.min() <= apart.max() < 1e-6


@pytest.mark.parametrize(
    ("seconds", "patience", "samples"),
    [(0.5, 100.0, 20), (0.5, 10.0, 9), (0.5, 9.75, 9), (0.5, 0.0, 3), (2**-5, 100.0, 32), (2.0, 3.0, 1), (0.75, 4.0, 3)],
)
def test_the_fewest_samples_are_taken_past_the_deadline(seconds: float, patience: float, samples: int) -> None:
    """By hand, two functions, 2 s: 20 turns of 1 s; 9 in less than 10 s; 3 without patience; 32 in time; one of 4 s; 3 of 1.5."""
    clock = Clock()

    def run(calls: int) -> tuple[float, float]:
        clock.now += seconds * calls
        return seconds * calls, seconds * calls

    both = sample_in_turns([run, run], clock, relative_width=1e-9, deadline=2.0, fewest=20, patience=patience)
    assert [len(one.samples_seconds) for one in both] == [samples, samples]
    assert {one.stopped_by for one in both} == {"deadline"}
    assert all((one.interval_seconds is not None) == (samples >= 20) for one in both)


@pytest.mark.parametrize("option", [{"relative_width": 0.0}, {"deadline": -1.0}, {"deadline": float("nan")}, {"relative_width": "2 %"}])
def test_settings_that_make_no_sense_are_refused(option: dict[str, object]) -> None:
    """Widths and deadlines must be positive numbers, and the error says which was not."""
    with pytest.raises(InputError, match=f"sample: {next(iter(option))}=.*expected a positive number"):
        sampled(Clock(), 1e-3, **option)


def test_checks_are_few() -> None:
    """From a third of the deadline to its end the interval is looked at eight times: each look is 15 % after the last (1.15^8 > 3)."""
    clock = Clock()
    rng = np.random.default_rng(0)
    looks = []
    from gpulab.timing import sampling

    original = sampling.is_precise
    try:
        sampling.is_precise = lambda *given: looks.append(clock.now) or original(*given)
        sampled(clock, lambda: 1e-3 * float(np.exp(0.5 * rng.standard_normal())))
    finally:
        sampling.is_precise = original
    assert len(looks) == 8
    assert looks[0] == pytest.approx(2 / 3, abs=0.01)


@pytest.mark.parametrize(
    ("dead_below", "deadline", "asked"),
    [
        # 0.1 us a call, and 1 ms is a hundred ticks: sixteen times as many at most, then a fifth more than it takes by the last batch.
        (0, 10.0, [1, 16, 256, 4096, 12_000]),
        (0, 0.024, [1, 16, 256, 4096]),  # 0.4 ms are a sixtieth of that deadline, and long enough
        (10, 0.024, [1, 2, 4, 8, 16, 256, 4096]),  # a batch in which the clock stood still is doubled
    ],
)
def test_how_many_calls_make_a_sample(dead_below: int, deadline: float, asked: list[int]) -> None:
    """One call is tried, then batches, the least of three each; the last size is that of the first sample."""
    told: list[int] = []

    def run(calls: int) -> tuple[float, float]:
        told.append(calls)
        return 0.0, 1e-7 * calls if calls >= dead_below else 0.0

    column = sampling._Column(run, None, Clock())
    column.choose_calls(1e-5, deadline)
    first, *batches = asked
    assert told == pytest.approx([first, *(calls for calls in batches for _ in range(3)), asked[-1]], abs=1)
    assert (column.calls, column.count) == (told[-1], 1)


def test_a_clock_that_is_set_back_has_not_ticked() -> None:
    """Nothing, then a second less than nothing: the 4 ms that come after those are the clock's tick, and 0.4 s a sample's length."""
    seconds = iter([0.0, -1.0, 4e-3])

    def run(calls: int) -> tuple[float, float]:
        return 0.0, next(seconds, 1e-3 * calls)

    column = sampling._Column(run, None, Clock())
    column.choose_calls(0.0, 1e3)
    assert column.calls == pytest.approx(1.2 * 400, abs=1)


def test_progress_ends_at_one_however_late_it_is() -> None:
    """Three calls of 0.6 s are made in a deadline of 1 s, as the fewest that there are: 60 % of it, then all."""
    told: list[float] = []
    sampled(Clock(), 0.6, deadline=1.0, progress=lambda fraction, text: told.append(round(fraction, 6)))
    assert sorted(set(told)) == [0.6, 1.0]


def test_progress_is_due_each_twentieth_of_a_second() -> None:
    """At once, and then 50 ms after it was told, however often somebody asks."""
    schedule = sampling._Schedule(10.0, 2.0, 0.02, [1.0], 3, 0.0)
    times = [10.0, 10.0, 10.049, 10.051, 10.1, 10.102, 11.0]
    assert [schedule.progress_is_due(now) for now in times] == [True, False, False, True, False, True, True]


def test_the_empty_loop_runs_after_each_of_101_samples_and_then_after_every_16th() -> None:
    """With as many calls as the sample had, and not before it."""
    log: list[str] = []

    def loop(name: str) -> Callable[[int], tuple[float, float]]:
        return lambda calls: (log.append(name), (0.0, float(calls)))[1]

    column = sampling._Column(loop("work"), loop("empty"), Clock())
    column.choose_calls(1e-3, 1.0)
    for _ in range(129):
        column.take()
    samples = "".join("e" if name == "empty" else "w" for name in log)
    assert samples == "we" * 101 + "w" * 11 + "e" + "w" * 16 + "e" + "w" * 2  # 112 and 128 of 130


def test_sixty_samples_are_the_fewest_that_can_be_precise() -> None:
    """Calls of 1/64 s are 43 at the first look: their intervals are not asked for before there are 60."""
    result = sampled(Clock(), 1 / 64)
    assert (result.stopped_by, len(result.samples_seconds)) == ("precision", 60)


def test_a_tick_is_the_shortest_step_of_thirty_two_readings() -> None:
    """Steps of 5, none, backwards by 1 and of 2: two; a clock that stands still has none."""
    readings = iter([0.0, 5.0, 5.0, 4.0, 6.0, *[6.0] * 27, 6.5])
    assert sampling._tick(lambda: next(readings)) == 2.0
    assert list(readings) == [6.5]
    assert sampling._tick(lambda: 1.0) == 0.0
