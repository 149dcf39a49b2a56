"""What each instrument offers where there is no GPU, control by control; a star is what another module lists, or this machine decides."""

from __future__ import annotations

import fnmatch
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from gpulab import devices
from gpulab.widgets import Instrument


def listed(values: Sequence[Any]) -> str:
    """Return values in a row; five and more with one difference (..) or one factor (...) are told by the first two and the last."""
    left, found = list(values), list[str]()
    while left:
        numbers = len(left) > 4 and all(type(value) in (int, float) for value in left)
        by_difference, by_factor = (_alike(left, step) for step in (operator.sub, lambda b, a: a and b / a)) if numbers else (1, 1)
        told = max(by_difference, by_factor)
        if told > 4:
            found.append(f"{_text(left[0])} {_text(left[1])}{'..' if by_difference > 4 else '...'}{_text(left[told - 1])}")
        else:
            told = 1
            found.append(_text(left[0]))
        left = left[told:]
    return " ".join(found)


def _text(value: Any) -> str:
    """A number as people write it, where that is the number; large and small powers of two as such."""
    if type(value) in (int, float) and 0 < value < 1e300 and abs(math.log2(value)) >= 13 and math.log2(value).is_integer():
        return f"2^{math.log2(value):.0f}"
    if type(value) is float and 1e9 <= value < 1e12:
        return f"{value / 1e9:g}e9"
    short = f"{value:g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e") if type(value) in (int, float) else ""
    return short if short and float(short) == value else str(value)


def _alike(values: Sequence[Any], step: Callable[[Any, Any], Any]) -> int:
    """How many values from the first on have the same step from one to the next."""
    steps = [step(b, a) for a, b in itertools.pairwise(values)]
    return 1 + len(list(itertools.takewhile(lambda each: each == steps[0], steps)))


def written(control: Any) -> str:
    """Return a control as a line of the tables."""
    told = control.describe()
    if told["kind"] == "number":
        words = f"{_text(control.minimum)} to {_text(control.maximum)} {told['unit']} by {listed(control.suggestions)}"
    elif told["kind"] == "switch":
        words = ""
    else:
        words = listed([option[0] if isinstance(option, tuple) else option for option in control.options])
    initial = listed(control.initial) if isinstance(control.initial, tuple) else _text(control.initial)
    flags = {"shows": control.shows_only, "whole": getattr(control, "integer", False), "one": getattr(control, "least", 0) == 1}
    flags |= {f"for {','.join(control.for_actions)}": bool(control.for_actions), f"in {','.join(control.views)}": bool(control.views)}
    line = f"{control.name} {told['kind']} {words} = {initial} {' '.join(word for word, there in flags.items() if there)}"
    return " ".join(line.split())


def differences(instrument: Instrument) -> list[tuple[str, str]]:
    """Return (expected, found) of each line that is not as the table has it, buttons first."""
    expected = [line.strip() for line in TABLES[type(instrument).__name__].strip().splitlines()]
    buttons = ", ".join(f"{action.label}{'' if action.measures else ' (beside others)'}" for action in instrument.actions)
    found = [f"[{buttons}]", *map(written, instrument.controls.values())]
    return [pair for pair in zip(expected, found, strict=True) if not fnmatch.fnmatchcase(pair[1], pair[0].replace("[", "[[]"))]


def offers_what_it_takes(instrument: Instrument) -> None:
    """Its table's controls; each default is an option, each option and suggestion is taken as itself, texts differ, help is a sentence."""
    if len(devices.available()) == 1:  # a GPU brings more controls and other defaults
        assert differences(instrument) == []
    actions = {action.name for action in instrument.actions}
    labels = [control.label for control in instrument.controls.values()]
    assert len(set(labels)) == len(labels)
    assert instrument.title
    assert instrument.summary.endswith(".")
    assert all(action.label[0].isupper() and (not action.help or action.help.endswith(".")) for action in instrument.actions)
    for key, control in instrument.controls.items():
        given, described = control.describe(), instrument.values[key]
        assert control.name == key
        assert not control.help or control.help.endswith("."), control.help
        assert control.read(control.raw(described)) == described
        assert set(control.for_actions) <= actions
        assert set(control.views) <= {option if isinstance(option, str) else option[0] for option in _options(instrument, "view")}
        options = [option[0] if isinstance(option, tuple) else option for option in getattr(control, "options", ())]
        texts = given.get("options", [])
        assert len(set(texts)) == len(texts) == len(options)
        for k, (option, text) in enumerate(zip(options, texts, strict=True)):
            assert control.check(text) == ((option,) if given["kind"] == "several" else option)
            assert control.read([k] if given["kind"] == "several" else k) == ((option,) if given["kind"] == "several" else option)
        if options and given["kind"] != "several" and control.default is not None:
            assert control.default in options
        suggestions = list(given.get("suggestions", ()))
        assert len(set(suggestions)) == len(suggestions)
        assert [control.check(each) for each in suggestions] == suggestions
    instrument.close()


