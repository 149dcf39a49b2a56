"""The tasks that the later notebooks share: data, model, loss and hyperparameters. Also the
accuracy of models, with intervals over items and over seeds; and the batches of a run in the order
that its seed decides, prepared by the run's own thread or by a thread that loads ahead.

The data are the digits that scikit-learn has too, a harder variant of them, and this course's own
prose. Nothing is downloaded. Each set is made once per process and is the same on every machine:
splits, shifts and noise come from NumPy's generator with a fixed seed, never from the seed of a
run.

Both ways to prepare batches give the same batches, so ``prefetch`` and ``pinned`` change only how
long a run waits.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional

from gpulab import _validate, devices, networks
from gpulab.evidence import Evidence
from gpulab.timing.statistics import t_quantile
from gpulab.training import backend_switches
from gpulab.training.run_results import Accuracy, SeedsAccuracy
from gpulab.units import plural

# Any number would do, but it must never change: figures measured before would be of other data.
_SPLIT_SEED = 20_240
_TEST_DIGITS = 500
_BRIGHTEST = 16.0  # the largest value of a pixel in the file
# side in pixels; number of training digits; standard deviation of the noise on pixels of 0 to 1
HARD_SIDE, HARD_TRAIN, HARD_NOISE = 12, 500, 0.15
_HARD_COPIES = 2  # of each test digit
CONTEXT = 64  # characters in a window of the prose
_STRIDE = 16  # between the beginnings of training windows; those of the test do not overlap
_TEST_SHARE = 0.1  # of the prose: its end
# checks an argument that is a seed
SEED = functools.partial(_validate.whole, low=0, high=2**63 - 1)
_FOLDER = Path(__file__).parent / "data"
_PROSE = _FOLDER / "prose.txt"
# The test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak; UCI Machine
# Learning Repository; CC BY 4.0), as scikit-learn's load_digits has it: 64 pixels and the class.
_DIGITS = _FOLDER / "digits.csv.gz"


@dataclass(frozen=True, repr=False)
class Data:
    """Inputs and targets of one split, on the host.

    Attributes
    ----------
    inputs : torch.Tensor, shape (n, ...)
        float32 images (n, 1, side, side) from about 0 to 1, or int64 characters (n, context).
    targets : torch.Tensor
        int64 classes (n,), or the characters that follow (n, context).
    copies : int
        How many items show the same digit: item k + n / copies shows that of item k, so the answers
        to these items are not independent.
    """

    inputs: Any
    targets: Any
    copies: int = 1

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, indices: Any) -> tuple[Any, Any]:
        """Return a batch with memory of its own: if it were a view, a prediction of memory would
        count all of the data.
        """
        inputs, targets = self.inputs[indices], self.targets[indices]
        return (
            (inputs.clone(), targets.clone()) if isinstance(indices, slice) else (inputs, targets)
        )

    def __repr__(self) -> str:
        return f"<{plural(len(self), 'item')} of shape {tuple(self.inputs.shape[1:])}>"


@functools.cache
def _raw_digits() -> tuple[np.ndarray, np.ndarray]:
    table = np.loadtxt(_DIGITS, np.float32, delimiter=",")
    dealt = np.random.default_rng(_SPLIT_SEED).permutation(table)
    return dealt[:, :64].reshape(-1, 8, 8) / np.float32(_BRIGHTEST), dealt[:, 64].astype(np.int64)


# The data are kept for the session: made in the caller's inference mode, no model could train on
# them.
@torch.inference_mode(False)
def _as_data(images: np.ndarray, classes: np.ndarray, copies: int = 1) -> Data:
    return Data(
        torch.from_numpy(np.ascontiguousarray(images[:, None])),
        torch.from_numpy(classes.copy()),
        copies,
    )


@functools.cache
def digits() -> tuple[Data, Data]:
    """Return training and test digits, 1,297 and 500 images of 8x8 pixels, split at random."""
    images, classes = _raw_digits()
    return _as_data(images[:-_TEST_DIGITS], classes[:-_TEST_DIGITS]), _as_data(
        images[-_TEST_DIGITS:], classes[-_TEST_DIGITS:]
    )


@functools.cache
def hard_digits() -> tuple[Data, Data]:
    """Return the same digits made hard: each is placed at random on a noisy canvas of 12x12 pixels,
    and only 500 have a label.

    The test set has every test digit twice, at two places with different noise. A digit that is
    hard to read is hard at both places, so accuracy counts the two as one item with two answers.
    """
    images, classes = _raw_digits()
    random = np.random.default_rng(_SPLIT_SEED + 1)
    train, test = images[:HARD_TRAIN], np.concatenate([images[-_TEST_DIGITS:]] * _HARD_COPIES)
    return (
        _as_data(_placed(train, random), classes[:HARD_TRAIN]),
        _as_data(
            _placed(test, random),
            np.concatenate([classes[-_TEST_DIGITS:]] * _HARD_COPIES),
            _HARD_COPIES,
        ),
    )


def _placed(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    canvas = np.zeros((len(images), HARD_SIDE, HARD_SIDE), dtype=np.float32)
    for picture, image, (row, column) in zip(
        canvas, images, random.integers(0, HARD_SIDE - 7, (len(images), 2)), strict=True
    ):
        picture[row : row + 8, column : column + 8] = image
    return canvas + random.normal(0.0, HARD_NOISE, canvas.shape).astype(np.float32)


@functools.cache
def characters() -> str:
    """Return the characters of the prose in order: the index of a character is its token."""
    return "".join(sorted(set(_PROSE.read_text(encoding="ascii"))))


@functools.cache
def prose() -> tuple[Data, Data]:
    """Return windows of 64 characters of this course's own prose with the characters that follow;
    the last tenth is for the test.
    """
    number = {character: index for index, character in enumerate(characters())}
    tokens = torch.tensor(
        [number[character] for character in _PROSE.read_text(encoding="ascii")], device="cpu"
    )
    end = round(len(tokens) * (1 - _TEST_SHARE))
    return _windows(tokens[:end], _STRIDE), _windows(tokens[end:], CONTEXT)


@torch.inference_mode(False)  # as for _as_data
def _windows(tokens: Any, stride: int) -> Data:
    pieces = tokens.unfold(0, CONTEXT + 1, stride)
    return Data(pieces[:, :-1].contiguous(), pieces[:, 1:].contiguous())


@dataclass(frozen=True, repr=False)
class Task:
    """Something to learn.

    Attributes
    ----------
    name, summary : str
    items : str
        What one sample is: "images" or "windows".
    batch_size, epochs : int
    learning_rate : float
        For Adam. With these values a run learns the task in seconds on two cores.
    answers : str
        What accuracy counts: "digits" or "characters".

    The last two arguments are functions without arguments: one returns the training and the test
    data, two ``Data``; the other one returns a new model.
    """

    name: str
    summary: str
    items: str
    answers: str
    batch_size: int
    epochs: int
    learning_rate: float
    _load: Callable[[], tuple[Data, Data]]
    _build: Callable[[], Any]

    @property
    def train(self) -> Data:
        """The training data, on the host; ``train[indices]`` is a batch."""
        return self._load()[0]

    @property
    def test(self) -> Data:
        """The test data, on the host."""
        return self._load()[1]

    @_validate.arguments(seed=SEED)
    def make_model(self, seed: int = 0) -> Any:
        """Return a new model on the CPU, in training mode, with weights that the seed decides;
        torch's generator stays as it was.

        Raises
        ------
        InputError
            If the seed is not a whole number from 0 to 2**63 - 1.
        """
        with backend_switches.exclusive(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(seed)
            return self._build()

    def loss(self, model: Any, batch: tuple[Any, Any]) -> Any:
        """Return the mean cross entropy of a batch (inputs, targets), a scalar tensor, in the
        precision that the caller has set.
        """
        return functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())

    def correct(self, model: Any, batch: tuple[Any, Any]) -> Any:
        """Return how many answers of each item are right, int64 of shape (batch,)."""
        right = model(batch[0]).argmax(-1).reshape(batch[1].shape) == batch[1]
        return right.flatten(1).sum(1) if right.dim() > 1 else right.long()

    def renew_norms(self, model: Any) -> None:
        """Compute the running averages of a model's batch norms anew from the training data.

        In training they follow the weights some ten steps behind. After few steps, or where the
        weights have few bits, that alone costs accuracy (digits-hard-cnn with weights of 3 bits:
        41 % instead of 90 %; digits-cnn after 50 batches of 128: 94.5 % instead of 98.8 %).
        """
        data, like = self.train.inputs, next(model.parameters())
        data = data.to(like.device, like.dtype if data.is_floating_point() else data.dtype)
        batches = data.tensor_split(max(1, len(data) // self.batch_size))
        torch.optim.swa_utils.update_bn(batches, model)

    def __repr__(self) -> str:
        return f"<task {self.name}: {self.summary}>"


_TASKS = {
    task.name: task
    for task in (
        Task(
            "digits-cnn",
            "a small convolutional network reads digits of 8x8 pixels",
            "images",
            "digits",
            64,
            8,
            3e-3,
            digits,
            lambda: networks.cnn(width=16),
        ),
        Task(
            "digits-mlp",
            "two hidden layers read the same digits",
            "images",
            "digits",
            64,
            15,
            3e-3,
            digits,
            lambda: networks.mlp(inputs=64, hidden=128),
        ),
        Task(
            "digits-hard-cnn",
            "the network learns from 500 digits only, each shifted and in noise",
            "images",
            "digits",
            50,
            20,
            3e-3,
            hard_digits,
            lambda: networks.cnn(width=16),
        ),
        Task(
            "prose-transformer",
            "a small language model continues this course's own prose, character by character",
            "windows",
            "characters",
            32,
            2,
            3e-3,
            prose,
            lambda: networks.transformer(
                len(characters()), width=64, heads=4, layers=2, context=CONTEXT
            ),
        ),
    )
}


def tasks() -> tuple[str, ...]:
    """Return the names of the tasks."""
    return tuple(_TASKS)


def task(name: str | Task) -> Task:
    """Return a task by its name.

    Parameters
    ----------
    name : str or Task
        One of ``tasks()``; a task comes back as it is.

    Raises
    ------
    InputError
        If there is no such task.

    Examples
    --------
    >>> task("prose-transformer").train.inputs.shape[1]
    64
    """
    return (
        name if isinstance(name, Task) else _TASKS[_validate.word("training", "task", name, _TASKS)]
    )


_BATCH = 250
_Z = 1.959964  # the normal distribution's 97.5 % point
find_task = task  # for functions that have a task among their arguments


def evaluate(model: Any, on: str | Task) -> Accuracy:
    """Return how many answers of a task's test a model gets right.

    Parameters
    ----------
    model : torch.nn.Module
        On any device, in any floating-point dtype; it is set to evaluation mode for the test, and
        back afterwards.
    on : str or Task

    Returns
    -------
    Accuracy
        Evidence MEASURED. With one answer per item, the interval is Wilson's. The several answers
        to one item (the characters of a window, one digit at two places) are not independent, so
        the interval is then Student's t over the items' shares of right answers, or Wilson's if all
        items have the same share.

    Raises
    ------
    InputError
        If ``model`` is not a module, or does not take the task's inputs.

    Examples
    --------
    >>> from gpulab import training
    >>> job = training.task("prose-transformer")
    >>> training.evaluate(job.make_model(seed=0), job).count == job.test.targets.numel()
    True
    """
    return answers_of(model, task(on)).accuracy()


@dataclass(frozen=True)
class Answers:
    """A model's answers on a test: ``right[i]`` of the ``each`` answers to item i are right."""

    right: np.ndarray
    each: int
    loss: float
    answers: str
    device: str

    def accuracy(self) -> Accuracy:
        """Return the accuracy with its interval."""
        correct, count = int(self.right.sum()), self.each * len(self.right)
        shares = self.right / self.each
        # If all items are alike, their spread is zero and gives no interval; Wilson's method does.
        alike = self.each == 1 or bool((shares == shares[0]).all())
        interval = (
            wilson(round(correct / self.each), len(self.right))
            if alike
            else _around(float(shares.mean()), _half(shares))
        )
        evidence = Evidence.measured(self.device, samples=len(self.right))
        return Accuracy(
            correct, count, correct / count, interval, self.loss, self.answers, evidence
        )


