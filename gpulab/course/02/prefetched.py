"""02.12: take it home: the next batch on its way."""

# %% exercise
id = "02.12"
title = "take it home: the next batch on its way"
answer_name = "prefetched"
live = True
loads = ("torch",)

# %% stub
import torch


def prefetched(batches, device):
    """Yield each batch on the device while the next one is on its way."""
    ...  # torch.cuda.Stream(), .to(device, non_blocking=True), wait_stream, record_stream

# %% hint
# Write a generator. For each batch k, do three things in this order: let the caller's stream wait for
# batch k, start the copy of batch k + 1 in a separate stream, and yield batch k.

# %% hint
# torch.cuda.current_stream().wait_stream(copies) waits for everything that is in copies at that moment.
# So call it before you start the copy of the next batch.

# %% hint
# The memory of a batch belongs to the stream in which it was made. Call
# batch.record_stream(torch.cuda.current_stream()), because the caller uses it in another one.

# %% solution
import torch


def prefetched(batches, device):
    """Yield each batch on the device while the next one is on its way."""
    copies, batches = torch.cuda.Stream(device), iter(batches)

    def send():
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(copies):
            return batch.to(device, non_blocking=True)

    ready = send()
    while ready is not None:
        current = torch.cuda.current_stream(device)
        current.wait_stream(copies)  # this batch has arrived; the next one is not in the queue yet
        ready.record_stream(current)  # its memory is not reused before the caller's work is done
        following = send()
        yield ready
        ready = following

# %% check
import contextlib
import weakref
from collections.abc import Iterator
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import NotAttempted, Refused

_BATCHES, _COPY, _COMPUTE = 8, 1.0, 1.0  # a copy takes as long as the computing, in units of simulated time
_SERIAL, _IDEAL = _BATCHES * (_COPY + _COMPUTE), _COPY + _BATCHES * _COMPUTE
_ENOUGH = 0.8  # of the ideal gain
_MOST_ON_DEVICE = 4
# Calls that need nothing that is stored in a tensor's memory, such as its shape.
_ASKED = {"size", "dim", "numel", "nelement", "element_size", "stride", "is_contiguous", "data_ptr", "__len__", "type", "get_device"}
_END = object()
# What PyTorch says where a name of torch.cuda that was imported alone, or one without a stand-in, meets no GPU.
_NO_CUDA = ("dummy base class", "requires CUDA support", "not compiled with CUDA", "no NVIDIA driver")


class Block:
    """A block of device memory, with the stream that it belongs to, its last write, and the reads since then."""

    def __init__(self, stream: Any, nbytes: int) -> None:
        self.stream, self.nbytes = stream, nbytes
        self.written: Any = None
        self.read: list[Any] = []
        self.recorded: set[Any] = set()
        self.busy_until, self.new = 0.0, True


