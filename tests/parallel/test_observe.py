"""Every collective is seen with its name, payload, group and time, whoever entered it."""

import threading
import time

import pytest

from gpulab.errors import InputError

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

from gpulab.parallel import CollectiveCall, _observe, observe, unobserved  # noqa: E402
from gpulab.parallel._calls import COLLECTIVES, NAMES  # noqa: E402
from gpulab.parallel._observe import in_flight  # noqa: E402


@pytest.fixture
def alone():
    """A group of this process alone: every operator runs, nothing is sent."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_every_operator_of_this_torch_that_moves_data_has_a_name():
    """Torch's own list of communication operators, less those that are no collective, is the list that is looked for."""
    no_collective = {"c10d.check_for_nan", "_c10d_functional.wait_tensor"}
    spaces = ("c10d::", "_c10d_functional::")
    there = {name.split(".")[0].replace("::", ".") for name in torch._C._dispatch_get_all_op_names() if name.startswith(spaces)}
    there |= {name for name in NAMES if name.startswith("_dtensor.")}
    # An operator that is registered at use (by Python) may be missing there, never the other way round.
    assert {name for name in there if not name.startswith("_c10d_functional._")} - no_collective <= set(NAMES)


def entered(call, **options):
    """Return the calls seen while ``call`` ran, and what must hold of each: ended, in order, in this group."""
    with observe(**options) as seen:
        call()
    # Gloo tells that a call of C++'s is over from a thread of its own, which may come after the backward pass has returned.
    give_up = time.monotonic() + 10
    while any(c.seconds is None for c in seen.calls) and time.monotonic() < give_up:
        time.sleep(0.001)
    assert [c.number for c in seen.calls] == list(range(len(seen.calls)))
    assert all(c.group == (0,) and c.error is None and c.seconds >= 0 for c in seen.calls)
    assert seen.in_flight == ()
    return seen.calls


def test_payloads_are_those_of_the_tensors(alone):
    """Name, dtype, given and got bytes, by hand: 100 float32 are 400 bytes, 100 bfloat16 are 200."""
    full, half = torch.ones(100), torch.ones(100, dtype=torch.bfloat16)
    cases = [
        (lambda: dist.all_reduce(full), ("all_reduce", "float32", 400, 400)),
        (lambda: dist.all_reduce(half), ("all_reduce", "bfloat16", 200, 200)),
        (lambda: dist.broadcast(full, 0), ("broadcast", "float32", 400, 400)),
        (lambda: dist.reduce(full, 0), ("reduce", "float32", 400, 400)),
        (lambda: dist.all_gather([torch.empty(100)], full), ("all_gather", "float32", 400, 400)),
        (lambda: dist.gather(full, [torch.empty(100)], 0), ("gather", "float32", 400, 400)),
        (lambda: dist.scatter(torch.empty(100), [full], 0), ("scatter", "float32", 400, 400)),
        (lambda: dist.reduce_scatter(torch.empty(100), [full]), ("reduce_scatter", "float32", 400, 400)),
        (lambda: dist.all_to_all_single(torch.empty(100), full), ("all_to_all", "float32", 400, 400)),
        (dist.barrier, ("barrier", "", 0, 0)),
    ]
    for call, expected in cases:
        (one,) = entered(call)
        assert (one.name, one.dtype, one.input_bytes, one.output_bytes) == expected
        assert one.payload_bytes == max(expected[2:])
        assert one.name in COLLECTIVES


def test_functional_collectives_end_when_they_are_waited_for(alone):
    """Those that DTensor uses return before they are done; the end is the wait's, and the result counts as got."""
    from torch.distributed import _functional_collectives as functional

    def reduced():
        assert torch.equal(functional.all_reduce(torch.ones(10), "sum", dist.group.WORLD) + 1, torch.full((10,), 2.0))

    (one,) = entered(reduced)
    assert (one.name, one.end_from, one.input_bytes, one.output_bytes) == ("all_reduce", "wait", 40, 40)


