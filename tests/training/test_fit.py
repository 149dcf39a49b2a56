"""One call trains: against loops written by hand, with each option, and under a clock of the test's own."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from training_clock import Clock

from gpulab import devices, memory, training
from gpulab.errors import CheckpointError, InputError
from gpulab.evidence import Badge
from gpulab.training import _settings
from gpulab.training._tasks import Task

STEPS, BATCH = 12, 48


def fitted(task: str | Task = "digits-mlp", **options: Any) -> tuple[training.FitResult, Any]:
    """A short run on the CPU, and its model."""
    model = options.pop("model", None) or training.task(task).make_model(options.get("seed", 0))
    options = {"steps": STEPS, "batch_size": BATCH, "device": "cpu", **options}
    return training.fit(task, model=model, **options), model


def by_hand(name: str, *, autocast: Any = None, clip: float | None = None, scaler: Any = None, seed: int = 0) -> tuple[list[float], Any]:
    """The same run as PyTorch's tutorials write it, with the batches drawn anew."""
    job = training.task(name)
    model = job.make_model(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=job.learning_rate)
    losses: list[float] = []
    an_epoch = len(job.train) // BATCH
    for step in range(STEPS):
        epoch, place = divmod(step, an_epoch)
        chosen = np.random.default_rng((seed, epoch)).permutation(len(job.train))[place * BATCH : (place + 1) * BATCH]
        x, y = job.train.inputs[chosen], job.train.targets[chosen]
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=autocast, enabled=autocast is not None):
            scores = model(x)
            loss = functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.reshape(-1))
        losses.append(float(loss.detach()))
        (scaler.scale(loss) if scaler else loss).backward()
        if clip is not None:
            if scaler:
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    return losses, model


def same_weights(one: Any, other: Any) -> bool:
    """Whether two models hold the same bits, running averages included."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("name", "options", "hand"),
    [
        ("digits-mlp", {}, {}),
        ("digits-cnn", {}, {}),
        ("digits-mlp", {"seed": 7}, {"seed": 7}),
        ("digits-mlp", {"clip": 0.5}, {"clip": 0.5}),
        ("digits-mlp", {"precision": "bfloat16"}, {"autocast": torch.bfloat16}),
        ("digits-mlp", {"precision": "float16", "clip": 0.5}, {"autocast": torch.float16, "clip": 0.5, "scaler": True}),
    ],
    ids=lambda value: str(value) if isinstance(value, (str, dict)) else None,
)
def test_a_run_is_the_loop_that_one_writes_by_hand(name: str, options: dict, hand: dict) -> None:
    """Losses and weights equal, bit for bit, those of PyTorch's own idiom."""
    if hand.get("scaler"):
        hand = {**hand, "scaler": torch.amp.GradScaler("cpu")}
    losses, expected = by_hand(name, **hand)
    result, model = fitted(name, **options)
    assert result.losses.tolist() == losses
    assert same_weights(model, expected)


def test_a_seed_decides_everything() -> None:
    """The same seed gives the same bits whatever the caller's generator stands at, which stays there; another seed gives others."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, _ = fitted()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    two, _ = fitted()
    assert one.losses.tolist() == two.losses.tolist()
    other, _ = fitted(seed=1)
    assert one.losses[0] != other.losses[0]


def test_dropout_draws_from_the_runs_own_generator() -> None:
    """A model that draws random numbers gives the same losses twice, and leaves the caller's generator alone."""
    from gpulab import networks

    def run() -> list[float]:
        torch.manual_seed(5)
        model = networks.mlp(64, 32, dropout=0.5)
        torch.manual_seed(99)
        state = torch.get_rng_state()
        losses = fitted(model=model)[0].losses.tolist()
        assert torch.equal(torch.get_rng_state(), state)
        return losses

    assert run() == run()


