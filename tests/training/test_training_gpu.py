"""Training on a real GPU: what only CUDA has, against the same run without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gpulab import devices, training

pytestmark = pytest.mark.gpu
TASK = "prose-transformer"  # needs no scikit-learn


def run(**options: Any) -> training.FitResult:
    """A short run."""
    return training.fit(TASK, **{"steps": 60, "batch_size": 16, "device": "cuda", **options})


def test_the_same_seed_gives_the_same_bits_and_the_cpu_agrees() -> None:
    """Twice the same losses on the GPU; the first losses are the CPU's but for rounding."""
    one, two = run(), run()
    assert one.losses.tolist() == two.losses.tolist()
    np.testing.assert_allclose(one.losses[:10], run(device="cpu", steps=10).losses, rtol=2e-3)


def test_a_graph_replays_the_same_steps() -> None:
    """Losses of a recorded step follow those of the launched ones, and every replay takes its own batch."""
    plain, graphed = run(), run(cuda_graph=True)
    assert graphed.options.cuda_graph, [note.sentence for note in graphed.notes]
    assert not any("could not be recorded" in note.sentence for note in graphed.notes)
    np.testing.assert_allclose(graphed.losses, plain.losses, rtol=5e-3)
    assert len(set(graphed.losses.tolist())) == 60
    assert graphed.phase_seconds.get("graph", 0) > 0


@pytest.mark.parametrize("options", [{"accumulate": 4}, {"precision": "bfloat16"}, {"loss_scale": 1024.0, "clip": 1.0}], ids=str)
def test_a_graph_holds_the_other_options(options: dict) -> None:
    """Parts, autocast, a fixed scale and clipping can be recorded."""
    plain, graphed = run(**options), run(cuda_graph=True, **options)
    assert not any("could not be recorded" in note.sentence for note in graphed.notes)
    np.testing.assert_allclose(graphed.losses, plain.losses, rtol=2e-2)


def test_an_optimizer_that_no_graph_holds_is_told() -> None:
    """An Adam that is not capturable: the run goes on launched, with a note, and its options say so."""
    result = run(cuda_graph=True, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=3e-3))
    assert result.ended == "finished"
    assert not result.options.cuda_graph
    assert any("could not be recorded" in note.sentence for note in result.notes)


def test_dynamic_scaling_and_a_graph_exclude_each_other() -> None:
    """Explained before the run, which goes on without the graph."""
    result = run(precision="float16", cuda_graph=True, steps=5)
    assert not result.options.cuda_graph
    assert any("dynamic loss scaling" in note.sentence for note in result.notes)


@pytest.mark.parametrize(
    "feeding",
    [
        {"pinned": True}, {"prefetch": 2}, {"prefetch": 2, "pinned": True}, {"workers": 2, "pinned": True}, {"loading": "items"},
        {"loading": "resident"}, {"loading": "resident", "prefetch": 2}, {"read_loss": True},
    ],
    ids=str,
)  # fmt: skip
def test_who_feeds_changes_no_bit(feeding: dict) -> None:
    """Pinned memory, a thread on a stream of its own, workers, data on the device and losses that are read: the same losses."""
    fed = run(**feeding)
    assert fed.losses.tolist() == run().losses.tolist()
    assert all(getattr(fed.options, name) == value for name, value in feeding.items())


def test_resident_data_make_no_step_wait() -> None:
    """CUDA's own debug mode counts no wait in the batches after the first, which copies the data."""
    from gpulab.training._feed import Feed, Order

    data = training.task(TASK).train
    feed = Feed(
        data, Order(len(data), 16, 0, 0, 6), workers=0, prefetch=0, pinned=False, loading="resident", device=devices.find("cuda"),
        to_device=lambda batch: (batch[0].to("cuda"), batch[1].to("cuda")),
    )  # fmt: skip
    next(feed)
    assert training.hidden_waits(lambda: next(feed), calls=5, device="cuda").warned == 0


def test_a_graph_is_recorded_while_a_thread_pins_batches() -> None:
    """What the loading thread does meanwhile does not break the recording."""
    for _ in range(3):
        graphed = run(cuda_graph=True, prefetch=2, pinned=True)
        assert graphed.options.cuda_graph, [note.sentence for note in graphed.notes]
    np.testing.assert_allclose(graphed.losses, run().losses, rtol=5e-3)