def test_what_ddp_reduces_in_the_backward_pass_is_seen(alone):
    """Its reducer works in C++; its all-reduces of a 10 x 10 layer with bias sum to 440 bytes."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 10))
    calls = entered(lambda: model(torch.ones(2, 10)).sum().backward())
    assert sum(c.input_bytes for c in calls if c.name == "all_reduce") == 440


def test_objects_show_as_the_tensors_they_send(alone):
    """A gathered dictionary travels as its size (8 bytes) and its pickle."""
    calls = entered(lambda: dist.all_gather_object([None], {"a": 1}))
    assert [(c.name, c.dtype) for c in calls] == [("all_gather", "int64"), ("all_gather", "uint8")]
    assert calls[0].input_bytes == 8


def test_a_work_is_in_flight_until_it_is_waited_for(alone):
    """Gloo's reduce-scatter has no completion to ask for: it is in flight until Python waits, and any thread can read that."""
    found = []
    with observe() as seen:
        work = dist.reduce_scatter(torch.empty(4), [torch.ones(4)], async_op=True)
        looker = threading.Thread(target=lambda: found.extend(in_flight()))
        looker.start()
        looker.join()
        work.wait()
        assert seen.in_flight == ()
    assert [(c.name, c.seconds, c.end_from) for c in found] == [("reduce_scatter", None, "")]
    assert seen.calls[0].end_from == "wait"
    assert 0 <= seen.calls[0].waited_seconds <= seen.calls[0].seconds
    assert found[0].sentence == "reduce_scatter of 16 B in float32 among ranks 0"


def test_observers_nest_and_leave_nothing_behind(alone):
    """Both see the call, once each; afterwards torch waits as it did, and nothing is seen."""
    before = dist.Work.wait
    with observe() as outer, observe() as inner:
        dist.reduce_scatter(torch.empty(4), [torch.ones(4)])
        assert dist.Work.wait is not before
    dist.all_reduce(torch.ones(4))
    assert [len(outer.calls), len(inner.calls)] == [1, 1]
    assert all(observer.calls[0].end_from == "wait" for observer in (outer, inner))
    assert dist.Work.wait is before
    assert in_flight() == ()


def test_each_begin_and_end_is_told_at_once(alone):
    """A watcher gets the call when it begins (no end yet) and when it has ended."""
    told = []
    entered(lambda: dist.all_reduce(torch.ones(4)), tell=lambda what, call: told.append((what, call.number, call.seconds is None)))
    assert told == [("begin", 0, True), ("end", 0, False)]
    with pytest.raises(InputError, match="expected a function"):
        observe(tell=3)


def test_a_refused_collective_is_noted_with_its_error(alone):
    """A call that torch refuses in the operator ends there, and says so."""
    with observe() as seen, pytest.raises((RuntimeError, ValueError), match="size"):
        dist.all_gather([torch.empty(3)], torch.ones(4))
    (one,) = seen.calls
    assert one.end_from == "return"
    assert "size" in one.error
    assert seen.in_flight == ()


def test_sub_groups_keep_their_global_ranks_and_calls_go_through_json(alone):
    """The group is told by global ranks, and a call is a plain result."""
    group = dist.new_group([0])
    with observe() as seen:
        dist.broadcast(torch.ones(4), 0, group=group)
    (one,) = seen.calls
    assert (one.group, one.root) == ((0,), 0)
    assert CollectiveCall.from_dict(one.to_dict()) == one
    assert one.table()[1][0][0] == "broadcast of 16 B in float32 among ranks 0"


def test_a_timed_loop_can_run_unobserved_in_between(alone):
    """What runs in the block is not seen, what comes before and after is."""
    with observe() as seen:
        dist.all_reduce(torch.ones(1))
        with unobserved():
            dist.broadcast(torch.ones(1), 0)
        dist.barrier()
    assert [call.name for call in seen.calls] == ["all_reduce", "barrier"]


class Stream:
    """A CUDA stream by hand: what is put into it is done so many ms later, and no event is read before it was waited for."""

    def __init__(self, monkeypatch):
        self.at, self.log = 1000.0, []
        stream = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing
                self.done = False

            def record(self):
                self.at = stream.at

            def synchronize(self):
                stream.log.append("wait")
                self.done = True

            def elapsed_time(self, later):
                assert self.done, "the first event was read before it was waited for"
                assert later.at <= stream.reached, "an event was read before its work was done"
                return later.at - self.at

        monkeypatch.setattr(torch.cuda, "Event", Event)