@pytest.mark.parametrize("feeding", [{"workers": 1}, {"workers": 2, "prefetch": 1}, {"prefetch": 1}, {"prefetch": 3}], ids=str)
def test_who_prepares_the_batches_changes_no_bit(feeding: dict) -> None:
    """Workers and threads ahead give the same batches in the same order, over the end of an epoch too."""
    plain, one = fitted(batch_size=400, steps=7)
    fed, other = fitted(batch_size=400, steps=7, **feeding)
    assert fed.losses.tolist() == plain.losses.tolist()
    assert same_weights(one, other)


def test_workers_leave_the_callers_generator_alone() -> None:
    """PyTorch's loader would draw its workers' seeds from the caller's generator."""
    state = torch.get_rng_state()
    fitted(workers=1, steps=2)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_epoch_sees_each_item_once() -> None:
    """The indices of an epoch are a permutation, cut into whole batches, and the next epoch's is another."""
    from gpulab.training._feed import Order

    epochs = [np.concatenate(list(Order(100, 20, 3, 5 * epoch, 5 * epoch + 5))) for epoch in range(2)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert not np.array_equal(*epochs)
    late = list(Order(100, 20, 3, 3, 10))
    assert all(np.array_equal(a, b) for a, b in zip(late, list(Order(100, 20, 3, 0, 10))[3:], strict=True))


def test_parts_add_up_to_the_batch() -> None:
    """With 48 items in 7 uneven parts, losses and weights are those of the whole batch but for rounding."""
    whole, one = fitted(optimizer="sgd", learning_rate=0.5)
    parts, other = fitted(optimizer="sgd", learning_rate=0.5, accumulate=7)
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=2e-6)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-7)


def test_parts_need_less_memory() -> None:
    """Activations are those of one part."""
    whole, _ = fitted("prose-transformer", batch_size=16, steps=2)
    parts, _ = fitted("prose-transformer", batch_size=16, steps=2, accumulate=4)
    assert parts.peak_by_category["activations"] < 0.4 * whole.peak_by_category["activations"]


@pytest.mark.parametrize("name", ["digits-cnn", "prose-transformer"])
def test_recomputing_changes_memory_and_nothing_else(name: str) -> None:
    """Losses, weights and batch norm's running averages are the same bits; a transformer's activations take less."""
    plain, one = fitted(name, batch_size=8, steps=4)
    again, other = fitted(name, batch_size=8, steps=4, checkpoint=True)
    assert again.losses.tolist() == plain.losses.tolist()
    assert same_weights(one, other)
    if name == "prose-transformer":
        assert again.peak_bytes < 0.8 * plain.peak_bytes
    assert all("forward" not in child.__dict__ for child in other.modules()), "the model must be as before"


@pytest.mark.parametrize(
    ("name", "optimizer", "checkpoint"), [("digits-cnn", "adam", False), ("digits-mlp", "sgd", False), ("prose-transformer", "adam", True)]
)
def test_the_memory_is_what_the_prediction_says(name: str, optimizer: str, checkpoint: bool) -> None:
    """Peak and categories of the second step equal, byte for byte, those that fake tensors predict of the same step."""
    job = training.task(name)
    result, model = fitted(job, batch_size=2, steps=2, optimizer=optimizer, checkpoint=checkpoint)
    x, y = job.train[:2]

    def loss(scores: Any, targets: Any) -> Any:
        return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())

    expected = memory.predict(model, x, loss=loss, targets=y, optimizer=optimizer, checkpoint=checkpoint, device="cpu")
    assert result.peak_bytes == expected.peak_bytes
    assert result.peak_by_category == expected.peak_by_category
    assert sum(result.peak_by_category.values()) == result.peak_bytes


def test_channels_last_keeps_the_weights_so() -> None:
    """Convolutions' weights lie with the channels last, and the run learns the same but for rounding."""
    plain, _ = fitted("digits-cnn", steps=5)
    other, model = fitted("digits-cnn", steps=5, channels_last=True)
    assert model.features[3].weight.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(other.losses, plain.losses, rtol=1e-3)


