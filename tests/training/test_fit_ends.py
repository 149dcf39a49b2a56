"""How a run ends: stopped, interrupted, diverged, out of memory, an error in the model, a disk that takes nothing; and going on later."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import os
import pathlib
import pickle
import random
import re
import signal
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab import memory, training
from gpulab.errors import CheckpointError, DeviceError, GpulabError, InputError, OutOfMemoryError, StoppedError
from gpulab.training import _activations, _checkpoint, _interrupts, _step, _words
from gpulab.training._data import Data

SHORT: dict[str, Any] = {"batch_size": 48, "device": "cpu"}
LONGEST = 800


def run_for(steps: int, **options: Any) -> training.FitResult:
    """A run of the smallest task."""
    return training.fit("digits-mlp", steps=steps, **{**SHORT, **options})


# -- ended from outside ----------------------------------------------------------------------------------------------


def test_a_stop_keeps_what_was_reached() -> None:
    """Asked between steps: the losses, the accuracy and the note of a run of five steps."""
    asked = iter([False] * 5 + [True])
    result = run_for(50, stop=lambda: next(asked))
    assert result.ended == "stopped"
    assert result.losses.tolist() == run_for(5).losses.tolist()
    assert result.accuracy is not None
    assert any(note.code == "stopped" and "5 of 50" in note.sentence for note in result.notes)


def test_a_stop_before_the_first_step_has_nothing_to_report() -> None:
    """It raises, in one sentence."""
    with pytest.raises(StoppedError, match="before the first step"):
        run_for(5, stop=lambda: True)


def test_an_interrupt_lets_the_step_finish_and_keeps_what_was_reached(tmp_path: pathlib.Path) -> None:
    """A real signal in step 3: the step is finished, the checkpoint is whole, and the handler is the caller's again."""
    before = signal.getsignal(signal.SIGINT)
    file = tmp_path / "run.pt"

    class Interrupting(torch.nn.Module):
        def __init__(self, calls: int = 0) -> None:
            super().__init__()
            self.inner, self.calls = training.task("digits-mlp").make_model(0), calls

        def forward(self, x: Any) -> Any:
            self.calls += 1
            if self.calls == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return self.inner(x)

    model = Interrupting()
    result = run_for(50, model=model, save=file)
    assert result.ended == "interrupted"
    assert result.steps == 3
    assert result.losses.tolist() == run_for(3).losses.tolist()
    assert any(note.code == "interrupted" for note in result.notes)
    assert signal.getsignal(signal.SIGINT) is before
    later = training.fit("digits-mlp", model=Interrupting(calls=99), resume=file, steps=5, **SHORT)
    assert later.steps == 5


def test_a_second_interrupt_ends_the_step_too() -> None:
    """What was reached until then is returned all the same."""

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls = torch.nn.Linear(64, 10), 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            if self.calls == 4:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
            return self.inner(x.flatten(1))

    result = run_for(50, model=Twice())
    assert (result.ended, result.steps) == ("interrupted", 3)


def test_a_run_goes_on_after_an_interrupt_while_it_loads() -> None:
    """An interrupt in the middle of a batch's loading ends the call; the next one begins with that batch, and nothing is left out."""
    job = training.task("digits-mlp")
    asked: list[int] = []

    class Interrupted(Data):
        def __getitem__(self, indices: Any) -> tuple[Any, Any]:
            asked.append(len(asked))
            if asked[-1] == 2:
                raise KeyboardInterrupt
            return super().__getitem__(indices)

    data = Interrupted(job.train.inputs, job.train.targets)
    run = training.Run(dataclasses.replace(job, _load=lambda: (data, job.test)), steps=5, **SHORT)
    with pytest.raises(KeyboardInterrupt):
        run.advance(5)
    assert len(run.losses) == 2
    run.advance(5)
    assert run.losses == run_for(5).losses.tolist()
    run.close()


# -- divergence ------------------------------------------------------------------------------------------------------