def test_a_collective_on_a_gpu_has_its_begin_and_end_on_the_hosts_clock(monkeypatch):
    """By hand: the host's 50 s are the stream's 1,000 ms; a call from 1,250 to 1,750 ms went from 50.25 to 50.75 s, once that is done."""
    from gpulab.parallel import _observe

    stream = Stream(monkeypatch)
    monkeypatch.setattr(_observe.time, "perf_counter", lambda: stream.log.append("clock") or 50.0)
    observer, stream.reached = _observe.Observer(), 1000.0
    first = observer._cuda_event()
    assert stream.log == ["wait", "clock"]  # else the anchor is what the stream had reached, and the clock what the host had
    stream.at = 1250.0
    begin = observer._cuda_event()
    stream.at = 1750.0
    end = observer._cuda_event()
    assert stream.log == ["wait", "clock"]  # an anchor is one
    assert (first.at, begin.at, end.at) == (1000.0, 1250.0, 1750.0)
    end.synchronize = lambda: setattr(stream, "reached", 1750.0)
    assert observer._on_device((begin, end)) == (50.25, 50.75)
    live = _observe._Live(observer, {"number": 0, "name": "all_reduce", "operator": "", "dtype": "", "input_bytes": 0, "output_bytes": 0,
                                     "group": (0,), "root": None}, 1.0, 2.0, "completion", events=(begin, end))  # fmt: skip
    assert (live.call().begin_seconds, live.call().end_seconds) == (50.25, 50.75)
    live.end = None  # still under way: the host's own begin, and no event is asked
    assert (live.call().begin_seconds, live.call().end_seconds) == (1.0, None)


def test_an_observer_is_itself_and_shows_what_it_tells():
    """Two that have seen nothing are two; what they hold is not printed."""
    assert observe() != observe()
    assert repr(observe()) == "Observer(tell=None)"


def test_a_call_in_words_by_hand():
    """Peers of messages, any of them; members of a group; bytes both ways; where the times come from."""

    def call(name, root, end=0.75, nbytes=4000):
        return CollectiveCall(0, name, "c10d.x", "float32", nbytes, nbytes // 2, (0, 1), root, 0.5, end, "completion", 0.0)

    said = [call("send", 1).sentence, call("recv", 0).sentence, call("recv", None).sentence, call("barrier", None, nbytes=0).sentence]
    assert said == [
        "send of 3.91 KiB in float32 to rank 1", "recv of 3.91 KiB in float32 from rank 0", "recv of 3.91 KiB in float32 from rank any",
        "barrier among ranks 0, 1",
    ]  # fmt: skip
    headers = ("call", "given", "got", "time")
    assert call("broadcast", 0).table() == (
        headers, [("broadcast of 3.91 KiB in float32 among ranks 0, 1", "3.91 KiB", "1.95 KiB", "250 ms")]
    )  # fmt: skip
    assert call("broadcast", 0, None).table()[1][0][3] == "in flight"
    evidence = call("send", 1).evidence()
    assert (evidence.badge, evidence.device, evidence.samples) == ("MEASURED", "the rank that entered it", 1)


class Group:
    """A process group of ranks 4, 6 and 8, seen from one of them."""

    def __init__(self, rank):
        self.mine = rank

    def rank(self):
        """Return this rank's place in the group."""
        return self.mine

    def size(self):
        """Return how many there are."""
        return 3


@pytest.mark.parametrize(
    ("name", "arguments", "mine", "expected"),
    [
        ("broadcast", {"tensors": [(100,)], "root_rank": 1}, 1, (400, 400, 6)),
        ("broadcast", {"tensors": [(100,)], "root_rank": 1}, 0, (0, 400, 6)),  # a receiver gives nothing
        ("reduce", {"tensors": [(100,)], "root_rank": 2}, 2, (400, 400, 8)),
        ("reduce", {"tensors": [(100,)], "root_rank": 2}, 0, (400, 0, 8)),  # and who is not the root gets nothing
        ("all_reduce", {"tensors": [(100,)]}, 0, (400, 400, None)),
        ("gather", {"output_tensors": [[(50,), (50,), (50,)]], "input_tensors": [(50,)], "root_rank": 0}, 0, (200, 600, 4)),
        ("scatter", {"output_tensors": [(50,)], "input_tensors": [[(50,), (50,), (50,)]], "root_rank": 0}, 0, (600, 200, 4)),
        ("send", {"tensors": [(100,)], "dst": 2}, 0, (400, 0, 8)),
        ("recv", {"tensors": [(100,)], "src": 0}, 1, (0, 400, 4)),
        ("recv", {"tensors": [(100,)], "src": -1}, 1, (0, 400, -1)),
        ("barrier", {"tensor": (1,)}, 0, (0, 0, None)),
    ],
)
def test_what_each_rank_gives_and_gets_by_hand(monkeypatch, name, arguments, mine, expected):
    """By the operator's own arguments (float32 is four bytes); a root is told by its global rank, also from beside it."""

    def made(shape):
        return [made(one) for one in shape] if isinstance(shape, list) else torch.zeros(shape) if isinstance(shape, tuple) else shape

    monkeypatch.setattr(_observe, "_group_of", lambda arguments: (Group(mine), (4, 6, 8)))
    found = _observe._described(name, "c10d.x", {key: made(value) for key, value in arguments.items()})
    assert (found["input_bytes"], found["output_bytes"], found["root"]) == expected
    assert (found["name"], found["operator"], found["group"]) == (name, "c10d.x", (4, 6, 8))
    assert found["dtype"] == ("" if name == "barrier" else "float32")


def test_a_group_that_pytorch_does_not_know_has_its_own_numbers(alone, monkeypatch):
    """One that was made behind its back; a name is looked up; without a group nobody takes part."""
    group = Group(1)
    assert _observe._group_of({}) == (None, ())
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda given: {}[given])
    assert _observe._group_of({"process_group": group}) == (group, (0, 1, 2))
    monkeypatch.setattr(dist.distributed_c10d, "_resolve_process_group", lambda name: (name, "resolved"))
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda given: [3, 5] if given == ("tp", "resolved") else [])
    assert _observe._group_of({"group_name": "tp"}) == (("tp", "resolved"), (3, 5))