@pytest.mark.parametrize(("fused", "expected"), [(True, (True, None)), (False, (False, False)), (None, (None, None))])
def test_the_optimizer_has_the_form_that_was_asked(fused: Any, expected: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's Adam is made with (fused, foreach) as asked, and learns the same but for rounding."""
    made: list[Any] = []
    init = torch.optim.Adam.__init__

    @functools.wraps(init)
    def spy(self: Any, *args: Any, **kwargs: Any) -> None:
        made.append((kwargs.get("fused"), kwargs.get("foreach")))
        init(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "__init__", spy)
    result, _ = fitted(fused=fused)
    assert made == [expected]
    np.testing.assert_allclose(result.losses, by_hand("digits-mlp")[0], rtol=1e-3)


def test_an_optimizer_without_a_fused_form_goes_on_and_says_so() -> None:
    """PyTorch has no fused RMSprop."""
    result, _ = fitted(optimizer="RMSprop", fused=True, steps=2)
    assert result.ended == "finished"
    assert result.options.fused is None
    assert any("no fused form" in note.sentence for note in result.notes)


def test_an_optimizer_of_ones_own() -> None:
    """A function from parameters decides the optimizer alone."""
    result, _ = fitted(optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3))
    assert result.losses.tolist() == by_hand("digits-mlp")[0]
    assert result.options.optimizer == "own optimizer"


@pytest.mark.parametrize("scale", [2.0, 1024.0, 2.0**20])
def test_a_fixed_scale_is_taken_out_again(scale: float) -> None:
    """A power of two changes no bit of a float32 run; clipping sees the gradients without it."""
    assert fitted(loss_scale=scale)[0].losses.tolist() == by_hand("digits-mlp")[0]
    assert fitted(loss_scale=scale, clip=0.5)[0].losses.tolist() == by_hand("digits-mlp", clip=0.5)[0]


class Steep(Task):
    """A task whose loss is multiplied, so that float16 gradients overflow under the first scales."""

    def loss(self, model: Any, batch: Any) -> Any:
        """Return a thousand times the loss."""
        return super().loss(model, batch) * 1000


def _steep() -> Task:
    job = training.task("digits-mlp")
    return Steep(**{field.name: getattr(job, field.name) for field in dataclasses.fields(job)})


@pytest.mark.parametrize("precision", ["float16", "pure-float16"])
def test_dynamic_scaling_leaves_out_steps_that_overflow(precision: str) -> None:
    """Each step left out halves the scale from 65,536 and changes no weight; then the run learns."""
    result, _ = fitted(_steep(), precision=precision, optimizer="sgd", learning_rate=1e-4)
    assert result.skipped_steps >= 3
    assert result.final_scale == 65536 / 2**result.skipped_steps
    assert result.ended == "finished"
    first, model = fitted(_steep(), precision=precision, optimizer="sgd", learning_rate=1e-4, steps=1)
    assert first.skipped_steps == 1
    expected = training.task("digits-mlp").make_model(0)
    assert same_weights(model, expected.half() if precision == "pure-float16" else expected)


def test_an_unscaled_float16_run_is_really_unscaled() -> None:
    """loss_scale=1 uses no scaler, as someone who forgot it would."""
    result, _ = fitted(precision="float16", loss_scale=1)
    assert (result.options.loss_scale, result.final_scale, result.skipped_steps) == (None, None, 0)


@pytest.mark.parametrize("precision", ["pure-bfloat16", "pure-float16"])
def test_pure_precisions_convert_the_model(precision: str) -> None:
    """Weights are of the short type, and take half the bytes."""
    result, model = fitted(precision=precision, optimizer="sgd", steps=2)
    assert {p.dtype for p in model.parameters()} == {getattr(torch, precision.removeprefix("pure-"))}
    full, _ = fitted(optimizer="sgd", steps=2)
    assert 2 * result.peak_by_category["parameters"] == full.peak_by_category["parameters"]