def test_a_gpu_that_is_not_the_current_one() -> None:
    """On the second GPU a recorded step, fed by a thread, learns as a launched one does, and the pipeline's events are of one device."""
    if torch.cuda.device_count() < 2:
        pytest.skip("this machine has one GPU")
    plain = run(device="cuda:1")
    run(cuda_graph=True, steps=6)  # so that PyTorch's own stream for recordings is the first GPU's
    graphed = run(device="cuda:1", cuda_graph=True, prefetch=2, pinned=True)
    assert graphed.options.cuda_graph, [note.sentence for note in graphed.notes]
    np.testing.assert_allclose(graphed.losses, plain.losses, rtol=5e-3)
    assert torch.cuda.current_device() == 0
    p = training.pipeline(batch_size=8, steps=5, image_size=32, device="cuda:1")
    assert all(span.seconds > 0 for span in p.lane("compute"))


def test_tf32_compiles() -> None:
    """PyTorch's compiler reads the switches that a run sets, the older one too."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no TF32")
    result = run(precision="tf32", compile=True)
    assert result.options.compile, [note.sentence for note in result.notes]
    assert result.final_loss == pytest.approx(run().final_loss, rel=0.1)


def test_the_ladder_climbs_on_a_gpu() -> None:
    """Every technique runs as it is called, alone and with the others; only what lies on the device is not pinned any more."""
    chosen = ("resident", "prefetch", "batch", "compile", "graph")
    result = training.ladder(TASK, chosen, device="cuda", seeds=0, turns=2)
    assert [rung.name for rung in result.rungs] == list(chosen), [one.reason for one in result.left_out]
    skipped = [note.sentence for note in result.notes if note.code == "skipped"]
    assert [sentence for sentence in skipped if "nothing was pinned" not in sentence] == []
    assert len(skipped) == 1


@pytest.mark.parametrize("precision", ["tf32", "bfloat16", "float16", "pure-bfloat16"])
def test_each_precision_learns(precision: str) -> None:
    """The loss falls as in float32, to a tenth."""
    plain, other = run(), run(precision=precision)
    assert other.ended == "finished"
    assert other.final_loss == pytest.approx(plain.final_loss, rel=0.1)


def test_tf32_changes_the_bits_and_only_while_it_runs() -> None:
    """The losses differ from float32's, and the switch is as before."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("this GPU has no TF32")
    before = torch.backends.cuda.matmul.fp32_precision
    assert run(precision="tf32").losses.tolist() != run().losses.tolist()
    assert torch.backends.cuda.matmul.fp32_precision == before


@pytest.mark.parametrize("options", [{"fused": True}, {"compile": True}, {"checkpoint": True}], ids=str)
def test_faster_forms_learn_the_same(options: dict) -> None:
    """But for rounding."""
    np.testing.assert_allclose(run(**options).losses, run().losses, rtol=2e-2)


def test_the_parts_of_a_step_and_its_speed() -> None:
    """Some stretches are timed part by part, the others give the speed, with an interval where there are enough."""
    result = run(steps=400)
    assert {"data", "copy", "forward", "backward", "optimizer"} <= set(result.phase_seconds)
    assert result.samples_per_second is not None
    assert result.samples_per_second_interval is not None
    assert 16 / result.samples_per_second <= sum(result.phase_seconds.values()) * 1.1, "waiting after each part is never faster"


def test_recomputing_saves_memory_that_the_allocator_sees() -> None:
    """The followed peak and CUDA's own agree to a tenth, plain and checkpointed."""
    for checkpoint in (False, True):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run(batch_size=256, steps=4, checkpoint=checkpoint)
        seen = torch.cuda.max_memory_allocated() - before
        assert result.peak_bytes == pytest.approx(seen, rel=0.1, abs=2**24)


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Any) -> None:
    """Bit for bit, on the GPU too."""
    run(steps=20, save=tmp_path / "a.pt")
    assert run(resume=tmp_path / "a.pt").losses.tolist() == run().losses.tolist()


def test_a_batch_that_does_not_fit_leaves_the_device_usable() -> None:
    """One sentence, and the next run trains."""
    from gpulab import memory
    from gpulab.errors import OutOfMemoryError

    with memory.limit("64 MiB", device="cuda", on_top=True), pytest.raises(OutOfMemoryError, match="batch_size=2048"):
        run(batch_size=2048, steps=2)
    assert run(steps=2).ended == "finished"