def answers_of(model: Any, job: Task) -> Answers:
    """Let a model answer the whole test.

    Raises
    ------
    InputError
        As ``evaluate``.
    """
    _validate.instance(
        "evaluate",
        "model",
        model,
        torch.nn.Module,
        "a torch.nn.Module. Pass the model, then the task.",
    )
    tensors = (*model.parameters(), *model.buffers(), torch.empty(0))
    first = next(t for t in tensors if t.is_floating_point())
    where, dtype = first.device, first.dtype
    loss, right = 0.0, []
    with backend_switches.modes_kept(model), torch.inference_mode():
        model.eval()
        for begin in range(0, len(job.test), _BATCH):
            inputs, targets = job.test[slice(begin, begin + _BATCH)]
            with devices.guard(
                f"evaluate: the model with {job.name}'s inputs {tuple(inputs.shape)} on {where}",
                "it to take them. Pass a model with the inputs and outputs of task.make_model().",
            ):
                batch = (
                    inputs.to(where, dtype) if inputs.is_floating_point() else inputs.to(where),
                    targets.to(where),
                )
                right.append(job.correct(model, batch).cpu().numpy())
                loss += float(job.loss(model, batch)) * len(targets)
    copies = job.test.copies
    together, each = (
        np.concatenate(right).reshape(copies, -1).sum(axis=0),
        copies * job.test.targets[0].numel(),
    )
    return Answers(together, each, loss / len(job.test), job.answers, devices.find(where).name)