def test_a_rate_that_diverges_is_named_with_its_step() -> None:
    """The first loss that is no number ends the run; the note says which step, what was before, and what to try."""
    result = run_for(60, learning_rate=1e20)
    assert result.ended == "diverged"
    assert result.first_bad_step == result.steps - 1
    assert not torch.isfinite(torch.tensor(result.losses[-1]))
    assert torch.isfinite(torch.tensor(result.losses[:-1])).all()
    sentence = next(note.sentence for note in result.notes if note.code == "diverged")
    assert f"step {result.first_bad_step}" in sentence
    assert "learning_rate (it was 1e+20)" in sentence
    assert training.FitResult.from_dict(result.to_dict()).ended == "diverged"


def test_weights_that_broke_in_the_last_update_are_named_too() -> None:
    """All losses are numbers, the test's is not."""
    result = run_for(1, optimizer="sgd", learning_rate=1e38)
    assert result.first_bad_step is None
    assert result.ended == "diverged"
    assert result.evidence.samples is None, "no step was timed, so the badge shows no n = 0"


def test_a_rate_that_diverges_and_stays_finite_is_named() -> None:
    """Adam with a rate of 1: the loss never is nan, it shoots up, and then every unit is dead. The note says where and what to try."""
    result = run_for(40, learning_rate=1.0)
    assert result.ended == "finished"
    top = int(result.losses.argmax())
    sentence = next(note.sentence for note in result.notes if note.code == "rising")
    assert f"from {result.losses[0]:.3g} at step 0 to {result.losses[top]:.3g} at step {top}" in sentence
    assert "smaller learning_rate (it was 1)" in sentence
    assert "clip" not in sentence, "Adam's steps do not grow with the gradients"
    assert not run_for(40).has_note("rising")


def test_fine_tuning_may_go_up_and_down() -> None:
    """A loss that rises tenfold, from next to nothing, is no divergence; one far above guessing is."""
    options = training.fit("digits-mlp", steps=1, **SHORT).options
    assert _words.rising_note(options, [0.01, 0.2, 0.05], math.log(10), False) is None
    assert _words.rising_note(options, [0.01, 9.3, 0.05], math.log(10), False) is not None
    assert _words.rising_note(options, [2300.0, 2500.0, 9000.0], math.log(10), False) is None


def _with(inputs: Any = None) -> training.Task:
    import dataclasses

    job = training.task("digits-mlp")
    return dataclasses.replace(job, _load=lambda: (training.Data(inputs, job.train.targets), job.test))