def test_a_model_that_was_left_in_16_bits_is_trained_in_the_runs_own_type() -> None:
    """After a pure run the same model trains in float32, from the weights that it had; a float64 model as well."""
    for start, precision in (("pure-float16", "float32"), ("pure-bfloat16", "bfloat16")):
        _, model = fitted(precision=start, optimizer="sgd", steps=2)
        wide = copy.deepcopy(model).float()
        result, model = fitted(model=model, precision=precision)
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert result.losses.tolist() == fitted(model=wide, precision=precision)[0].losses.tolist()
    assert fitted(model=training.task("digits-mlp").make_model(0).double())[0].losses.tolist() == by_hand("digits-mlp")[0]


def test_compile_trains_the_compiled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled form is what every step calls; its parameters are the model's."""
    calls: list[Any] = []

    def compiled(model: Any, *, dynamic: bool) -> Any:
        def call(*args: Any) -> Any:
            calls.append(args)
            return model(*args)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    result, _ = fitted(compile=True)
    assert len(calls) == STEPS
    assert result.losses.tolist() == by_hand("digits-mlp")[0]
    assert result.peak_bytes is None
    assert any("compiled step" in note.sentence for note in result.notes)


def test_a_compiler_that_fails_is_told_and_the_model_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The losses are those of the model itself."""

    def compiled(model: Any, *, dynamic: bool) -> Any:
        def call(*args: Any) -> Any:
            raise RuntimeError("no backend on this planet")

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    result, _ = fitted(compile=True)
    assert result.losses.tolist() == by_hand("digits-mlp")[0]
    assert any("no backend on this planet" in note.sentence for note in result.notes)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        ("InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')", "no working C++ compiler"),
        ("C++ compile error Command: g++ main.cpp Output: main.cpp:2:10: fatal error: Python.h: No such file", "headers of Python"),
    ],
)
def test_what_a_compiler_lacks_is_one_sentence(raised: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In PyTorch's own words on such machines; the run is told as uncompiled, and its memory is followed as that of any other."""

    def compiled(model: Any, *, dynamic: bool) -> Any:
        def call(*args: Any) -> Any:
            raise RuntimeError(raised)

        return call

    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setattr(torch, "compile", compiled)
    result, _ = fitted(compile=True)
    assert any(words in note.sentence and "ran as it is" in note.sentence for note in result.notes)
    assert not result.options.compile
    assert result.peak_bytes == fitted()[0].peak_bytes
    assert not any("compiled step" in note.sentence for note in result.notes)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[Any]]]:
    """The inputs that each compiled graph was made for: a number is a fixed size, a SymInt any size."""
    found: list[list[Any]] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        found.append(inputs)
        return graph.forward

    monkeypatch.setenv("CXX", "g++")  # no compiler is called
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    torch.compiler.reset()
    yield found
    torch.compiler.reset()


def test_each_batch_size_of_a_session_is_compiled_for_itself(graphs: list[list[Any]]) -> None:
    """One graph a size, none of it for any size; not even beyond the number after which PyTorch goes on uncompiled and says nothing."""
    with torch._dynamo.config.patch(recompile_limit=1):
        for size in (4, 6, 8):
            assert fitted(compile=True, batch_size=size, steps=2)[0].options.compile
        assert fitted(compile=True, batch_size=8, accumulate=3, steps=2)[0].options.compile  # parts of 3, 3 and 2 items
    assert not any(isinstance(value, torch.SymInt) for inputs in graphs for value in inputs)
    assert [next(len(x) for x in inputs if x.dim() == 4) for inputs in graphs] == [4, 6, 8, 3, 2]


def test_a_model_that_is_compiled_no_more_is_told(graphs: list[list[Any]]) -> None:
    """Beyond PyTorch's limit for all forms together the model runs as it is, with a note."""
    with torch._dynamo.config.patch(accumulated_recompile_limit=1):
        assert fitted(compile=True, batch_size=4, steps=2)[0].options.compile
        result, _ = fitted(compile=True, batch_size=6, steps=2)
    assert (len(graphs), result.options.compile) == (1, False)
    assert any("so the model ran as it is" in note.sentence for note in result.notes)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler, and g++ is not on the PATH")
