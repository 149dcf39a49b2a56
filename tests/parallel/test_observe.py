"""An observer records each collective's name, payload, group and time, whatever code calls it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gpulab.parallel import CollectiveCall, observe, unobserved

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of this process alone: every operator runs, nothing is sent."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def entered(call: Callable[[], Any]) -> tuple[CollectiveCall, ...]:
    """Return the calls seen while ``call`` ran; each has ended, in order, in this group."""
    with observe() as seen:
        call()
    end = time.monotonic() + 10  # gloo's own thread may report an end after the call returned
    while any(c.seconds is None for c in seen.calls) and time.monotonic() < end:
        time.sleep(0.001)
    assert (
        [c.number for c in seen.calls],
        all(c.group == (0,) and c.error is None and c.seconds >= 0 for c in seen.calls),
    ) == (list(range(len(seen.calls))), True)
    assert seen.in_flight == ()
    return seen.calls


FULL = torch.ones(100)  # 400 bytes in float32


CASES: list[tuple[Callable[[], Any], tuple[str, str, int, int]]] = [
    (lambda: dist.all_reduce(FULL), ("all_reduce", "float32", 400, 400)),
    (lambda: dist.all_reduce(FULL.bfloat16()), ("all_reduce", "bfloat16", 200, 200)),
    (lambda: dist.all_reduce(torch.eye(2).to_sparse()), ("all_reduce", "float32", 40, 40)),
    (lambda: dist.broadcast(FULL, 0), ("broadcast", "float32", 400, 400)),
    (lambda: dist.reduce(FULL, 0), ("reduce", "float32", 400, 400)),
    (lambda: dist.all_gather([FULL], FULL), ("all_gather", "float32", 400, 400)),
    (lambda: dist.gather(FULL, [FULL], 0), ("gather", "float32", 400, 400)),
    (lambda: dist.scatter(FULL, [FULL], 0), ("scatter", "float32", 400, 400)),
    (lambda: dist.reduce_scatter(FULL, [FULL]), ("reduce_scatter", "float32", 400, 400)),
    (lambda: dist.all_to_all_single(FULL, FULL), ("all_to_all", "float32", 400, 400)),
    (dist.barrier, ("barrier", "", 0, 0)),
]


@pytest.mark.parametrize(("call", "expected"), CASES)
def test_payloads_are_those_of_the_tensors(
    alone: None, call: Callable[[], Any], expected: tuple[str, str, int, int]
) -> None:
    """Name, dtype, input bytes and output bytes of a call equal those computed by hand."""
    (one,) = entered(call)
    assert ((one.name, one.dtype, one.input_bytes, one.output_bytes), one.payload_bytes) == (
        expected,
        expected[2],
    )


def test_a_work_is_in_flight_until_it_is_waited_for(alone: None) -> None:
    """Collectives in flight can be read; observers nest, and leave PyTorch unchanged."""
    before, found = dist.Work.wait, []
    with observe() as outer, observe() as inner:
        work = dist.reduce_scatter(torch.empty(4), [torch.ones(4)], async_op=True)
        found.extend(outer.in_flight)
        work.wait()
        with unobserved():
            dist.broadcast(torch.ones(1), 0)
        dist.barrier()
    dist.all_reduce(torch.ones(4))
    assert [(c.name, c.seconds) for c in found] == [("reduce_scatter", None)]
    for seen in (outer, inner):
        assert ([c.name for c in seen.calls], seen.in_flight, seen.entered) == (
            ["reduce_scatter", "barrier"],
            (),
            2,
        )
        ((number, begin, end),) = seen.waits[:1]
        assert (number, seen.calls[0].end_seconds, seen.calls[0].begin_seconds <= begin <= end) == (
            0,
            end,
            True,
        )
    assert dist.Work.wait is before