@pytest.mark.parametrize(("value", "precision"), [(float("nan"), "float32"), (7e4, "pure-float16"), (7e4, "float16")])
def test_numbers_in_the_data_that_are_none_are_named(value: float, precision: str) -> None:
    """A nan, or 70,000 where float16 ends at 65,504, in three items: the note counts those of the batch, and blames no learning rate."""
    inputs = training.task("digits-mlp").train.inputs.clone()
    inputs[:, 0, 0, 0][torch.arange(0, 48 * 7, 48)] = value
    result = training.fit(_with(inputs), steps=60, precision=precision, optimizer="sgd", learning_rate=1e-3, **SHORT)
    assert result.ended == "diverged"
    bad = result.first_bad_step
    assert bad is not None
    indices = np.random.default_rng((0, bad // 27)).permutation(1297)[bad % 27 * 48 :][:48]
    spoilt = int((inputs[indices, 0, 0, 0] == value).sum()) if value == value else int(inputs[indices].isnan().any((1, 2, 3)).sum())
    sentence = next(note.sentence for note in result.notes if note.code == "diverged")
    assert f"{spoilt} of the 48 items" in sentence
    assert "learning_rate" not in sentence


class Divides(torch.nn.Module):
    """A layer that divides by zero from some call on."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.inner, self.call, self.calls = torch.nn.Linear(64, 10), call, 0

    def forward(self, x: Any) -> Any:
        """Divide by zero where the call has come."""
        self.calls += 1
        return self.inner(x.flatten(1)) * (float("nan") if self.calls > self.call else 1.0)


@pytest.mark.parametrize(("call", "words"), [(0, "No update came before it, so it is the model itself"), (2, "a layer makes the nan")])
def test_a_nan_that_the_model_makes_is_named(call: int, words: str) -> None:
    """In the first step it cannot be the learning rate; later it need not be."""
    result = run_for(9, model=Divides(call))
    assert (result.ended, result.first_bad_step) == ("diverged", call)
    assert words in next(note.sentence for note in result.notes if note.code == "diverged")


def test_a_model_that_comes_broken_is_named() -> None:
    """Training goes on with the weights of a run that diverged: the note says where the nan comes from."""
    model = training.task("digits-mlp").make_model(0)
    run_for(60, model=model, precision="pure-float16")
    again = run_for(5, model=model)
    assert "came with weights that are infinite or nan" in next(note.sentence for note in again.notes if note.code == "diverged")


def test_gradients_that_no_scale_mends_are_named() -> None:
    """Dynamic scaling leaves every step out, the loss stands still and is finite: the note says so, and an ordinary run has none."""
    model = training.task("digits-mlp").make_model(0)
    next(model.parameters()).register_hook(lambda gradient: gradient * float("nan"))
    result = run_for(20, model=model, precision="float16")
    assert result.ended == "finished"
    assert result.skipped_steps == 20
    assert any("20 of 20 steps changed no weight" in note.sentence for note in result.notes)
    assert ("loss scale at the end", "0.0625, 20 of 20 steps left out") in result.table()[1]
    assert not run_for(20, precision="float16").has_note("skipped")


def test_a_test_that_fails_costs_the_test_alone() -> None:
    """The losses are kept, there is no accuracy, and the note tells what the model raised; a race goes on as well."""

    class Shy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            if not self.training:
                raise ValueError("not while I am watched")
            return self.inner(x.flatten(1))

    result = run_for(4, model=Shy())
    assert (result.ended, result.steps, result.accuracy) == ("finished", 4, None)
    assert any("not while I am watched" in note.sentence for note in result.notes)
    import dataclasses

    job = dataclasses.replace(training.task("digits-mlp"), _build=Shy)
    race = training.race(job, {}, {"clip": 1.0}, steps=3, device="cpu")
    assert (race.first.steps, race.accuracy_difference, race.accuracy_difference_interval) == (3, None, None)


@pytest.mark.parametrize(
    ("precision", "words"),
    [("float8_e4m3fn", "Pass 'bfloat16', the next best"), ("fp8", "compute capability 8.9"), ("int8", "quantize_aware"),
     ("half", "Pass 'float16'"), ("BF16", "Pass 'bfloat16'"), ("Float32", "Pass 'float32'")],
)  # fmt: skip
def test_a_format_that_nothing_trains_in_is_explained(precision: str, words: str) -> None:
    """With the next best; another name of one that there is leads to it."""
    with pytest.raises(InputError, match=re.escape(words)):
        run_for(1, precision=precision)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"precision": "float16", "loss_scale": 1e30}, "loss_scale"), ({"precision": "pure-float16"}, 'precision="float16"')],
    ids=["scale", "pure"],
)
def test_the_advice_fits_the_precision(options: dict, words: str) -> None:
    """An overflowing scale, and a model in pure float16 under Adam, whose epsilon is zero there."""
    result = run_for(60, **options)
    assert result.ended == "diverged"
    assert words in next(note.sentence for note in result.notes if note.code == "diverged")


# -- what fails ------------------------------------------------------------------------------------------------------


def test_a_batch_that_does_not_fit_is_named() -> None:
    """The sentence has the step, the batch and the device; afterwards a smaller batch trains."""
    with memory.limit("6 MiB", device="cpu", on_top=True), pytest.raises(OutOfMemoryError, match=r"step 0 .*batch_size=256.*cpu"):
        training.fit("digits-cnn", batch_size=256, steps=2, device="cpu")
    assert training.fit("digits-cnn", batch_size=16, steps=2, device="cpu").ended == "finished"


def test_a_model_that_does_not_take_the_data_is_named() -> None:
    """PyTorch's words, in one sentence of ours."""
    with pytest.raises(InputError, match=r"step 0 of digits-mlp.*RuntimeError.*expected a step that runs"):
        run_for(2, model=torch.nn.Linear(3, 3))


@pytest.mark.parametrize("feeding", [{"workers": 1}, {"prefetch": 1}, {}], ids=str)
def test_data_that_fail_are_named(feeding: dict) -> None:
    """An error in a worker or a thread ahead comes out like one here."""
    import dataclasses

    job = training.task("digits-mlp")
    broken = dataclasses.replace(job, _load=lambda: (Broken(), job.test))  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match="no such shelf"):
        training.fit(broken, steps=4, **SHORT, **feeding)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback:\n\nValueError: no shelf.\n",
            "ValueError: no shelf (in a worker)",
        ),
        ("Caught ValueError in DataLoader worker process 0.\nValueError: no shelf", "ValueError: no shelf (in a worker)"),
        (f"Caught E in DataLoader worker process 0.\n{'x' * 200}", f"{'x' * 147}... (in a worker)"),
        (f"Caught E in DataLoader worker process 0.\n{'x' * 150}", f"{'x' * 150} (in a worker)"),
        ("DataLoader worker (pid 7) is killed by signal: Killed.", "DataLoader worker (pid 7) is killed by signal: Killed"),
        ("no shelf\nno book", "no shelf no book"),
    ],
)
def test_what_a_worker_said_is_its_last_line(text: str, told: str) -> None:
    """PyTorch puts a worker's whole traceback into the message of the error that it raises here."""
    assert _step._told(RuntimeError(text)) == told


