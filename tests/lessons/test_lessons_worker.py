"""The worker: submit returns before the work is done, synchronize waits, errors show late."""

from __future__ import annotations

import threading

import pytest

from gpulab.lessons import WorkQueue


def test_submit_returns_before_the_work_is_done():
    """The call is back while the work still waits for a gate; synchronize returns only after it."""
    gate, done = threading.Event(), threading.Event()
    queue = WorkQueue()
    queue.submit(lambda: (gate.wait(10), done.set()))
    assert not done.is_set()
    assert repr(queue) == "<WorkQueue, busy>"
    gate.set()
    queue.synchronize()
    assert done.is_set()
    assert repr(queue) == "<WorkQueue, idle>"


def test_a_fresh_queue_is_idle():
    """Nothing was submitted, so there is nothing to wait for."""
    queue = WorkQueue()
    assert repr(queue) == "<WorkQueue, idle>"
    queue.synchronize()


def test_calls_run_in_order():
    """Each call that was waited for ran, in order."""
    seen: list[int] = []
    queue = WorkQueue()
    for number in range(5):
        queue.run(seen.append, number)
    assert seen == [0, 1, 2, 3, 4]


def test_a_thousand_submits_leave_two_calls():
    """While one runs one waits, and later calls take its place."""
    gate, started = threading.Event(), threading.Event()
    count: list[int] = []
    queue = WorkQueue()
    queue.submit(lambda: (started.set(), gate.wait(10), count.append(-1)))
    assert started.wait(10)
    for number in range(1000):
        queue.submit(count.append, number)
    gate.set()
    queue.synchronize()
    assert count == [-1, 999]


def test_an_error_shows_at_synchronize_and_only_once():
    """As on a GPU, the failing call returns at once; the wait raises; the queue goes on working."""
    queue = WorkQueue()
    queue.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        queue.synchronize()
    queue.synchronize()
    seen: list[int] = []
    queue.run(seen.append, 1)
    assert seen == [1]


def test_synchronize_waits_for_the_call_that_runs():
    """Nothing waits any more, and the last call still runs: synchronize is not back before its end. The worker is a daemon."""
    gate, started = threading.Event(), threading.Event()
    queue = WorkQueue()
    queue.submit(lambda: (started.set(), gate.wait(10)))
    assert started.wait(10)
    waiting = threading.Thread(target=queue.synchronize)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    gate.set()
    waiting.join(10)
    assert not waiting.is_alive()
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "gpulab-worker")
