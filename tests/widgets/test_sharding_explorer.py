"""The sharding explorer: states at once, predictions in a thread, what fits a GPU, and the code that gives the same."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable

import pytest
from control_tables import offers_what_it_takes

from gpulab import parallel
from gpulab.devices import memory_sizes
from gpulab.errors import InputError, StoppedError
from gpulab.widgets import sharding_explorer
from gpulab.widgets._instrument import Drawing
from gpulab.widgets.sharding_explorer import ShardingExplorer, _row, _sentence

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def bytes_of(text: str) -> float:
    """Return what a cell such as "1.50 MiB" says."""
    number, unit = text.split()
    return float(number) * UNITS[unit]


def test_states_are_drawn_without_a_prediction() -> None:
    """Seven billion parameters with Adam are 102 GiB of states: too many for 80 GiB in DDP, and a sixty-fourth of that in stage 3."""
    explorer = ShardingExplorer(model="7B", ranks=64, gpu="H100 SXM")
    assert explorer.predictions == {}
    drawing = explorer.draw(explorer.values)
    rows = {str(row[0]): row for row in drawing.rows}
    over = 16 * parallel.gpt_shape("7B").parameter_count - 80 * 2**30
    assert 22 < over / 2**30 < 23
    assert rows["ddp"][1:3] == ["too big: states 22.3 GiB over", "over 102 GiB"]
    assert rows["zero3"][1] == "states fit"
    assert rows["zero3"][-3:] == ["not yet"] * 3
    assert "tensor" not in rows
    assert any("heads" in note.sentence for note in drawing.notes)
    assert drawing.message.startswith("On H100 SXM: does not fit: ddp; not predicted yet: zero1")


def test_prediction_is_shown_with_its_verdict() -> None:
    """A predicted strategy's bar is its whole step, and the verdict says how much is to spare."""
    explorer = ShardingExplorer(model="course", ranks=2, strategy="zero3", positions=64, gpu="T4")
    explorer.run(wait=True)
    assert explorer.error == ""
    found = explorer.predictions["zero3"]
    drawing = explorer.draw(explorer.values)
    row = next(row for row in drawing.rows if row[0] == "zero3")
    spare = memory_sizes.memory_bytes("T4") - found.needed_bytes()
    assert row[1] == f"fits: {spare / 2**30:.1f} GiB free"
    cells = [bytes_of(str(cell)) for cell in row[2:]]
    assert sum(cells[1:]) == pytest.approx(cells[0], rel=0.01), "the parts of a row add up to what is needed"
    assert f"The peak of zero3 is in its {found.peak_phase} phase, at {found.peak_operator}." in drawing.message
    # To the last byte: needed and there, it fits; a byte less, and it is too big. The first two peaks are told, no third.
    states = explorer.states["zero1"]
    needed = found.needed_bytes()
    assert [_row(found, needed - less)[1] for less in (0, 1)] == ["fits: 0 B free", "too big: 1 B over"]
    assert [_row(states, states.total_bytes - less)[1] for less in (0, 1)] == ["states fit", "too big: states 1 B over"]
    several = [found, dataclasses.replace(found, strategy="tensor"), dataclasses.replace(found, strategy="ddp")]
    words = _sentence(several, needed, "T4")
    assert words.startswith("On T4: fits: zero3, tensor, ddp. The peak of zero3 is in its ")
    assert words.count(" The peak of ") == 2
    assert words.endswith(
        " The parts are what is alive at that moment: activations used up by then are gone. The rest is temporary tensors, what operators "
        "take inside, and a margin."
    )
    assert _sentence([found, states], needed - 1, "T4").startswith("On T4: does not fit: zero3")
    assert _sentence([states], states.total_bytes, "T4") == "On T4: not predicted yet: zero1."
    assert _sentence([states], states.total_bytes - 1, "T4") == "On T4: does not fit: zero1."
    explorer.set(ranks=4)
    assert explorer.predictions == {}
    explorer.set(ranks=2)
    assert explorer.predictions == {"zero3": found}