class Broken:
    """Data that fail."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, indices: Any) -> Any:
        raise ValueError("no such shelf")

    __getitems__ = __getitem__


JUNK = st.one_of(
    st.sampled_from([True, -1, 0, 0.5, float("nan"), float("inf"), 10**400, "", "junk", b"x", (), [], {}, object(), 1j, "a" * 5000]),
    st.text(max_size=6).map("junk".__add__),
    st.integers(max_value=-1),
)
OPTIONS = (
    "batch_size", "epochs", "steps", "learning_rate", "optimizer", "accumulate", "checkpoint", "compile", "channels_last", "fused",
    "workers", "prefetch", "pinned", "cuda_graph", "loss_scale", "clip", "seed", "precision", "device", "model", "resume", "save",
    "progress", "stop", "clock",
)  # fmt: skip
# What is junk for most options and sensible for some.
SENSIBLE: dict[str, Any] = {
    "learning_rate": lambda v: v == 0.5, "clip": lambda v: v == 0.5, "loss_scale": lambda v: v == 0.5, "workers": lambda v: v == 0,
    "prefetch": lambda v: v == 0, "seed": lambda v: v == 0, **{name: lambda v: v is True for name in ("checkpoint", "compile",
    "channels_last", "fused", "pinned", "cuda_graph")}, "save": lambda v: isinstance(v, (str, bytes)), "optimizer": callable,
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
@settings(max_examples=12, deadline=None)
@given(value=JUNK)
def test_junk_gets_one_sentence(name: str, value: Any) -> None:
    """Each option refuses what it cannot follow before a step is taken."""
    if SENSIBLE.get(name, lambda v: False)(value):
        return
    with pytest.raises(GpulabError) as caught:
        training.fit("digits-mlp", **{"device": "cpu", "steps": 1, name: value} if name != "epochs" else {"device": "cpu", "epochs": value})
    text = str(caught.value)
    assert len(text) <= LONGEST
    assert "expected" in text


@pytest.mark.parametrize("value", ["no task", 5, None, ["digits-mlp"]])
def test_a_task_that_there_is_not(value: Any) -> None:
    """The names are listed."""
    with pytest.raises(InputError, match="digits-cnn"):
        training.fit(value)


def test_both_epochs_and_steps() -> None:
    """One of the two decides."""
    with pytest.raises(InputError, match="one of them"):
        training.fit("digits-mlp", epochs=1, steps=1, device="cpu")


@pytest.mark.parametrize("made", [None, 5, [], torch.optim.Adam])
def test_an_optimizer_function_that_returns_none(made: Any) -> None:
    """What it returned is named."""
    with pytest.raises(InputError, match="expected an optimizer"):
        run_for(1, optimizer=lambda parameters: made)


def test_a_model_without_anything_to_train() -> None:
    """A frozen model is refused before a step."""
    model = training.task("digits-mlp").make_model(0).requires_grad_(False)
    with pytest.raises(InputError, match="Unfreeze"):
        run_for(1, model=model)


# -- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("digits-cnn", {}),
        ("digits-mlp", {"precision": "float16", "clip": 1.0}),
        ("digits-mlp", {"optimizer": "sgd-momentum", "prefetch": 2}),
        ("digits-mlp", {"precision": "pure-bfloat16", "accumulate": 3, "workers": 1}),
    ],
    ids=str,
)
def test_going_on_gives_the_same_bits(name: str, options: dict, tmp_path: pathlib.Path) -> None:
    """Thirty steps with a break after eleven, over the end of an epoch, equal thirty in one go: losses and weights."""
    file, job = tmp_path / "run.pt", training.task(name)
    one, two = job.make_model(0), job.make_model(1)
    whole = training.fit(job, model=one, steps=14, batch_size=200, device="cpu", **options)
    training.fit(job, steps=5, batch_size=200, device="cpu", save=file, **options)
    rest = training.fit(job, model=two, steps=14, batch_size=200, device="cpu", resume=file, **options)
    assert rest.losses.tolist() == whole.losses.tolist()
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True))
    assert rest.accuracy == whole.accuracy
    assert rest.final_scale == whole.final_scale
    assert (
        rest.first_step_seconds is not None
    )  # of the nine steps of this call: the first one, and one whose memory is followed, count apart
    assert (len(rest.step_seconds), rest.peak_bytes is not None) == (7, True)


def test_a_rate_of_numpys_goes_on(tmp_path: pathlib.Path) -> None:
    """A function that takes its rate from ``np.logspace`` leaves a number of NumPy's in the optimizer, which no reader takes back."""

    def optimizer(parameters: Any) -> Any:
        return torch.optim.Adam(parameters, lr=np.logspace(-3, -2, 2)[0], betas=(np.float64(0.9), 0.999))

    run_for(2, optimizer=optimizer, save=tmp_path / "a.pt")
    assert run_for(4, optimizer=optimizer, resume=tmp_path / "a.pt").losses.tolist() == run_for(4, optimizer=optimizer).losses.tolist()