def test_a_really_compiled_step_learns_the_same() -> None:
    """PyTorch's own compiler: the losses and weights of the model as it is but for rounding, and no note of a failure."""
    import torch._dynamo.utils as dynamo

    torch.compiler.reset()
    before = dynamo.counters["stats"]["unique_graphs"]
    result, model = fitted(compile=True)
    assert dynamo.counters["stats"]["unique_graphs"] > before, "a graph must have been compiled"
    assert result.options.compile
    assert not any("ran as it is" in note.sentence for note in result.notes)
    losses, expected = by_hand("digits-mlp")
    np.testing.assert_allclose(result.losses, losses, rtol=1e-4)
    for a, b in zip(model.state_dict().values(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_a_checkpoint_of_a_machine_without_a_compiler_goes_on(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same call resumes: what was asked for is compared, not what the compiler made of it."""

    def compiled(model: Any, *, dynamic: bool) -> Any:
        def call(*args: Any) -> Any:
            raise RuntimeError("no backend on this planet")

        return call

    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setattr(torch, "compile", compiled)
    fitted(compile=True, steps=4, save=tmp_path / "run.pt")
    result, _ = fitted(compile=True, resume=tmp_path / "run.pt")
    assert result.losses.tolist() == by_hand("digits-mlp")[0]


def test_a_checkpoint_keeps_the_precision_that_was_asked_for(tmp_path: pathlib.Path) -> None:
    """Saved where there is no TF32, or by one that has it: the same call goes on; another precision is another run."""
    short: dict[str, Any] = {"batch_size": 4, "device": "cpu", "save": tmp_path / "run.pt"}
    training.fit("prose-transformer", precision="tf32", steps=1, **short)
    whole = training.fit("prose-transformer", precision="tf32", steps=2, resume=tmp_path / "run.pt", **short)
    assert whole.steps == 2
    with pytest.raises(CheckpointError, match=r"precision='tf32' \(here 'float32'\)"):
        training.fit("prose-transformer", steps=3, resume=tmp_path / "run.pt", **short)


def test_what_a_cpu_lacks_is_named_and_the_next_best_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32, CUDA graphs, pinned memory, a compiler: one note each, and the losses of a plain run."""
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    result, _ = fitted(precision="tf32", cuda_graph=True, pinned=True, compile=True)
    notes = " ".join(note.sentence for note in result.notes)
    assert all(words in notes for words in ("no TF32", "no CUDA graphs", "pageable", "C++ compiler"))
    assert result.losses.tolist() == by_hand("digits-mlp")[0]
    assert (result.options.cuda_graph, result.options.pinned, result.options.compile) == (False, False, False)
    assert result.options.precision == "float32"


# What a GPU is asked for, of which kind it is, and what of it is left; a device that lacks something says so once.
ASKED = {"precision": "tf32", "pinned": True, "cuda_graph": True, "autotune": True}


@pytest.mark.parametrize(
    ("kind", "given", "lost"),
    [
        ("cuda", ASKED, {}),
        ("cuda", {"cuda_graph": True, "loss_scale": "dynamic"}, {"cuda_graph": "dynamic loss scaling reads on the host"}),
        ("cuda", {"cuda_graph": True, "loss_scale": 1024.0}, {}),
        ("cuda", {"loading": "resident", "pinned": True, "workers": 2},
         {"pinned": "what lies on the device is not copied", "workers": "what lies on the device needs no process"}),
        ("rocm", ASKED, {"precision": "a rocm has no TF32", "cuda_graph": "cuda:0 has no CUDA graphs",
                         "autotune": "cuDNN runs on NVIDIA GPUs"}),
        ("mps", ASKED, {"precision": "a mps has no TF32", "pinned": "pinned memory serves copies to a CUDA device",
                        "cuda_graph": "mps:0 has no CUDA graphs", "autotune": "cuDNN runs on NVIDIA GPUs"}),
        ("cuda", {"channels_last": True}, {"channels_last": "prose-transformer has no images"}),
        ("cuda", {"compile": True}, {}),
    ],
)  # fmt: skip
def test_what_each_kind_of_device_lacks(kind: str, given: dict[str, Any], lost: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there stays as it was asked for; for what is not the next best is taken, with one note."""
    from gpulab.devices import Device
    from gpulab.training import _options

    monkeypatch.setattr(Device, "name", property(lambda self: f"a {self.kind}"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 0))
    monkeypatch.setattr("shutil.which", lambda name: None)
    asked = dataclasses.replace(training.Run("prose-transformer", steps=1, batch_size=4, device="cpu").options, **given)
    settled = _options.Settled(asked, Device(kind), lambda parameters: None)
    _options._without_what_is_missing(settled, training.task("prose-transformer"))
    usual = {"precision": "float32", "workers": 0}
    assert settled.options == dataclasses.replace(asked, **{name: usual.get(name, False) for name in lost})
    assert sorted(note.code for note in settled.notes) == ["skipped"] * len(lost)
    assert all(any(note.sentence.startswith(words) for note in settled.notes) for words in lost.values())


def test_text_has_no_channels_to_put_last() -> None:
    """The note says so, and the run goes on."""
    result, _ = fitted("prose-transformer", steps=1, batch_size=2, channels_last=True)
    assert any("no images" in note.sentence for note in result.notes)
    assert not result.options.channels_last


def test_switches_are_as_before_afterwards() -> None:
    """TF32's switches and the gradient mode are the caller's again, also after a run that fails."""
    before = (torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.deterministic)
    with torch.no_grad():
        result, _ = fitted(steps=2)
        assert not torch.is_grad_enabled()
    assert result.ended == "finished"
    with pytest.raises(InputError):
        fitted(model=torch.nn.Linear(3, 3))
    after = (torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.deterministic)
    assert after == before


@pytest.mark.parametrize("older", ["highest", "high", "medium"])
@pytest.mark.parametrize("products", ["none", "ieee", "tf32"])
@pytest.mark.parametrize("host", ["none", "ieee", "bf16"])
def test_the_older_switch_of_products_agrees_and_comes_back(older: str, products: str, host: str) -> None:
    """It is what compilers before PyTorch 2.11 read, and raises while the newer ones say otherwise; "high" is its word for TF32."""
    matmul, cpu = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    before = torch.get_float32_matmul_precision(), matmul.fp32_precision, cpu.fp32_precision
    try:
        torch.set_float32_matmul_precision(older)
        matmul.fp32_precision, cpu.fp32_precision = products, host
        for precision, word in (("tf32", "high"), ("float32", "highest")):
            with _settings.switches(precision, devices.find("cpu")):
                assert torch.get_float32_matmul_precision() == word
                assert matmul.allow_tf32 == (precision == "tf32")
                assert cpu.fp32_precision == "ieee"
            assert (matmul.fp32_precision, cpu.fp32_precision) == (products, host)
            matmul.fp32_precision = cpu.fp32_precision = "ieee"  # so that the older one can be read
            assert torch.get_float32_matmul_precision() == older
            matmul.fp32_precision, cpu.fp32_precision = products, host
    finally:
        torch.set_float32_matmul_precision(before[0])
        matmul.fp32_precision, cpu.fp32_precision = before[1:]


def test_the_model_is_trained_in_place_and_keeps_its_modes() -> None:
    """A frozen, evaluating part stays in evaluation mode, and frozen parameters do not move."""
    job = training.task("digits-cnn")
    model = job.make_model(0)
    model.features[0].weight.requires_grad_(False)
    model.features[1].eval()
    frozen = model.features[0].weight.clone()
    moved = model.head[2].weight.clone()
    fitted(job, model=model, steps=3)
    assert torch.equal(model.features[0].weight, frozen)
    assert not torch.equal(model.head[2].weight, moved)
    assert model.training
    assert not model.features[1].training


def test_epochs_count_whole_batches() -> None:
    """1,297 digits make 27 batches of 48; the rest waits for another epoch."""
    result, _ = fitted(steps=None, epochs=1)
    assert result.steps == 1297 // 48 == 27


def test_whole_numbers_of_numpy_are_options() -> None:
    """Steps and batch size from an array are Python's own in the result."""
    result, _ = fitted(steps=np.int64(2), batch_size=np.int64(16))
    assert (result.steps, result.options.batch_size) == (2, 16)
    assert type(result.options.steps) is type(result.options.batch_size) is int


def test_a_seed_and_steps_of_numpy_give_the_same_losses() -> None:
    """A run whose seed and steps an array gave is the one of Python's numbers, and keeps them as those; 1.0 step is refused."""
    runs = [training.Run("digits-mlp", steps=2, batch_size=BATCH, device="cpu", seed=seed) for seed in (3, np.uint8(3))]
    try:
        assert runs[0].advance(2) == runs[1].advance(np.uint8(2))
        assert [type(run.options.seed) for run in runs] == [int, int]
        with pytest.raises(InputError, match="advance: steps is"):
            runs[0].advance(1.0)
    finally:
        for run in runs:
            run.close()


def test_the_result_goes_through_json_and_says_where_it_came_from() -> None:
    """MEASURED, with the device's name, and equal after a round trip."""
    result, _ = fitted()
    assert training.FitResult.from_dict(result.to_dict()) == result
    assert result.evidence.badge is Badge.MEASURED
    assert result.accuracy is not None
    assert result.table()[1][0] == ("ended", f"finished after {STEPS} of {STEPS} steps")


# -- time ------------------------------------------------------------------------------------------------------------


class Timed(torch.nn.Module):
    """A layer whose forward and backward pass take a known time."""

    def __init__(self, clock: Clock, forward: float, backward: float) -> None:
        super().__init__()
        self.inner, self.clock, self.seconds = torch.nn.Linear(64, 10), clock, forward
        self.inner.weight.register_hook(lambda gradient: clock.spend(backward))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Take the time, then compute."""
        self.clock.spend(self.seconds)
        return self.inner(x.flatten(1))


class TimedAdam(torch.optim.Adam):
    """An optimizer whose step takes a known time."""

    clock: Clock
    seconds = 0.0

    def step(self, closure: Any = None) -> Any:
        """Take the time, then update."""
        self.clock.spend(self.seconds)
        return super().step(closure)


def test_each_phase_gets_its_own_time() -> None:
    """Seconds that pass in data, forward, backward and optimizer are found there, and add up to the step."""
    clock = Clock()
    job = training.task("digits-mlp")
    data = job.train

    class SlowData:
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, indices: Any) -> Any:
            clock.spend(0.5)
            return data[indices]

    slow = dataclasses.replace(job, _load=lambda: (SlowData(), job.test))  # type: ignore[arg-type, return-value]
    TimedAdam.clock, TimedAdam.seconds = clock, 0.125
    result = training.fit(
        slow, model=Timed(clock, 1.0, 2.0), optimizer=TimedAdam, steps=25, batch_size=50, device="cpu", clock=clock, accumulate=1
    )
    phases = result.phase_seconds
    expected = {"data": 0.5, "forward": 1.0, "backward": 2.0, "optimizer": 0.125}
    for phase, seconds in expected.items():
        assert phases[phase] == pytest.approx(seconds, abs=1e-4), phase
    assert sum(phases.values()) == pytest.approx(float(np.mean(result.step_seconds)), rel=1e-6)
    assert result.step_seconds.shape == (23,), "the first step and the one that was followed are no samples"
    assert result.samples_per_second == pytest.approx(50 / 3.625, rel=1e-4)
    assert result.samples_per_second_interval is not None
    low, high = result.samples_per_second_interval
    assert low <= result.samples_per_second <= high


def test_too_few_steps_give_a_speed_without_an_interval() -> None:
    """Fewer than 20 samples: no interval, and the note says what to do."""
    result, _ = fitted()
    assert result.samples_per_second is not None
    assert result.samples_per_second_interval is None
    assert any(note.code == "no-interval" and "Take more steps" in note.sentence for note in result.notes)


def test_an_accelerator_is_waited_for_only_where_parts_are_timed() -> None:
    """One wait at each end of a stretch; one more for each part of a stretch that is timed part by part, which gives no speed."""
    from gpulab.training._meter import Meter

    waits: list[None] = []
    meter = Meter(Clock(), lambda: waits.append(None), waiting_costs=True)
    for parting, expected in ((False, 2), (True, 2 + 3)):
        waits.clear()
        meter.begin(parting)
        for phase in ("forward", "backward", "optimizer"):
            meter.mark(phase)
        meter.end(1, first=False, counts=True)
        assert len(waits) == expected
    assert len(meter.step_seconds) == 1
    assert set(meter.phase_seconds) == {"forward", "backward", "optimizer", "other"}


def test_steps_without_a_time_have_no_speed() -> None:
    """A clock too coarse for the steps gives no rate; where the interval's fast end is 0 s there is a rate and no interval."""
    from gpulab.training._meter import Meter

    meter = Meter(Clock(), lambda: None, waiting_costs=False)
    nothing = (None, None, "no step was left that only trained. Take more steps.")
    assert meter.rate(8) == nothing
    meter.step_seconds = [0.0, 0.0, 1.0]
    assert meter.rate(8) == nothing
    meter.step_seconds = [0.0, 2.0] * 19 + [2.0] * 2
    assert meter.rate(8) == (4.0, None, None)
    meter.step_seconds = [2.0] * 40
    assert meter.rate(8) == (4.0, (4.0, 4.0), None)
    meter.step_seconds = [float(seconds) for seconds in np.random.default_rng(0).permutation(np.linspace(1, 4, 101))]
    rate, ends, _ = meter.rate(8)
    assert rate == pytest.approx(8 / 2.5)
    assert ends is not None
    assert 8 / 4 < ends[0] < 8 / 2.5 < ends[1] < 8 / 1


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_the_memory_of_a_step_without_operators_is_the_allocators(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's peak is set back before the step and read once the device has finished it; a CPU's is not known, and both are told."""
    from gpulab.training._followed import Followed

    seen: list[Any] = []
    for name in ("reset_peak_memory_stats", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda index, name=name: seen.append((name, index)))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda index: seen.append(("read", index)) or 4096)
    followed = Followed(devices.Device(kind, 1), opaque=True)
    with followed.step(None, None, None):
        seen.append("step")
    if kind == "cuda":
        assert seen == [("reset_peak_memory_stats", 1), "step", ("synchronize", 1), ("read", 1)]
    else:
        assert seen == ["step"]
    peak, words = (4096, "the peak is that of the whole process") if kind == "cuda" else (None, "its peak is not known")
    assert (followed.peak_bytes, followed.by_category) == (peak, {})
    note = followed.note()
    assert note is not None
    assert (note.code, words in note.sentence) == ("skipped", True)
    assert Followed(devices.Device(kind, 1), opaque=False).note() is None


def test_the_loss_falls_and_the_network_reads() -> None:
    """A whole run of the shortest task: the loss falls tenfold from ln 10, and more than nine in ten digits are read."""
    result = training.fit("digits-mlp", device="cpu")
    assert result.losses[0] == pytest.approx(math.log(10), abs=0.2)
    assert result.final_loss is not None
    assert result.final_loss < 0.2
    assert result.accuracy is not None
    assert result.accuracy.interval[0] > 0.9
