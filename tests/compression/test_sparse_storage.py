"""Sparse formats and files: the same numbers from fewer bytes, sizes by hand, damaged files in a sentence."""

from __future__ import annotations

import copy
import io
import json
import random
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gpulab import compression, networks
from gpulab.compression import _sparse, _storage
from gpulab.errors import CheckpointError, DeviceError, InputError, MissingLibraryError


@pytest.mark.parametrize("amount", [0.0, 0.5, 0.95])
def test_csr_gives_the_same_numbers(amount: float):
    """Linear layers and convolutions (strided, dilated, unbiased) multiply as the dense ones do; copies and loads too."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False), nn.ReLU(), nn.Conv2d(6, 5, 3, dilation=2), nn.Flatten(), nn.Linear(45, 7)
    )
    x = torch.randn(4, 2, 14, 14)
    pruned = compression.prune(model, amount)
    sparse = compression.to_sparse(pruned)
    torch.testing.assert_close(sparse(x), pruned(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(copy.deepcopy(sparse)(x), pruned(x), atol=1e-5, rtol=1e-5)
    assert compression.sparsity(sparse) == pytest.approx(amount, abs=1e-2)
    assert sum(m.values.numel() for m in sparse.modules() if hasattr(m, "columns")) == 693 - round(amount * 693)


def test_csr_follows_the_type_of_its_values():
    """A layer that ran in float32 runs in float64 as well, once the model is moved there."""
    sparse, x = compression.to_sparse(nn.Sequential(nn.Linear(8, 3))), torch.randn(2, 8)
    torch.testing.assert_close(sparse(x).double(), sparse.double()(x.double()), atol=1e-5, rtol=1e-5)


def test_a_linear_layer_of_sequences_stays_sparse():
    """Inputs with more dimensions (batch, position, feature) are taken as rows."""
    layer, x = nn.Linear(8, 3), torch.randn(2, 5, 8)
    sparse = compression.to_sparse(compression.prune(nn.Sequential(layer), 0.5))
    torch.testing.assert_close(sparse(x), compression.prune(nn.Sequential(layer), 0.5)(x))


def test_grouped_convolutions_stay_dense_unless_named():
    """Without names, what the format cannot hold is left as it is; with its name it is refused."""
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Conv2d(4, 2, 1))
    sparse = compression.to_sparse(model)
    assert isinstance(sparse[0], nn.Conv2d)
    assert not isinstance(sparse[1], nn.Conv2d)
    with pytest.raises(InputError, match="4 groups"):
        compression.to_sparse(model, layers=["0"])


def test_two_of_four_is_explained_where_the_device_lacks_it():
    """A CPU has no 2:4 instructions: the refusal says what came with which hardware, and what to use instead."""
    pruned = compression.prune(networks.mlp(64, 64, 32), pattern="2:4")
    with pytest.raises(DeviceError, match=r"8\.0 \(Ampere\).*format='csr'"):
        compression.to_sparse(pruned, "2:4")
    assert "instructions" in _sparse.two_four_refusal("cpu")


@pytest.mark.gpu
def test_two_of_four_on_the_gpu():
    """On a GPU of compute capability 8.0 the sparse layer gives what the masked one gives in half precision."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("no 2:4 instructions before compute capability 8.0")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64)).half().cuda()
    pruned = compression.prune(model, pattern="2:4")
    sparse = compression.to_sparse(pruned, "2:4")
    x = torch.randn(128, 256, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        torch.testing.assert_close(sparse(x), compression.finish(pruned)(x), atol=2e-2, rtol=2e-2)
    with pytest.raises(InputError, match="two of four"):
        compression.to_sparse(model, "2:4")


@pytest.mark.gpu
def test_csr_on_the_gpu():
    """The sparse layers run where the model lies."""
    torch.manual_seed(0)
    pruned = compression.prune(networks.cnn(width=8), 0.8).cuda().eval()
    x = torch.randn(3, 1, 8, 8, device="cuda")
    with torch.no_grad():
        torch.testing.assert_close(compression.to_sparse(pruned)(x), pruned(x), atol=1e-4, rtol=1e-3)


@pytest.mark.gpu
def test_integer_kernels_on_a_gpu_are_explained_and_torchao_runs():
    """The CPU's kernels are refused with the next best, which works there."""
    model = networks.mlp(64, 128, 64).cuda().eval()
    with pytest.raises(DeviceError, match="torchao"):
        compression.quantize(model, "per-channel", "dynamic", arithmetic="integer")
    x = torch.randn(64, 64, device="cuda")
    theirs = compression.quantize(model, "per-channel", "dynamic", arithmetic="torchao")
    with torch.no_grad():
        assert float((theirs(x) - model(x)).abs().max()) < 0.05 * float(model(x).abs().max())


def every_kind() -> dict[str, nn.Module]:
    """One model of each kind that this package makes."""
    torch.manual_seed(0)
    cnn = networks.cnn(width=4)
    pruned = compression.prune(cnn, 0.9)
    return {
        "plain": cnn,
        "masked": pruned,
        "csr": compression.to_sparse(pruned),
        "smaller": compression.prune(cnn, 0.5, structured=True),
        "8 bits": compression.quantize(cnn),
        "4 bits": compression.quantize(cnn, bits=4),
        "pruned, 8 bits": compression.quantize(pruned),
        "static": compression.quantize(cnn, activations="static", calibration=torch.randn(4, 1, 8, 8)),
        "shared": compression.share_weights(cnn, 16),
        "pruned, shared": compression.share_weights(pruned, 8),
        "aware": compression.quantize_aware(cnn, bits=2),
        "tied": networks.transformer(30, 16, 2, 1, context=8, tied=True),
        "bfloat16": networks.mlp(8, 8, 2).bfloat16(),
        "half": networks.mlp(8, 8, 2).half(),
    }


@pytest.mark.parametrize("kind", list(every_kind()))
def test_files_give_the_same_tensors_back(kind: str, tmp_path: Path):
    """Every kind of model comes back bit for bit, into a fresh model of its shape; the size told is the file's."""
    model = every_kind()[kind]
    path = tmp_path / "model.bin"
    nbytes = compression.save(model, path)
    assert nbytes == path.stat().st_size == compression.size_on_disk(model)
    tensors, expected = compression.load(path), compression.finish(model).state_dict()
    assert list(tensors) == list(expected)
    for name, tensor in expected.items():
        assert tensors[name].dtype == tensor.dtype
        assert torch.equal(tensors[name], tensor)
    compression.finish(model).load_state_dict(tensors)


def parameters(model: nn.Module) -> int:
    """How many there are."""
    return sum(p.numel() for p in model.parameters())


def test_sizes_by_hand():
    """One layer of 300 x 300 normal weights: what each form takes, to the few hundred bytes of header."""
    torch.manual_seed(0)
    model, n = nn.Sequential(nn.Linear(300, 300, bias=False)), 90_000
    nn.init.normal_(model[0].weight)
    expected = {
        "dense": (model, 4 * n),
        "90 % zeros": (compression.prune(model, 0.9), n // 8 + 4 * n // 10),
        "8 bits": (compression.quantize(model), n + 4 * 300),
        "4 bits": (compression.quantize(model, bits=4), n // 2 + 4 * 300),
        "16 values": (compression.share_weights(model, 16), n // 2 + 16 * 4),
        "90 % zeros, 8 bits": (compression.quantize(compression.prune(model, 0.9)), n // 8 + n // 10 + 4 * 300),
        "90 % zeros, 4 values": (compression.share_weights(compression.prune(model, 0.9), 4), n // 8 + n // 40 + 16),
        "csr, 16-bit columns": (compression.to_sparse(compression.prune(model, 0.9)), (4 + 2) * n // 10 + 2 * 301),
    }
    for name, (each, nbytes) in expected.items():
        assert 0 <= compression.size_on_disk(each) - nbytes < 600, name


def test_zeros_of_bfloat16_have_no_sign_that_costs():
    """A mask leaves -0 of a negative weight: the file is as large as that of the same weights without their signs."""
    torch.manual_seed(0)
    size = torch.rand(64, 64) + 0.1
    sizes = []
    for sign in (1, -1):
        model = nn.Sequential(nn.Linear(64, 64, bias=False)).bfloat16()
        with torch.no_grad():
            model[0].weight.copy_(sign * size)
        pruned = compression.prune(model, 0.9)
        back = _storage.unpacked(_storage.packed(pruned), "here")["0.weight"]
        assert torch.equal(back, compression.finish(pruned)[0].weight)
        sizes.append(compression.size_on_disk(pruned))
    assert sizes[0] == sizes[1] < 64 * 64 * 2 / 4


def test_a_tied_weight_is_stored_once():
    """The embedding and the head of a tied language model are one table in the file."""
    tied, loose = (networks.transformer(500, 32, 2, 1, context=8, tied=t) for t in (True, False))
    saved = compression.size_on_disk(loose) - compression.size_on_disk(tied)
    assert abs(saved - 4 * 500 * 32) < 100


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.integers(0, 255), min_size=1, max_size=70),
    bits=st.integers(1, 8),
)
def test_packed_bits_come_back(values: list[int], bits: int):
    """Any numbers of so many bits come back from their packed form."""
    given = np.array([v % 2**bits for v in values], np.uint8)
    content = _storage._pack_bits(given, bits)
    assert len(content) == -(-len(values) * bits // 8)
    assert np.array_equal(_storage._unpack_bits(content, bits, len(values)), given)


def test_a_damaged_file_is_a_sentence(tmp_path: Path):
    """Cut short anywhere, one bit changed anywhere, longer, or something else: an error of ours that says what to do."""
    path = tmp_path / "model.bin"
    compression.save(networks.mlp(4, 4, 2), path)
    content = path.read_bytes()
    damaged = [content[:cut] for cut in (0, 5, 20, 60, len(content) - 1)]
    damaged += [b"PK" + content, content + b"x", content[:30] + b"\0\0\0\0" + content[34:]]
    rng = random.Random(0)
    for _ in range(60):
        changed = bytearray(content)
        changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        damaged.append(bytes(changed))
    for wrong in damaged:
        path.write_bytes(wrong)
        with pytest.raises(CheckpointError, match="Save the model again"):
            compression.load(path)


def _file(header: dict, body: bytes) -> bytes:
    """A file with a checksum that matches, as someone who knows the format would write it."""
    names = zlib.compress(json.dumps(header).encode())
    rest = names + body
    return _storage._MAGIC + len(names).to_bytes(4, "little") + zlib.crc32(rest).to_bytes(4, "little") + rest


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"form": "mask", "shape": [2**62], "dtype": "float32", "parts": [1, 0]}},
        {"w": {"form": "plain", "shape": [2**40], "dtype": "float32", "parts": [4]}},
        {"w": {"form": "plain", "shape": [1], "dtype": "object", "parts": [8]}},
        {"w": {"form": "same", "as": "w"}},
        {"w": {"form": "torch", "shape": [1], "parts": [4]}},
        {"w": None},
        ["w"],
    ],
    ids=str,
)
def test_a_hostile_file_asks_for_no_memory_and_runs_nothing(header: dict, tmp_path: Path):
    """Shapes beyond what the file holds, foreign types, a name of itself, a pickle that is none: one sentence each."""
    (tmp_path / "model.bin").write_bytes(_file(header, b"\0" * 4))
    with pytest.raises((CheckpointError, InputError), match="expected"):
        compression.load(tmp_path / "model.bin")


class Runs:
    """What a pickle can do that nobody asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


def test_code_in_a_file_is_not_run(tmp_path: Path):
    """A pickle of our own format, with a checksum that matches, that makes a file when it is loaded: refused, and no file is made."""
    held = io.BytesIO()
    torch.save(Runs(tmp_path / "made"), held)
    header = {"w": {"form": "torch", "shape": [1], "parts": [len(held.getvalue())]}}
    (tmp_path / "model.bin").write_bytes(_file(header, held.getvalue()))
    with pytest.raises((CheckpointError, InputError), match="expected"):
        compression.load(tmp_path / "model.bin")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("body", "kind", "says"), [
    (b"torchao's tensor", MissingLibraryError, "^load: the file has tensors of torchao.* pip install torchao"),
    (b"another's tensor", InputError, "^load: a tensor of a library's own kind cannot be read .* Install it"),
])  # fmt: skip
def test_a_whole_file_whose_library_is_missing_is_not_called_damaged(
    body: bytes, kind: type, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The checksum matches: what is missing is named, with what to do."""
    monkeypatch.setitem(sys.modules, "torchao", None)
    (tmp_path / "model.bin").write_bytes(_file({"w": {"form": "torch", "shape": [1], "parts": [len(body)]}}, body))
    with pytest.raises(kind, match=says):
        compression.load(tmp_path / "model.bin")


def test_a_file_of_another_version_is_refused(tmp_path: Path):
    """The magic word has the version: what follows may mean something else, though its checksum matches."""
    content = _file({"w": {"form": "plain", "shape": [1], "dtype": "float32", "parts": [4]}}, b"\0" * 4)
    (tmp_path / "model.bin").write_bytes(content)
    assert compression.load(tmp_path / "model.bin")["w"].tolist() == [0.0]
    (tmp_path / "model.bin").write_bytes(content.replace(b"-2\n", b"-1\n", 1))
    with pytest.raises(CheckpointError, match="no such file"):
        compression.load(tmp_path / "model.bin")


def test_saving_is_whole_or_not_at_all(tmp_path: Path):
    """A folder in the file's place is the system's own error, and nothing half-written is left."""
    (tmp_path / "model.bin").mkdir()
    with pytest.raises(OSError, match="model"):
        compression.save(networks.mlp(4, 4, 2), tmp_path / "model.bin")
    assert [each.name for each in tmp_path.iterdir()] == ["model.bin"]


def test_what_two_of_four_asks_for(monkeypatch: pytest.MonkeyPatch):
    """Half precision, multiples of 32 rows and 64 columns, two of four zeros; then PyTorch converts the weight (a stand-in here)."""
    monkeypatch.setattr(_sparse, "two_four_refusal", lambda device: "")
    monkeypatch.setattr(torch.sparse, "to_sparse_semi_structured", lambda weight: weight.clone())

    def linear(inputs: int, outputs: int) -> nn.Module:
        return compression.finish(compression.prune(nn.Sequential(nn.Linear(inputs, outputs)), pattern="2:4"))

    done = compression.to_sparse(linear(64, 32).half(), "2:4")
    assert not done[0].weight.requires_grad
    assert compression.to_sparse(linear(128, 64).bfloat16(), "2:4")[0].weight.dtype is torch.bfloat16
    for wrong in (linear(64, 32), linear(96, 32).half(), linear(64, 48).half()):
        with pytest.raises(InputError, match="expected float16 or bfloat16 with multiples of 32 rows and 64 columns"):
            compression.to_sparse(wrong, "2:4")
    with pytest.raises(InputError, match="more than two of four"):
        compression.to_sparse(nn.Sequential(nn.Linear(64, 32)).half(), "2:4")
    with pytest.raises(InputError, match="no linear layer"):
        compression.to_sparse(nn.Sequential(nn.Conv2d(1, 1, 1)), "2:4")


@pytest.mark.parametrize(
    ("capability", "cuda", "says"),
    [
        ((8, 0), "12.8", ""), ((9, 0), "12.8", ""),
        ((7, 5), "12.8", "a GPU has compute capability 7.5; 2:4 sparse instructions need 8.0 (Ampere) or newer."),
        ((9, 4), None, "a GPU has no 2:4 sparse instructions; they came with NVIDIA's compute capability 8.0 (Ampere)."),
    ],
)  # fmt: skip
def test_two_of_four_came_with_ampere(capability: tuple[int, int], cuda: str | None, says: str, monkeypatch: pytest.MonkeyPatch):
    """NVIDIA's A100 has 8.0; PyTorch for ROCm has no CUDA."""
    monkeypatch.setattr(_sparse.devices, "find", lambda name: SimpleNamespace(name="a GPU", torch_type="cuda"))
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert _sparse.two_four_refusal("cuda:0") == says


def test_a_model_that_cannot_be_copied_is_a_sentence():
    """One that keeps a result of its own, whose gradient has a history."""
    model = nn.Linear(2, 2)
    model.last = model(torch.ones(1, 2))
    with pytest.raises(InputError, match=r"^prune: this model cannot be copied \(RuntimeError: .*; expected one whose tensors"):
        compression.prune(model)