def test_dropout_goes_on_where_it_stood(tmp_path: pathlib.Path) -> None:
    """The run's own generator is in the checkpoint."""
    from gpulab import networks

    def model() -> Any:
        torch.manual_seed(3)
        return networks.mlp(64, 32, dropout=0.5)

    whole = run_for(8, model=model())
    run_for(3, model=model(), save=tmp_path / "a.pt")
    rest = run_for(8, model=model(), resume=tmp_path / "a.pt")
    assert rest.losses.tolist() == whole.losses.tolist()


def test_a_name_that_no_file_can_have() -> None:
    """A null character is told like any file that is not there."""
    with pytest.raises(CheckpointError, match="there is no file"):
        training.fit("digits-mlp", steps=1, resume="a\0b")


def test_a_stopped_run_can_go_on(tmp_path: pathlib.Path) -> None:
    """The checkpoint of a stop has all the steps that were taken, not only those of whole epochs."""
    asked = iter([False] * 4 + [True])
    run_for(50, stop=lambda: next(asked), save=tmp_path / "a.pt")
    assert run_for(6, resume=tmp_path / "a.pt").losses.tolist() == run_for(6).losses.tolist()


def test_a_run_that_diverged_keeps_the_last_good_checkpoint(tmp_path: pathlib.Path) -> None:
    """Nothing is written over it."""
    file = tmp_path / "a.pt"
    run_for(3, save=file)
    good = file.read_bytes()
    assert run_for(60, learning_rate=1e20, save=file).ended == "diverged"
    assert file.read_bytes() == good


def test_torch_itself_reads_the_file(tmp_path: pathlib.Path) -> None:
    """It is an ordinary file of torch.save, without any code in it."""
    model = training.task("digits-mlp").make_model(0)
    run_for(3, model=model, save=tmp_path / "a.pt")
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    assert all(torch.equal(content["model"][name], value) for name, value in model.state_dict().items())