class Gpu:
    """A simulated GPU with streams, events and the caching allocator; ``fault`` names the first misuse of memory."""

    def __init__(self) -> None:
        self.now, self.seen, self.fault = 0.0, {}, ""
        self.free: list[Block] = []
        self.live = self.peak = self.blocking = 0
        self.copied_in: set[Any] = set()
        self.streams: list[Any] = []
        self.default = self.current = _stream(self)()

    def run(self, seconds: float, reads: Any = (), writes: Any = ()) -> float:
        """Queue work in the current stream, and return the simulated time at which it ends."""
        stream = self.current
        _merge(stream.seen, self.seen)
        stream.end = max(stream.end, self.now) + seconds
        stream.count += 1
        stream.seen[stream] = stream.count
        for block in reads:
            if block.written is not None and not _after(stream, block.written):
                self.fault = self.fault or "unarrived"
            block.read.append((stream, stream.count))
        for block in writes:
            if any(not _after(stream, one) for one in (*block.read, *([block.written] if block.written else []))):
                self.fault = self.fault or ("reused" if block.new else "overwritten")
            block.written, block.read, block.new = (stream, stream.count), [], False
        return stream.end

    def wait(self, until: float, seen: Any) -> None:
        """Let the host wait until a time; afterwards it has seen the work in ``seen`` finish."""
        self.now = max(self.now, until)
        _merge(self.seen, seen)

    def adopt(self, data: Any) -> Any:
        """Return data as a tensor of the device, in memory of the current stream."""
        size = data.numel() * data.element_size()
        fits = (b for b in self.free if b.stream is self.current and b.nbytes >= size and b.busy_until <= self.now)
        block = next(fits, None)
        if block is None:
            block = Block(self.current, size)
        else:
            self.free.remove(block)
            block.read = [one for one in block.read if one[0] not in block.recorded]  # the allocator has waited for the recorded streams
            block.new, block.recorded = True, set()
        there = data.detach().clone().as_subclass(_kinds()[1])
        there.block = block
        self.live += 1
        self.peak = max(self.peak, self.live)
        weakref.finalize(there, self.release, block)
        return there

    def release(self, block: Block) -> None:
        """Take back the memory of a tensor that is gone."""
        self.live -= 1
        block.busy_until = max((stream.end for stream in block.recorded), default=0.0)
        self.free.append(block)

    def send(self, source: Any, block: Block, non_blocking: bool) -> None:
        """Copy host memory into a block."""
        self.copied_in.add(self.current)
        end = self.run(_COPY, writes=(block,))
        if not (non_blocking and isinstance(source, _kinds()[0])):
            self.blocking += 1
            self.wait(end, self.current.seen)


# Merge two vector clocks into the first. Each maps a stream to the number of its last work item that is known to be done before.
def _merge(into: Any, other: Any) -> None:
    for stream, count in other.items():
        into[stream] = max(count, into.get(stream, 0))


# Return whether the stream's next work runs after work, a pair (stream, number of the work item).
def _after(stream: Any, work: Any) -> bool:
    return stream.seen.get(work[0], 0) >= work[1]


# Return a class that stands in for torch.cuda.Stream.
def _stream(gpu: Gpu) -> type:
    class Stream:
        def __init__(self, device: Any = None, priority: int = 0, **named: Any) -> None:
            self.end, self.count, self.seen = 0.0, 0, {}
            self.before: list[Any] = []
            gpu.streams.append(self)

        def record_event(self, event: Any = None) -> Any:
            event = _event(gpu)() if event is None else event
            event.record(self)
            return event

        def wait_event(self, event: Any) -> None:
            self.end = max(self.end, event.end)
            _merge(self.seen, event.seen)

        def wait_stream(self, other: Any) -> None:
            self.wait_event(other.record_event())

        def synchronize(self) -> None:
            gpu.wait(self.end, self.seen)

        def query(self) -> bool:
            return self.end <= gpu.now

        def __enter__(self) -> Any:
            self.before.append(gpu.current)
            gpu.current = self
            return self

        def __exit__(self, *error: Any) -> None:
            gpu.current = self.before.pop()

    return Stream


# Return a class that stands in for torch.cuda.Event.
def _event(gpu: Gpu) -> type:
    class Event:
        def __init__(self, *given: Any, **named: Any) -> None:
            self.end, self.seen = 0.0, {}

        def record(self, stream: Any = None) -> None:
            stream = gpu.current if stream is None else stream
            _merge(stream.seen, gpu.seen)
            self.end, self.seen = max(stream.end, gpu.now), dict(stream.seen)

        def wait(self, stream: Any = None) -> None:
            (gpu.current if stream is None else stream).wait_event(self)

        def synchronize(self) -> None:
            gpu.wait(self.end, self.seen)

        def query(self) -> bool:
            return self.end <= gpu.now

        def elapsed_time(self, other: Any) -> float:
            return other.end - self.end

    return Event


def _kinds() -> tuple[type, type]:
    """Return the classes of pinned tensors and of tensors on the device."""
    import torch

    if not _made:

        def record_stream(self: Any, stream: Any) -> None:  # PyTorch's own method does not accept a stand-in for a stream
            if stream is not self.block.stream:  # the allocator ignores the stream that the memory belongs to
                self.block.recorded.add(stream)

        plain = {"__torch_function__": torch._C._disabled_torch_function_impl}
        _made.append(type("PinnedTensor", (torch.Tensor,), plain))
        _made.append(type("DeviceTensor", (torch.Tensor,), {**plain, "record_stream": record_stream}))
    return _made[0], _made[1]


