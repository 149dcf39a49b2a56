"""OccupancyExplorer: the controls' launch, why it is limited, kernels that fill it, and the code shown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from control_tables import offers_what_it_takes
from redraws import in_a_tenth_of_a_second

import gpulab as gl
from gpulab import devices
from gpulab.devices import Device
from gpulab.errors import DeviceError, InputError
from gpulab.kernels import KernelFacts
from gpulab.widgets import OccupancyExplorer, occupancy_explorer


def facts(**changed: Any) -> KernelFacts:
    """What a compiler might say of a kernel."""
    figures: dict[str, Any] = {
        "name": "tile", "symbol": "_Z4tilePf", "line": 3, "registers": 72, "shared_bytes": 8192, "stack_bytes": 0, "spill_store_bytes": 0,
        "spill_load_bytes": 0, "constant_bytes": 0, "parameter_bytes": 8, "barriers": 2, "max_threads": None, "code_bytes": 640,
    }  # fmt: skip
    return KernelFacts(**figures | changed)


class Module:
    """Two kernels compiled for sm_86."""

    arch = "sm_86"

    def __init__(self) -> None:
        self.kernels = {"tile": facts(), "plain": facts(name="plain", registers=16, shared_bytes=0, barriers=0)}


def cells(o: OccupancyExplorer) -> dict[str, list[Any]]:
    """The rows of the table by their first cell."""
    return {row[0]: row[1:] for row in o._results.rows}


def test_the_sentence_the_table_and_the_picture_follow_the_controls() -> None:
    """64 registers on 9.0 hold 32 of 64 warps (65,536 / 64 / 32): half, by registers; the sentence says so with what would lift it."""
    o = OccupancyExplorer(threads_per_block=256, registers_per_thread=64, compute_capability="9.0")
    assert o._results.message.startswith("The register file holds 32 warps of 64 registers a thread: 4 blocks. With at most 48 registers")
    assert cells(o)["registers"] == ["16,384 of 65,536", "4 (the limit)"]
    assert cells(o)["occupancy"] == ["32 of 64 warps", "50.0%"]
    assert "why" not in cells(o)
    assert [e["badge"] for e in o._results.evidence] == ["MODELLED"]
    o.set(threads_per_block=33)
    assert "The last warp of each block uses 1 of its 32 lanes." in o._results.message
    o.set(shared_bytes_per_block=250_000)
    assert "it can't be launched" in o._results.message
    assert cells(o)["occupancy"] == ["0 of 64 warps", "0.0%"]
    assert o.launch.ratio == 0


def test_the_code_gives_the_same_occupancy() -> None:
    """What "Show the code" prints makes the launch that is on the screen, barriers included."""
    o = OccupancyExplorer(
        threads_per_block=96, registers_per_thread=40, shared_bytes_per_block=5000, compute_capability="12.0", barriers_per_block=3
    )
    names: dict[str, Any] = {}
    exec(o.code.rsplit("\n", 1)[0], names)
    assert names["o"] == o.launch
    assert names["o"].limiter == "barriers"  # 24 barriers for 3 each: 8 blocks; everything else allows more


def test_a_kernel_fills_the_controls() -> None:
    """One kernel's figures set registers, shared bytes with those of the launch, and barriers; the capability is kept."""
    o = OccupancyExplorer(compute_capability="8.0")
    assert not o.on_screen(o.controls["kernel"])
    assert o.load(facts(), dynamic_shared_bytes=1000) is o
    assert (o.values["registers_per_thread"], o.values["shared_bytes_per_block"], o.values["barriers_per_block"]) == (72, 9192, 2)
    assert o.values["compute_capability"] == "8.0"
    assert o.on_screen(o.controls["kernel"])
    assert "Kernel tile: 72 registers a thread, 8,192 bytes of shared memory and 1,000 of the launch." in o._results.message
    o.set(registers_per_thread=32)
    assert "Moved since: Registers of a thread." in o._results.message


def test_the_bytes_of_a_launch_may_be_a_whole_number_of_numpy() -> None:
    """A number from an array fills the controls as Python's own does, and shows as one; a float is refused."""
    o = OccupancyExplorer(compute_capability="8.0").load(facts(), dynamic_shared_bytes=np.int32(1000))
    assert "8,192 bytes of shared memory and 1,000 of the launch." in o._results.message
    assert [type(dynamic) for *_, dynamic in o._kernels.values()] == [int]
    with pytest.raises(InputError, match="expected a whole number from 0"):
        o.load(facts(), dynamic_shared_bytes=1000.0)