def test_code_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The printed lines make the prediction that the instrument shows."""
    explorer = ShardingExplorer(model="course", ranks=2, strategy="pipeline-1f1b", positions=64)
    explorer.run(wait=True)
    space: dict[str, object] = {}
    exec(explorer.code, space)
    shown, printed = explorer.predictions["pipeline-1f1b"], space["p"]
    assert isinstance(printed, parallel.RankMemory)
    assert printed.peak_by_category == shown.peak_by_category


def test_a_pipeline_fits_where_its_fullest_stage_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPipe's last stage keeps the scores of all microbatches: with 1,000 words to 128 features they weigh more than the embedding."""
    explorer = ShardingExplorer(model="course", ranks=2, strategy="pipeline-gpipe", positions=128, batch=16, gpu="T4")
    explorer.run(wait=True)
    assert explorer.error == ""
    found = explorer.predictions["pipeline-gpipe"]
    # Two microbatches of 16 x 128 positions: their log-probabilities alone, float32, are larger than all that stage 0 keeps of states.
    assert found.peak_by_category["activations"] > 2 * 16 * 128 * 1000 * 4 > explorer.states["pipeline-gpipe"].total_bytes
    assert found.rank == 1
    assert "The peak of pipeline-gpipe, whose stage 1 needs most, is in its" in explorer.draw(explorer.values).message


def test_stop_keeps_what_was_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in the third strategy, the first two are the result; stopped in the first one of the next run, they still are."""
    left = [2]

    def predict(*arguments: object, strategy: str, **named: object) -> str:
        if not left[0]:
            raise StoppedError("predict_ranks: stopped before two steps were followed; expected it to finish. Call it again.")
        left[0] -= 1
        return f"of {strategy}"

    monkeypatch.setattr(parallel, "predict_ranks", predict)
    monkeypatch.setattr(ShardingExplorer, "draw", lambda self, values: Drawing())
    explorer = ShardingExplorer(model="course", ranks=2, positions=64, strategy="all")
    for ranks in (2, 4):
        explorer.set(ranks=ranks)
        explorer.run(wait=True)
        assert (explorer.error, explorer.result) == ("", {"ddp": "of ddp", "zero1": "of zero1"})


def test_a_stop_before_the_first_prediction_has_nothing_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said beside the progress, and is no error."""

    def predict(*arguments: object, **named: object) -> None:
        raise StoppedError("predict_ranks: stopped before two steps were followed; expected it to finish. Call it again.")

    monkeypatch.setattr(parallel, "predict_ranks", predict)
    explorer = ShardingExplorer(model="course", ranks=2, positions=64)
    explorer.run(wait=True)
    assert (explorer.error, explorer.result, explorer.predictions) == ("", None, {})
    assert explorer._panel.progress.startswith("predict_ranks: stopped before two steps")


def test_old_predictions_are_forgotten_and_progress_is_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than are kept the oldest go; half of the second of seven strategies is 1.5 sevenths."""
    told: list[tuple[float, str]] = []

    def predict(*arguments: object, progress: Callable[[float, str], None], **named: object) -> types.SimpleNamespace:
        progress(0.5, "following")
        return types.SimpleNamespace(needed_bytes=lambda: 0)

    monkeypatch.setattr(parallel, "predict_ranks", predict)
    monkeypatch.setattr(sharding_explorer, "_KEPT", 2)
    monkeypatch.setattr(ShardingExplorer, "draw", lambda self, values: Drawing())
    explorer = ShardingExplorer(model="course", ranks=2, positions=64, strategy="all")
    explorer.work("predict", explorer.values, lambda *said: told.append(said), lambda: False)
    assert told[1] == (1.5 / 7, "zero1: following")
    # Of a pipeline two stages are followed: the first is half of the sixth strategy, and half of it a quarter.
    assert told[5] == (5.25 / 7, "pipeline-gpipe: stage 0: following")
    assert told[6] == (5.75 / 7, "pipeline-gpipe: stage 1: following")
    assert [asked.strategy for asked in explorer._found] == list(parallel.STATE_STRATEGIES)[-2:]


def test_what_cannot_be_split_is_told() -> None:
    """A strategy that cannot split the model is refused in one sentence inside the instrument, and an unknown GPU at once."""
    explorer = ShardingExplorer(model="course", ranks=8, strategy="tensor")
    explorer.run(wait=True)
    assert "tensor cannot split 4 heads over 8 ranks" in explorer.error
    with pytest.raises(InputError, match="Must fit on"):
        explorer.set(gpu="H300")
    with pytest.raises(InputError, match="Ranks"):
        explorer.set(ranks=0)


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(ShardingExplorer())