def wilson(correct: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share (Wilson 1927; Brown, Cai and DasGupta 2001,
    Statistical Science 16, 101).

    Examples
    --------
    >>> [round(end, 4) for end in wilson(81, 263)]
    [0.2553, 0.3662]
    """
    share, z2 = correct / count, _Z**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return _around(middle, half)


def _around(mean: float, half: float, least: float = 0.0) -> tuple[float, float]:
    """Return mean - half and mean + half, limited to the values of a share (or of a difference of
    shares, with ``least=-1``).
    """
    return max(least, mean - half), min(1.0, mean + half)


def difference_interval(before: np.ndarray, after: np.ndarray) -> tuple[float, float]:
    """Return a 95 % interval of mean(after - before) over items that two models answered.

    Parameters
    ----------
    before, after : ndarray, shape (items,)
        Right answers of each item, as shares.

    Notes
    -----
    With one answer per item: the Wald interval for pairs with half an item added to each of the
    four cells (Agresti and Min 2005, Statistics in Medicine 24, 729). So the interval has a width
    even if two models agree on all items. With several answers per item: the same interval if the
    models agree on all items, else Student's t.

    Examples
    --------
    Of five items one was lost and two were won; with half an item more each way the middle is 1 /
    7, and its variance (4 - 1 / 7) / 49.

    >>> low, high = difference_interval(np.array([1.0, 0, 1, 1, 0]), np.array([1.0, 1, 0, 1, 1]))
    >>> half = 1.959964 * (4 - 1 / 7) ** 0.5 / 7
    >>> bool(abs(low - 1 / 7 + half) < 1e-5), bool(abs(high - 1 / 7 - half) < 1e-5)
    (True, True)
    """
    n = len(before)
    change = after - before
    if change.any() and not set(np.unique(np.concatenate([before, after]))) <= {0.0, 1.0}:
        return _around(float(change.mean()), _half(change), -1.0)
    won, lost, whole = float((change > 0).sum()) + 0.5, float((change < 0).sum()) + 0.5, n + 2
    middle = (won - lost) / whole
    half = _Z * math.sqrt(won + lost - (won - lost) ** 2 / whole) / whole
    return _around(middle, half, -1.0)


def _half(values: np.ndarray) -> float:
    n = len(values)
    return t_quantile(n - 1) * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else 2.0


def evaluate_models(models: Iterable[Any], on: str | Task) -> SeedsAccuracy:
    """Return the accuracy of several models (one per seed) on one test, with an interval over seeds
    and test items.

    Raises
    ------
    InputError
        If there is no model, or a model does not take the task's inputs.
    """
    job, given = task(on), _validate.items("evaluate_models", "models", models, "[model]")
    return accuracy_of([answers_of(model, job) for model in given])


def accuracy_of(answers: list[Answers]) -> SeedsAccuracy:
    """Return the accuracy of several models on one test, from their answers.

    Notes
    -----
    Seeds and items are crossed: each model answers each item. The variance of the grand mean is
    estimated by three terms: the variance of the models' means divided by the number of models,
    plus the variance of the items' means divided by the number of items, minus the variance of the
    residuals divided by the product of both numbers, which the first two terms count twice (the
    two-way random effects model; Owen 2007, Annals of Applied Statistics 1, 386). Degrees of
    freedom after Satterthwaite.
    """
    accuracies = tuple(one.accuracy() for one in answers)
    table = np.array([one.right / one.each for one in answers])
    models, items = table.shape
    mean = float(table.mean())
    evidence = Evidence.measured(accuracies[0].evidence.device, samples=models * items)
    if models == 1:
        return SeedsAccuracy(
            accuracies,
            accuracies[0].ratio,
            None,
            accuracies[0].interval,
            answers[0].answers,
            evidence,
        )
    half, wide, alike = _crossed(table)
    low, high = _around(mean, wide)
    # If all items have the same mean (such as all right), their spread is zero and gives no
    # interval; Wilson's method does.
    if alike:
        by_wilson = wilson(round(mean * items), items)
        low, high = min(low, by_wilson[0]), max(high, by_wilson[1])
    return SeedsAccuracy(
        accuracies, mean, _around(mean, half), (low, high), answers[0].answers, evidence
    )


def difference_over_seeds(
    before: list[Answers], after: list[Answers]
) -> tuple[float, tuple[float, float]]:
    """Return the mean difference of accuracy of models that share their seeds, and a 95 % interval
    over seeds and test items.

    Notes
    -----
    Seeds and items are paired: the two models of a seed answered the same items. With one seed the
    interval is over items alone.
    """
    one, other = (
        np.array([each.right / each.each for each in answers]) for answers in (before, after)
    )
    table = other - one
    mean = float(table.mean())
    if len(table) == 1:
        return mean, difference_interval(one[0], other[0])
    _, wide, alike = _crossed(table)
    low, high = _around(mean, wide, -1.0)
    if alike:  # all items show the same difference; other items might not
        by_items = difference_interval(one[0], other[0])
        low, high = min(low, by_items[0]), max(high, by_items[1])
    return mean, (low, high)


def _crossed(table: np.ndarray) -> tuple[float, float, bool]:
    """Return half the width of the interval over seeds, half the width of the interval over seeds
    and items, and whether all items have the same mean; ``table`` has the shape (seeds, items).
    """
    models, items = table.shape
    mean = float(table.mean())
    of_models, of_items = table.mean(axis=1), table.mean(axis=0)
    residuals = table - of_models[:, None] - of_items[None, :] + mean
    by_models, by_items = float(of_models.var(ddof=1)) / models, float(of_items.var(ddof=1)) / items
    twice = (
        float((residuals**2).sum()) / ((models - 1) * (items - 1)) / (models * items)
        if items > 1
        else 0.0
    )
    half = t_quantile(models - 1) * math.sqrt(by_models)
    whole = max(by_models + by_items - twice, by_models, by_items)
    freedom = (
        whole**2 / (by_models**2 / (models - 1) + by_items**2 / max(items - 1, 1))
        if whole > 0
        else float(models - 1)
    )
    return half, t_quantile(freedom) * math.sqrt(whole), by_items == 0.0


Batch = tuple[Any, Any]
Load = Callable[[np.ndarray], Batch]


def order(items: int, batch_size: int, seed: int, first: int, last: int) -> Iterator[np.ndarray]:
    """Yield the indices of the batches ``first`` to ``last`` (not included), each int64 of shape
    (batch_size,).

    Each epoch has its own permutation; the last items of it that do not fill a batch are left out.
    Batch k depends on the seed and k alone, so a run whose loading was interrupted goes on with the
    same batches.
    """
    permutation = np.zeros(0, dtype=np.int64)
    for number in range(first, last):
        epoch, place = divmod(number, items // batch_size)
        if place == 0 or number == first:
            permutation = np.random.default_rng((seed, epoch)).permutation(items)
        yield permutation[place * batch_size : (place + 1) * batch_size]


def feed(
    data: Data,
    chosen: Iterator[np.ndarray],
    *,
    loading: str,
    prefetch: int,
    pinned: bool,
    to_device: Callable[[Batch], Batch],
    device: devices.Device,
) -> Generator[Batch, None, None]:
    """Yield a run's batches. The end of the generator, or its ``close()``, ends the thread that
    loads ahead.

    Parameters
    ----------
    data : Data
    chosen : iterator of ndarray
        From ``order``.
    loading, prefetch, pinned
        As in ``training.fit``.
    to_device : callable
        Copies a batch to the device. Used here by the thread that loads ahead, and to copy all data
        once for "resident"; without ``prefetch`` the run itself copies its batches.
    device : Device
        That device; the thread that loads ahead has a stream of its own on it.
    """
    load = (
        _resident(data, to_device)
        if loading == "resident"
        else _here(data, loading == "items", pinned)
    )
    yield from _ahead(chosen, load, prefetch, to_device, device) if prefetch else map(load, chosen)


def _resident(data: Data, to_device: Callable[[Batch], Batch]) -> Load:
    """Copy all of the data to the device once; a batch is then taken there by indexing."""
    inputs, targets = to_device((data.inputs, data.targets))

    def load(indices: np.ndarray) -> Batch:
        chosen = torch.from_numpy(indices)
        # if the indices were copied from pageable memory, the host would wait in each step for all
        # work that is queued on the device
        if inputs.is_cuda:
            chosen = chosen.pin_memory()
        chosen = chosen.to(inputs.device, non_blocking=inputs.is_cuda)
        return inputs[chosen], targets[chosen]

    return load


def _here(data: Data, by_item: bool, pinned: bool) -> Load:
    def load(indices: np.ndarray) -> Batch:
        if by_item:  # as a plain ``Dataset`` gives it: one item a call, stacked afterwards
            items = (data[int(index)] for index in indices)
            inputs, targets = map(torch.stack, zip(*items, strict=True))
        else:
            inputs, targets = data[torch.from_numpy(indices)]
        return (inputs.pin_memory(), targets.pin_memory()) if pinned else (inputs, targets)

    return load


def _ahead(
    chosen: Iterator[np.ndarray],
    load: Load,
    ahead: int,
    to_device: Callable[[Batch], Batch],
    device: devices.Device,
) -> Iterator[Batch]:
    """Yield batches that a thread prepares and copies to the device, ``ahead`` before the run."""
    is_cuda = device.torch_type == "cuda"
    stream = cast(Any, torch.cuda.Stream)(device.index) if is_cuda else None

    def copied(indices: np.ndarray) -> tuple[Batch, Any]:
        batch = load(indices)
        with torch.cuda.stream(stream):  # does nothing for None: a CPU has no streams
            there = to_device(batch)
            return there, stream.record_event() if stream is not None else None

    def ready(loading: Future[tuple[Batch, Any]]) -> Batch:
        batch, event = loading.result()
        if event is not None:
            current = torch.cuda.current_stream(device.index)
            current.wait_event(event)
            for tensor in batch:
                tensor.record_stream(current)
        return batch

    pool, waiting = ThreadPoolExecutor(1, "gpulab-prefetch"), deque[Future[tuple[Batch, Any]]]()
    try:
        for indices in chosen:
            waiting.append(pool.submit(copied, indices))
            if len(waiting) > ahead:
                yield ready(waiting.popleft())
        while waiting:  # each batch leaves the queue when it is yielded, as above
            yield ready(waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)