def test_a_module_offers_all_its_kernels_and_its_architecture() -> None:
    """sm_86 becomes capability 8.6; choosing another kernel fills the controls with its own figures."""
    o = OccupancyExplorer(compute_capability="9.0").load(Module(), "plain")
    assert (o.values["kernel"], o.values["compute_capability"], o.values["registers_per_thread"]) == ("plain (8.6)", "8.6", 16)
    o.set(kernel="tile (8.6)")
    assert (o.values["registers_per_thread"], o.values["shared_bytes_per_block"]) == (72, 8192)
    o.set(kernel="none: numbers of your own", registers_per_thread=20)
    assert "Kernel" not in o._results.message


def test_what_is_said_of_a_kernel_is_whole() -> None:
    """Where it was compiled for, what it takes, and nothing of a launch that asks for no more."""
    o = OccupancyExplorer(compute_capability="9.0").load(Module())
    assert o._results.message.endswith(" Kernel tile, compiled for 8.6: 72 registers a thread, 8,192 bytes of shared memory.")


@pytest.mark.parametrize(("told", "chosen"), [("8.6", "8.6"), ("99.9", "9.0"), (None, "9.0"), (DeviceError("it vanished"), "9.0")], ids=str)
def test_it_begins_with_the_gpu_that_is_there(told: Any, chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compute capability of the first NVIDIA GPU, where the course knows it; else that of the Hopper generation, by its product."""

    def accelerator(device: Device) -> Any:
        assert str(device) == "cuda:0"
        if isinstance(told, Exception):
            raise told
        return SimpleNamespace(compute_capability=told)

    monkeypatch.setattr(devices, "available", lambda: [Device("cpu"), Device("cuda", 0), Device("cuda", 1)])
    monkeypatch.setattr(occupancy_explorer._facts, "accelerator", accelerator)
    o = OccupancyExplorer()
    assert o.values["compute_capability"] == chosen
    (spec,) = (control for control in o._panel.spec if control["name"] == "compute_capability")
    assert {"8.6, such as A10", "9.0, such as H100 SXM"} < set(spec["options"])


def test_promised_blocks_and_spills_are_told() -> None:
    """A promise of 128 threads lowers a larger block to it, and a smaller block stays; spilled bytes are in the sentence."""
    o = OccupancyExplorer(threads_per_block=256).load(facts(max_threads=128, spill_store_bytes=24, spill_load_bytes=16))
    assert o.values["threads_per_block"] == 128
    assert "at most 128 threads" in o._results.message
    assert "It spills: 40 bytes" in o._results.message
    assert OccupancyExplorer(threads_per_block=64).load(facts(max_threads=128)).values["threads_per_block"] == 64


def test_a_compiled_kernel_is_taken_as_it_comes() -> None:
    """What NVRTC makes of a kernel with 1,024 floats of shared memory fills 4,096 bytes and its architecture."""
    source = 'extern "C" __global__ void k(float* x) { __shared__ float a[1024]; a[threadIdx.x] = x[0]; __syncthreads(); x[1] = a[5]; }'
    try:
        made = gl.kernels.compile_cuda(source, arch="sm_89")
    except gl.errors.MissingLibraryError as error:
        pytest.skip(str(error))
    o = OccupancyExplorer().load(made)
    assert o.values["shared_bytes_per_block"] == 4096
    assert o.values["compute_capability"] == "8.9"
    assert o.values["registers_per_thread"] == made.kernels["k"].registers


@pytest.mark.parametrize(
    ("given", "arguments", "words"),
    [
        (None, {}, "holds no facts of a kernel"),
        ({"registers": 3}, {}, "holds no facts of a kernel"),
        (Module(), {"kernel": "absent"}, "expected one of: tile, plain"),
        (facts(), {"compute_capability": "6.1"}, "expected one of: 7.0"),
        (facts(), {"dynamic_shared_bytes": -1}, "expected a whole number from 0"),
        (facts(), {"dynamic_shared_bytes": 2**20}, "Shared memory of a block"),
    ],
)
def test_what_cannot_be_loaded_changes_nothing(given: Any, arguments: dict[str, Any], words: str) -> None:
    """Each refusal is a sentence that says what was expected; the values and the list of kernels stay."""
    o = OccupancyExplorer(registers_per_thread=40)
    before, shown = dict(o.values), o._panel.spec
    with pytest.raises(InputError, match=words):
        o.load(given, **arguments)
    assert o.values == before
    assert o._panel.spec == shown
    assert not o._kernels
    o.set(registers_per_thread=41)


def test_it_redraws_within_a_tenth_of_a_second() -> None:
    """The best of ten moves, in this process's own time, so that a busy machine does not count."""
    o = OccupancyExplorer()
    assert in_a_tenth_of_a_second(lambda registers: o.set(registers_per_thread=registers), range(40, 50))


def test_what_it_offers_it_takes() -> None:
    """Buttons and controls are those of its table, and each option and suggestion is taken as itself."""
    offers_what_it_takes(OccupancyExplorer())