def test_a_crash_while_writing_leaves_the_old_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old checkpoint still loads, no part is left behind, and the run tells what happened without being lost."""
    file = tmp_path / "a.pt"
    run_for(3, save=file)
    good = file.read_bytes()

    def fail(self: pathlib.Path, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pathlib.Path, "replace", fail)
    result = run_for(4, save=file)
    assert result.ended == "finished"
    assert any("No space left" in note.sentence for note in result.notes)
    assert file.read_bytes() == good
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


@pytest.fixture(name="checkpoint", scope="module")
def _checkpoint_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("checkpoint") / "a.pt"
    run_for(3, save=file)
    return file.read_bytes()


def _refused(content: bytes, folder: pathlib.Path, **options: Any) -> str:
    file = folder / "b.pt"
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        run_for(6, resume=file, **options)
    text = str(caught.value)
    assert len(text) <= LONGEST
    return text


def test_every_damage_is_found(checkpoint: bytes, tmp_path: pathlib.Path) -> None:
    """Cut anywhere, a bit changed anywhere, something added: refused before anything is used."""
    rng = random.Random(0)
    for _ in range(60):
        place = rng.randrange(len(checkpoint))
        _refused(checkpoint[:place], tmp_path)
        changed = bytearray(checkpoint)
        changed[place] ^= 1 << rng.randrange(8)
        _refused(bytes(changed), tmp_path)
    _refused(checkpoint + b"x", tmp_path)
    assert "damaged" in _refused(checkpoint[:100] + b"\xff" + checkpoint[101:], tmp_path)


class Hostile:
    """What a pickle can do that nobody asked for."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("hostile-was-here",))


def _sealed(content: Any) -> bytes:
    """Write anything with a checksum that matches, as someone who knows the format would."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    import hashlib

    plain = buffer.getvalue()
    tail = b"gpulab sha256 " + hashlib.sha256(plain).hexdigest().encode()
    return plain[:-2] + len(tail).to_bytes(2, "little") + tail


def test_foreign_and_hostile_files_are_refused_and_run_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text, a plain pickle, a checkpoint of somebody else's, and code in a pickle under a valid checksum."""
    monkeypatch.chdir(tmp_path)
    buffer = io.BytesIO()
    torch.save({"model": torch.ones(3)}, buffer)
    for content in (b"", b"hello", pickle.dumps(Hostile()), buffer.getvalue(), _sealed(Hostile()), _sealed({"mark": 5}), _sealed([1])):
        assert "no checkpoint of gpulab" in _refused(content, tmp_path)
    assert not (tmp_path / "hostile-was-here").exists()


def _changed(checkpoint: bytes, folder: pathlib.Path, change: Any) -> bytes:
    (folder / "c.pt").write_bytes(checkpoint)
    content = torch.load(folder / "c.pt", weights_only=True)
    change(content)
    return _sealed(content)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.update(version=99), "version 99"),
        (lambda c: c.update(step=-1), "damaged"),
        (lambda c: c.update(step=7), "3 losses for 7"),
        (lambda c: c.update(losses=[1.0, 2.0, float("nan")]), "finite"),
        (lambda c: c.update(losses=["a", 2.0, 1.0]), "finite"),
        (lambda c: c.pop("optimizer"), "damaged"),
        (lambda c: c.update(model={}), "another model"),
        (lambda c: c["model"].update({"layers.1.weight": torch.ones(2, 2)}), "another model"),
        (lambda c: c.update(optimizer={}), "another model or optimizer"),
        (lambda c: c["optimizer"]["state"][0].update(exp_avg=torch.ones(2)), "exp_avg"),
        (lambda c: c["optimizer"]["state"].update({77: {"exp_avg": torch.ones(2)}}), "parameter 77"),
        (lambda c: c["optimizer"]["state"].update({0: 5}), "another model or optimizer"),
        (lambda c: c.update(generators=[]), "generator"),
        (lambda c: c.update(generators=[torch.ones(3)]), "generator"),
        (lambda c: c["settings"].update(learning_rate=5.0), "learning_rate=5.0"),
        (lambda c: c["settings"].update(task="digits-cnn"), "digits-cnn"),
        (lambda c: c.update(settings={}), "saved with"),
    ],
)  # fmt: skip
def test_a_checkpoint_that_does_not_fit_is_refused(checkpoint: bytes, change: Any, words: str, tmp_path: pathlib.Path) -> None:
    """Each in one sentence that names what is wrong."""
    model = training.task("digits-mlp").make_model(3)
    weights = [value.clone() for value in model.state_dict().values()]
    assert words in _refused(_changed(checkpoint, tmp_path, change), tmp_path, model=model)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.state_dict().values(), strict=True)), "the model must be as before"


def test_a_longer_checkpoint_and_a_missing_one(tmp_path: pathlib.Path) -> None:
    """A run that ends before the checkpoint does, and a path without a file."""
    file = tmp_path / "a.pt"
    run_for(5, save=file)
    with pytest.raises(CheckpointError, match="step 5, the run ends at 3"):
        run_for(3, resume=file)
    with pytest.raises(CheckpointError, match="no file"):
        run_for(3, resume=tmp_path / "b.pt")
    with pytest.raises(InputError, match="folder"):
        run_for(3, save=tmp_path)