_made: list[type] = []


def _watching(gpu: Gpu) -> Any:
    """Return a context in which PyTorch's calls on tensors go to the simulated device."""
    import torch
    from torch.overrides import TorchFunctionMode

    pinned, on_device = _kinds()

    def is_cuda(device: Any) -> bool:
        return device is not None and torch.device(device).type == "cuda"

    class Watching(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            name = func.__name__
            first = args[0] if args else None
            there = [a for a in (*args, *kwargs.values()) if isinstance(a, on_device)]
            if name == "__get__":
                what = getattr(func.__self__, "__name__", "")
                if there and what in ("device", "is_cuda"):
                    return torch.device("cuda", 0) if what == "device" else True
                return func(*args, **kwargs)
            if name in _ASKED:
                return func(*args, **kwargs)
            if name in ("to", "cuda", "cpu"):
                return self.moved(name, first, args[1:], kwargs)
            if name == "is_pinned":
                return isinstance(first, pinned)
            if name == "pin_memory":
                if isinstance(first, pinned):
                    return first
                gpu.now += _COPY / 2  # the host copies the data
                return first.clone().as_subclass(pinned)
            if name == "copy_" and isinstance(first, on_device):
                source = args[1] if len(args) > 1 else kwargs["src"]
                if isinstance(source, on_device):
                    gpu.run(0.0, reads=(source.block,), writes=(first.block,))
                else:
                    quick = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
                    gpu.send(source, first.block, quick)
                func(first, source)
                return first
            if is_cuda(kwargs.get("device")) or there:
                return self.computed(func, args, kwargs, there)
            made = kwargs.pop("pin_memory", False)
            result = func(*args, **kwargs)
            return result.as_subclass(pinned) if made else result

        def moved(self, name: str, first: Any, rest: Any, kwargs: Any) -> Any:
            copy = kwargs.pop("copy", False)
            if rest and isinstance(rest[0], torch.Tensor):
                rest = ("cuda" if isinstance(rest[0], on_device) else "cpu", *rest[1:])
            if name == "to":
                device, dtype, quick, _ = torch._C._nn._parse_to(*rest, **kwargs)
            else:
                quick = kwargs.get("non_blocking", rest[1] if len(rest) > 1 else False)
                device, dtype = "cuda" if name == "cuda" else "cpu", None
            goes = isinstance(first, on_device) if device is None else is_cuda(device)
            if goes == isinstance(first, on_device):
                if not copy and (dtype is None or dtype == first.dtype):
                    return first
                if not goes:
                    return torch.Tensor.to(first, dtype=dtype or first.dtype, copy=True)
                return self.computed(torch.Tensor.to, (first,), {"dtype": dtype or first.dtype}, [first])
            data = torch.Tensor.to(first, dtype=dtype or first.dtype)
            if goes:
                result = gpu.adopt(data)
                gpu.send(first, result.block, quick)
                return result
            gpu.wait(gpu.run(_COPY, reads=(first.block,)), gpu.current.seen)
            return data.detach().clone().as_subclass(torch.Tensor)

        def computed(self, func: Any, args: Any, kwargs: Any, there: Any) -> Any:
            if "device" in kwargs:
                kwargs["device"] = "cpu"
            kwargs.pop("pin_memory", None)
            result = func(*args, **kwargs)
            if not isinstance(result, torch.Tensor):
                gpu.run(0.0, reads=[a.block for a in there])
                gpu.wait(gpu.current.end, gpu.current.seen)
                return result
            base = next((a for a in there if a.untyped_storage().data_ptr() == result.untyped_storage().data_ptr()), None)
            if base is not None:  # a view: the same memory
                view = result.as_subclass(on_device)
                view.block, view.base = base.block, base
                return view
            result = gpu.adopt(result)
            gpu.run(0.0, reads=[a.block for a in there], writes=() if func.__name__.startswith("empty") else (result.block,))
            return result

    return Watching()


@contextlib.contextmanager
def _in_place_of_cuda(gpu: Gpu) -> Iterator[None]:
    """Replace the names in ``torch.cuda`` with those of the simulated device, and redirect PyTorch's calls to it."""
    import torch

    def everything() -> None:
        for stream in gpu.streams:
            stream.synchronize()

    def choose(stream: Any) -> None:
        gpu.current = stream

    stream, event = _stream(gpu), _event(gpu)

    def within(chosen: Any) -> Any:
        return contextlib.nullcontext() if chosen is None else chosen

    names = {
        "Stream": stream,
        "Event": event,
        "stream": within,
        "StreamContext": within,
        "current_stream": lambda device=None: gpu.current,
        "default_stream": lambda device=None: gpu.default,
        "set_stream": choose,
        "synchronize": lambda device=None: everything(),
        "is_available": lambda: True,
    }
    places = [(torch.cuda, name, stand_in) for name, stand_in in names.items()] + [(torch, "Stream", stream), (torch, "Event", event)]
    before = [(place, name, getattr(place, name)) for place, name, _ in places]
    try:
        for place, name, stand_in in places:
            setattr(place, name, stand_in)
        with _watching(gpu):
            yield
    finally:
        for place, name, real in before:
            setattr(place, name, real)


def _used(answer: Any, waits: bool) -> tuple[Gpu, int]:
    """Compute on every batch that the answer yields, and return the device and how far the answer works ahead.

    The second value is the least number of batches that were taken beyond the batch in use. With ``waits``, the host waits for the
    computation on each batch.
    """
    import torch

    gpu, taken, ahead = Gpu(), 0, _BATCHES
    originals = [torch.arange(6.0) + 10 * k for k in range(_BATCHES)]
    originals[-1] = originals[-1][:4]  # the last batch is often smaller

    def source() -> Iterator[Any]:
        nonlocal taken
        for one in originals:
            taken += 1
            yield one.clone().as_subclass(_kinds()[0])

    with _in_place_of_cuda(gpu):
        batches = _iterator(answer, source())
    for k, original in enumerate(originals):
        with _in_place_of_cuda(gpu):
            there = _next(batches)
        if there is _END:
            raise Refused(f"{k} of {_BATCHES} batches came out. Is the last one, which is on its way when the iterable ends, yielded too?")
        _judge(there, original, k, originals)
        if gpu.current is not gpu.default:
            raise Refused(
                "Your stream is still current when a batch comes out, so the caller's work is queued in it too. Leave the block "
                "`with torch.cuda.stream(...)` first, and yield after the block."
            )
        if k < _BATCHES - 1:
            ahead = min(ahead, taken - k - 1)
        if taken - k - 1 > _MOST_ON_DEVICE:
            said = f"When batch {k} came out, {taken} had been taken."
            if gpu.live > _MOST_ON_DEVICE:
                raise Refused(f"{said} All batches together may not fit on the device: take the next one only.")
            raise Refused(f"{said} All batches together may not fit into main memory, and a loader makes them one by one: take the next one only.")
        gpu.run(_COMPUTE, reads=(there.block,))
        del there
        if waits:
            gpu.wait(gpu.default.end, gpu.default.seen)
        _say(gpu.fault, k)
    with _in_place_of_cuda(gpu):
        more = _next(batches)
    if more is not _END:
        raise Refused(f"After the {_BATCHES} batches another thing came out: {checking.describe(more)}.")
    if waits and gpu.peak > _MOST_ON_DEVICE:
        raise Refused(f"{gpu.peak} batches were on the device at a time. Keep the batch in use and the next one; let go of the others.")
    gpu.now = max(stream.end for stream in gpu.streams)
    return gpu, ahead


def _iterator(answer: Any, batches: Any) -> Iterator[Any]:
    import torch

    result = checking.call(answer, batches, "cuda")
    try:
        if isinstance(result, torch.Tensor):
            raise TypeError
        return iter(result)
    except TypeError as error:
        raise Refused(f"Your function returned {checking.describe(result)}; the check expects a generator: a function with yield.") from error


# Return the next batch, or _END. It travels in a pair, because call takes a bare None for an unfinished answer.
def _next(batches: Iterator[Any]) -> Any:
    return checking.call(lambda: (next(batches, _END), ""))[0]


def _judge(there: Any, original: Any, k: int, originals: Any) -> None:
    import torch

    if not isinstance(there, torch.Tensor):
        raise Refused(f"Batch {k} is {checking.describe(there)}; the check expects a tensor.")
    if not isinstance(there, _kinds()[1]):
        raise Refused(f"Batch {k} is still in main memory. Send it with .to(device, non_blocking=True).")
    plain = there.as_subclass(torch.Tensor)
    if plain.dtype != original.dtype:
        raise Refused(f"Batch {k} went in as {original.dtype} and came out as {plain.dtype}. Yield each batch unchanged.")
    if plain.shape != original.shape or not torch.equal(plain, original):
        same = [i for i, one in enumerate(originals) if one.shape == plain.shape and torch.equal(plain, one)]
        found = f"holds batch {same[0]}" if same else "holds other numbers"
        raise Refused(f"What came out as batch {k} {found}. Yield each batch once, in order and unchanged.")


# Refuse the answer if the simulated device found a fault.
def _say(fault: str, k: int) -> None:
    if fault == "unarrived":
        raise Refused(
            f"The caller computes on batch {k} before its copy is done: nothing makes the caller's stream wait for the copy. "
            "Two streams wait for each other only through wait_stream or wait_event."
        )
    if fault == "reused":
        raise Refused(
            "A batch is copied into memory that the caller's work still reads: the allocator gave the memory of an earlier batch to the stream "
            "that it belongs to. Call batch.record_stream(torch.cuda.current_stream()), or let your stream wait for the caller's."
        )
    if fault == "overwritten":
        raise Refused(
            "A buffer is filled again while earlier work still uses it. Before the copy, let your stream wait for the work that reads it."
        )


def check(answer: Any) -> str:
    try:
        free, _ = _used(answer, waits=False)
        read, ahead = _used(answer, waits=True)
        if list(_empty(answer)):
            raise Refused("From an empty list something came out. Without batches nothing is yielded.")
    except Refused as refusal:
        if any(words in str(refusal) for words in _NO_CUDA):
            raise Refused(
                f"{refusal} The check stands in for Stream, Event, stream, current_stream and synchronize of torch.cuda. Write these in full, "
                "such as torch.cuda.Stream()."
            ) from refusal
        raise
    share = min((_SERIAL - gpu.now) / (_SERIAL - _IDEAL) for gpu in (free, read))
    if share < _ENOUGH:
        _why(free, read, ahead, share)
    return (
        f"All batches arrive in order and before they are used, their memory is safe, and {share:.0%} of the time that copies can hide "
        "is hidden (simulated). You can use it on a GPU, for batches that are single tensors."
    )


# Return the first item that the answer yields for an empty list, or an empty list if it yields none.
def _empty(answer: Any) -> list[Any]:
    try:
        with _in_place_of_cuda(Gpu()):
            batches = _iterator(answer, [])
            first = _next(batches)
    except Refused as refusal:
        raise Refused(f"With an empty list: {refusal}") from refusal
    return [] if first is _END else [first]


# Refuse the answer, and explain why too little of the copies is hidden.
def _why(free: Gpu, read: Gpu, ahead: int, share: float) -> None:
    said = f"Only {max(share, 0):.0%} of the time that copies can hide is hidden:"
    if read.default in read.copied_in:
        raise Refused(f"{said} the copies are queued in the caller's stream, where they wait for its work. Give them a stream of their own.")
    if read.blocking:
        raise Refused(f"{said} the host waits for each copy, and starts nothing meanwhile. Send with non_blocking=True, from pinned memory.")
    if ahead < 1:
        raise Refused(f"{said} a copy starts only when the caller asks for the batch. Start the copy of the next batch before you yield this one.")
    raise Refused(
        f"{said} the work on a batch waits until the next batch has arrived too. Wait for a batch before you start the copy of the next one, "
        "or for an event that was recorded between the two copies."
    )

# %% wrong: the copies are queued in the caller's stream
def prefetched(batches, device):
    for batch in batches:
        yield batch.to(device, non_blocking=True)

# %% wrong: before its copy is done
import torch


def prefetched(batches, device):
    copies = torch.cuda.Stream()
    ready = None
    for batch in batches:
        with torch.cuda.stream(copies):
            following = batch.to(device, non_blocking=True)
        if ready is not None:
            yield ready
        ready = following
    if ready is not None:
        yield ready

# %% wrong: record_stream
import torch


def prefetched(batches, device):
    copies, batches = torch.cuda.Stream(), iter(batches)

    def send():
        batch = next(batches, None)
        if batch is not None:
            with torch.cuda.stream(copies):
                return batch.to(device, non_blocking=True)

    ready = send()
    while ready is not None:
        torch.cuda.current_stream().wait_stream(copies)
        following = send()
        yield ready
        ready = following

# %% wrong: until the next batch has arrived too
import torch


def prefetched(batches, device):
    copies, batches = torch.cuda.Stream(), iter(batches)

    def send():
        batch = next(batches, None)
        if batch is not None:
            with torch.cuda.stream(copies):
                return batch.to(device, non_blocking=True)

    ready = send()
    while ready is not None:
        following = send()
        torch.cuda.current_stream().wait_stream(copies)
        ready.record_stream(torch.cuda.current_stream())
        yield ready
        ready = following

# %% wrong: Start the copy of the next batch before you yield
import torch


def prefetched(batches, device):
    copies = torch.cuda.Stream()
    for batch in batches:
        with torch.cuda.stream(copies):
            there = batch.to(device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        there.record_stream(torch.cuda.current_stream())
        yield there

# %% wrong: the host waits for each copy
import torch


def prefetched(batches, device):
    copies, batches = torch.cuda.Stream(), iter(batches)

    def send():
        batch = next(batches, None)
        if batch is not None:
            with torch.cuda.stream(copies):
                return batch.to(device)

    ready = send()
    while ready is not None:
        ready.record_stream(torch.cuda.current_stream())
        following = send()
        yield ready
        ready = following

# %% wrong: yield after the block
import torch


def prefetched(batches, device):
    copies = torch.cuda.Stream()
    for batch in batches:
        with torch.cuda.stream(copies):
            yield batch.to(device, non_blocking=True)

# %% wrong: take the next one only
def prefetched(batches, device):
    return [batch.to(device, non_blocking=True) for batch in batches]

# %% wrong: 7 of 8 batches came out
import torch


def prefetched(batches, device):
    copies = torch.cuda.Stream()
    ready = None
    for batch in batches:
        torch.cuda.current_stream().wait_stream(copies)
        with torch.cuda.stream(copies):
            following = batch.to(device, non_blocking=True)
        if ready is not None:
            ready.record_stream(torch.cuda.current_stream())
            yield ready
        ready = following

# %% wrong: record_stream(torch.cuda.current_stream())
import torch


def prefetched(batches, device):
    copies, batches = torch.cuda.Stream(), iter(batches)

    def send():
        batch = next(batches, None)
        if batch is not None:
            with torch.cuda.stream(copies):
                return batch.to(device, non_blocking=True)

    ready = send()
    while ready is not None:
        torch.cuda.current_stream().wait_stream(copies)
        ready.record_stream(copies)
        following = send()
        yield ready
        ready = following

# %% wrong: into main memory
import torch


def prefetched(batches, device):
    batches, copies = list(batches), torch.cuda.Stream()
    for batch in batches:
        with torch.cuda.stream(copies):
            ready = batch.to(device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        ready.record_stream(torch.cuda.current_stream())
        yield ready

# %% wrong: came out as torch.float16
import torch


def prefetched(batches, device):
    for batch in batches:
        yield batch.to(device, torch.float16, non_blocking=True)

# %% wrong: still in main memory
def prefetched(batches, device):
    yield from batches