def _options(instrument: Any, name: str) -> list[Any]:
    return list(instrument.controls[name].options) if name in instrument.controls else []


TABLES = {
    "AccessPatterns": """
        []
        kind choice * = strided
        stride_elements slider 0 1..40 48 63 64 65 96 127 128 129 256 257 512 1024 = 1
        offset_elements slider 0 1..32 = 0
        element_bytes choice 1 2...16 = 4
        active_lanes slider 0 1..32 = 32
    """,
    "CompareTimings": """
        [Run, Find break-even]
        workload choice * = matmul
        n number 1 to 2^40 by 64 128...4096 = 512 whole for run
        dtype choice * = float32
        deadline slider 0.5 1 2 5 10 = 2
        transfer switch = False for run
        recorded switch = True shows
        against choice recording * model = recording * for break_even
        view radio run break_even = run shows
    """,
    "LossScaling": """
        [Compute gradients (beside others)]
        task choice * = digits-mlp
        steps choice 0 20 100 300 = 100
        format choice float16 bfloat16 float8_e5m2 float8_e4m3fn = float16 shows
        which choice all parameters activations = all shows
        scale slider 2^-16 2^-15...2^32 = 1 shows
    """,
    "MachineCard": """
        [Refresh (beside others)]
        problems_only switch = False shows
    """,
    "MemoryInspector": """
        [Snapshot (beside others), Predict, Run a step, Release (beside others)]
        view radio snapshot predict trace release = snapshot shows
        device choice cpu = cpu for snapshot,trace,release in snapshot,trace,release
        model choice cnn mlp transformer gpt2-small = cnn for trace in predict,trace
        batch slider 1 2...1024 = 32 for trace in predict,trace
        optimizer choice adam adamw sgd sgd-momentum rmsprop = adam for trace in predict,trace
        precision choice float32 bfloat16 float16 pure-bfloat16 pure-float16 = float32 for trace in predict,trace
        checkpoint switch = False for trace in predict,trace
        capacity choice cpu 8 12 16 24 40 48 80 141 = cpu shows in predict
        picture radio bars timeline = bars shows in predict
        outputs switch = False for release in release
    """,
    "ModelDiet": """
        [Run, Clear the points (beside others)]
        task choice * = digits-cnn shows
        network choice as it is resnext mobilenet = as it is shows
        channels slider 0 0.25 0.5 0.75 = 0 shows
        zeros slider 0 0.5 0.8 0.9 0.95 0.98 = 0 shows
        stored choice float32 8 bits 4 bits 3 bits 2 bits 16 values 8 values 4 values = float32 shows
        scale radio per-channel per-tensor = per-channel shows
        inputs choice None dynamic static = None shows
        compute choice dense csr integer = dense shows
        fine_tune slider 0 0.25 0.5 1 = 0.5 shows
        seeds slider 1 2 3 5 = 1 shows
        batch slider 1 16 64 256 = 64 shows
        device choice cpu = cpu shows
    """,
    "NumberFormats": """
        []
        format choice * = float16
        beside choice none * = bfloat16
        value number -1.7976931348623157e+308 to 1.7976931348623157e+308 by 0.1 1 2049 70000 3e-8 1e-8 = 0.1
        steps slider -16 -15..16 = 0
        bits several 0 1..15 =
    """,
    "OccupancyExplorer": """
        []
        kernel choice none = none
        threads_per_block number 1 to 1024 by 32 64..1024 = 256 whole
        registers_per_thread slider 0 1..255 = 32
        shared_bytes_per_block number 0 to 2^18 bytes by 0 1024..2^18 = 0 whole
        compute_capability choice * = 9.0
        barriers_per_block slider 0 1..16 = 1
    """,
    "PipelineSchedule": """
        [Measure on ranks]
        schedule choice split gpipe 1f1b interleaved = gpipe
        stages slider 2 3 4 6 8 = 4
        microbatches slider 1 2 3 4 6 8 12 16 24 32 = 8
        chunks slider 2 3 4 = 2
        forward_ms number 1 to 1000 ms by 5 10 20 40..100 = 20
        backward_ms number 1 to 1000 ms by 5 10 20 40..100 = 40
        transfer_ms number 0 to 1000 ms by 0 1 2 5 10 20 = 0 shows
    """,
    "PipelineTimeline": """
        [Run the steps]
        way radio model here = model shows
        batch_size slider 8 16...128 = 32
        workers slider 0 1..8 = 0
        prefetch slider 1 2 4 8 = 2
        pinned switch = False
        read_loss switch = True
        accelerator choice model = model
        step_seconds slider 0.002 0.005 0.01...0.16 = 0.02
        loading_ms number 0.01 to 1000 ms by 0.2 0.5 1 1.5 2 3 5 10 = 1.5 shows
        cores number 1 to 512 by 1 2...64 = * shows whole
    """,
    "RankTimeline": """
        [Run on ranks]
        strategy choice * = ddp
        ranks slider 2 3 4 = 2
        layers slider 2 4 8 = 2
        width slider 32 64 128 256 = 64
        batch_size slider 4 8...64 = 16
        microbatches slider 1 2...16 = 4
        bucket_kib slider 16 64 256 25600 = 64
        shown_steps slider 1 2 3 = 2 shows
    """,
    "RooflineExplorer": """
        [Run]
        workloads several * = matmul add gelu softmax fft conv2d one
        dtype choice * = float32
        size slider 0 0.25..1 = 0.5
        device choice cpu = cpu
        deadline slider 0.2 0.5 1 2 5 = 0.5
        beside choice none * = H200 SXM shows
    """,
    "ScalingLab": """
        [Measure on ranks]
        quantity radio speedup efficiency seconds = speedup shows
        mode radio strong weak = strong
        laws several amdahl gustafson ring = amdahl gustafson ring shows
        top slider 8 16 64...4096 = 64 shows
        serial_share slider 0 0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 = 0.05 shows
        basis radio sliders measured = sliders shows
        step_seconds slider 0.001 0.002 0.005 0.01 0.02 0.05 0.1 0.2 0.5 1 2 5 = 0.1 shows
        parameter_bytes slider 2^20 2^22...2^40 = 2^28 shows
        latency_seconds slider 0 1e-6 2e-6 5e-6 1e-5 2e-5 5e-5 0.0001 0.0002 0.0005 0.001 = 1e-5 shows
        bandwidth_bytes_per_second slider 1e8 2e8 5e8 1e9 2e9 5e9 10e9 20e9 50e9 100e9 200e9 500e9 = 20e9 shows
        overlap slider 0 0.25..1 = 0 shows
        model choice * = mlp
        waits radio False True = False
        ranks slider 1 2 3 4 = 2
        recorded choice none * = none shows
    """,
    "ShardingExplorer": """
        [Predict the step (beside others)]
        model choice * = 1.3B
        ranks slider 1 2...1024 = 8
        strategy choice * all = zero3
        precision choice float32 bfloat16 = bfloat16
        optimizer choice adam sgd-momentum sgd = adam
        batch slider 1 2...64 = 1
        positions slider 64 128...2048 = 1024
        checkpoint switch = False
        gpu choice * = H100 SXM shows
    """,
    "SimtMicroscope": """
        [Run (beside others)]
        kernel choice * = vector_add
        block_number number 0 to 3 by = 0 whole
        warp choice 0 = 0 shows
        step number 1 to 1 by = 1 shows whole
    """,
    "TrainingRace": """
        [Race]
        task choice digits-cnn digits-mlp digits-hard-cnn prose-transformer = digits-cnn
        device choice cpu = cpu
        steps slider 10 20...320 = 80
        seed number 0 to 1e6 by = 0 whole
        first_precision choice float32 tf32 bfloat16 float16 pure-bfloat16 pure-float16 = float32
        first_batch choice 0 8 16...256 = 0
        first_means choice nothing accumulate checkpoint channels_last fused prefetch workers compile cuda_graph clip rate = nothing
        second_precision choice float32 tf32 bfloat16 float16 pure-bfloat16 pure-float16 = bfloat16
        second_batch choice 0 8 16...256 = 0
        second_means choice nothing accumulate checkpoint channels_last fused prefetch workers compile cuda_graph clip rate = nothing
        recorded choice none * = none shows
    """,
    "TransferExplorer": """
        [Sweep, Find break-even, Measure overlap]
        view radio sweep break_even overlap = sweep shows
        device choice cpu = cpu for sweep in sweep
        deadline slider 2 5 10 20 60 = 5 for sweep in sweep
        recorded choice none * = none shows in sweep,overlap
        quantity radio seconds rate = seconds shows in sweep
        series choice none = none shows in sweep
        predict_mebibytes number 2^-20 to 2^20 MiB by 0.0009765625 0.001953125...1024 = 3 shows in sweep
        link_shown switch = True shows in sweep
        workload choice * = matmul for break_even in break_even
        against choice recording * model = recording * for break_even in break_even
        search_deadline slider 5 10 20 40 = 10 for break_even in break_even
        way radio model here = model shows in overlap
        nbytes slider 2^20 2^21...2^28 = 2^26 for overlap in overlap
        chunks slider 1 2...128 = 8 for overlap in overlap
        compute_ratio slider 0.25 0.5...4 = 1 shows in overlap
        link choice * = pcie4-x16 shows
        latency_seconds slider 5e-7 1e-6 2e-6 5e-6 1e-5 2e-5 5e-5 0.0001 0.0002 0.0005 = 1e-5 shows
        bandwidth_bytes_per_second slider 1e9 2e9 4e9 8e9 12.35e9 16e9 26e9 32e9 53e9 64e9 128e9 225e9 450e9 900e9 = 26e9 shows
    """,
}