def test_a_run_without_a_step_has_nothing_to_save(tmp_path: pathlib.Path) -> None:
    """It says so."""
    with pytest.raises(InputError, match="no step was taken"):
        training.Run("digits-mlp", device="cpu").save(tmp_path / "a.pt")
    assert _checkpoint.VERSION == 1


def test_a_device_that_is_lost_in_a_stretch_is_told_in_our_words(monkeypatch):
    """After a fault in a kernel nothing on the device can be read, the losses before it neither: PyTorch raises for each of them again."""
    with contextlib.closing(training.Run("prose-transformer", batch_size=4, steps=9, device="cpu")) as run:
        run.advance(2)
        reached = list(run.losses)

        class Lost:
            def __float__(self):
                raise RuntimeError("CUDA error: device-side assert triggered")

        def step(number, followed):
            if number == 3:
                raise DeviceError("fit: step 3: the device stopped answering")
            return Lost()

        monkeypatch.setattr(run, "_one", step)
        with pytest.raises(DeviceError, match="restart the kernel"):
            run.advance(3)
        assert run.losses == reached


def test_a_norm_that_is_interrupted_while_it_is_recomputed_is_as_it_was() -> None:
    """PyTorch calls no hook after an interrupt: the learner's model would go on averaging nothing."""
    norm = torch.nn.BatchNorm1d(4)
    model = torch.nn.Sequential(torch.nn.Sequential(norm, torch.nn.Linear(4, 4)))

    def interrupt(module: Any, args: Any) -> None:
        if torch._C._current_graph_task_id() != -1:  # not before the backward pass
            raise KeyboardInterrupt

    with _activations.recomputed(model):
        norm.register_forward_pre_hook(interrupt)  # after ours, which keeps the norm from counting a batch twice
        loss = model(torch.randn(8, 4)).sum()
        with pytest.raises(KeyboardInterrupt):
            loss.backward()
    assert norm.momentum == 0.1
    assert int(norm.num_batches_tracked) == 1
    assert "_gpulab_kept" not in vars(norm)


def test_a_norm_that_fails_while_it_is_recomputed_is_as_it_was_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may catch its layer's error and go on: the next batch, which is counted for the first time, is averaged as ever."""
    from gpulab.training._activations import _averaged_once

    norm = torch.nn.BatchNorm1d(4)
    with _averaged_once(torch.nn.Sequential(norm)):
        monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: 0)  # as within a backward pass
        with pytest.raises(RuntimeError):
            norm(torch.ones(2, 3))
        assert norm.momentum == 0.1
        assert norm.num_batches_tracked is not None
        norm(torch.ones(2, 4))
        assert norm.running_mean.tolist() == [0.0] * 4
        monkeypatch.undo()
        norm(torch.ones(2, 4))
    assert norm.running_mean.tolist() == pytest.approx([0.1] * 4)


# -- interrupts ------------------------------------------------------------------------------------------------------


def test_the_first_interrupt_is_noted_and_the_second_one_is_raised() -> None:
    """Who listened before listens again behind the block, after an error too."""
    before = signal.getsignal(signal.SIGINT)
    with _interrupts.deferred() as state:
        assert not state.asked
        signal.raise_signal(signal.SIGINT)
        assert state.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ZeroDivisionError), _interrupts.deferred():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_is_listened_to_in_the_main_thread_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere Python lets nobody listen, and none comes; where nobody of Python's listened before, its own handler does afterwards."""
    listened: list[Any] = []
    monkeypatch.setattr(_interrupts.signal, "signal", lambda number, handler: listened.append((number, handler)))
    seen = []

    def elsewhere() -> None:
        with _interrupts.deferred() as state:
            seen.append(state.asked)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert (seen, listened) == ([False], [])
    with _interrupts.deferred():
        pass
    assert [number for number, _ in listened] == [signal.SIGINT] * 2
    assert listened[1][1] is signal.default_int_handler
    _interrupts.leave_to_the_run(3)
    assert listened[2] == (signal.SIGINT, signal.SIG_IGN)