def test_the_first_to_know_an_end_wins_and_others_of_the_work_stay():
    """Of two observers of one work the first ends by its completion; the second is still pending, and ends by the wait."""
    work, told = object(), []
    lives = [
        _observe._Live(_observe.Observer(lambda what, call: told.append(what)), {**FIXED, "number": 0}, 1.0, work=work) for _ in range(2)
    ]
    _observe._pending[id(work)] = list(lives)
    lives[0].finish(2.0, "completion", "why")
    lives[0].finish(3.0, "wait")
    assert (lives[0].end, lives[0].end_from, lives[0].error, lives[0].work) == (2.0, "completion", "why", None)
    assert _observe._pending[id(work)] == [lives[1]]
    lives[1].finish(4.0, "wait")
    assert (lives[1].end, id(work) in _observe._pending, told) == (4.0, False, ["end", "end"])


FIXED = {"name": "all_reduce", "operator": "", "dtype": "", "input_bytes": 0, "output_bytes": 0, "group": (0,), "root": None}


def test_a_work_that_fails_ends_with_its_error_and_one_without_a_future_by_the_wait(monkeypatch):
    """Its own error, told by its future, goes into the call and no further; on a GPU the end is an event beside the begin's."""
    told = []
    for error, begin_event in ((None, None), (RuntimeError("lost"), None), (None, "begin")):
        future = torch.futures.Future()
        observer = _observe.Observer()
        monkeypatch.setattr(observer, "_cuda_event", lambda: "end", raising=False)
        live = observer._begun(FIXED)
        work = type("Work", (), {"get_future": lambda self, future=future: future})()
        _observe._follow(live, work, begin_event)
        assert (live.work, _observe._pending[id(work)], live.end) == (work, [live], None)
        future.set_result(1) if error is None else future.set_exception(error)
        told.append((live.end_from, live.error, live.events))
    assert told == [("completion", None, None), ("completion", "lost", None), ("completion", None, ("begin", "end"))]

    def none(self):
        raise RuntimeError("no future")

    live = _observe.Observer()._begun(FIXED)
    work = type("Work", (), {"get_future": none})()
    _observe._follow(live, work, None)
    assert live.end is None
    live.finish(1.0, "wait")
    assert id(work) not in _observe._pending


def test_a_wait_that_fails_is_told_with_what_it_failed_of(alone):
    """The call's error is the wait's, and so is its end; how long Python stood there counts."""
    observer = _observe.Observer()
    live = observer._begun(FIXED)
    tensor = torch.ones(1)
    observer._waits[tensor.data_ptr()] = live

    def fails(given):
        raise RuntimeError("timed out")

    with pytest.raises(RuntimeError, match="timed out"):
        _observe._waited(observer, fails, (tensor,), {})
    assert (live.end_from, live.error, observer._waits) == ("wait", "timed out", {})
    with pytest.raises(RuntimeError, match="timed out"):
        _observe._waited(observer, fails, (tensor,), {})  # of nobody's call
    assert _observe._waited(observer, lambda given: given + 1, (tensor,), {}) == 2.0


def test_what_never_ends_is_in_flight_while_somebody_observes_it():
    """Whoever watches over the others sees it in the block, and no more when the observer has gone."""
    with observe() as seen:
        seen._begun(FIXED)
        assert [call.name for call in in_flight()] == ["all_reduce"]
    assert in_flight() == ()
    assert [call.name for call in seen.in_flight] == ["all_reduce"]


def test_waits_tell_until_the_last_observer_has_gone():
    """One that ends inside another takes nothing from it; the last one, also where it is alone, leaves torch as it was."""
    before = dist.Work.wait
    with observe():
        with observe():
            pass
        assert dist.Work.wait is not before
    assert dist.Work.wait is before
    with observe():
        assert dist.Work.wait is not before
    assert dist.Work.wait is before
