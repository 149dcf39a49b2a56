"""A compressed model on disk: each tensor in the smallest form that loses nothing.

One file: a magic word, the length of the header and a checksum of all that follows, a compressed
JSON header with each tensor's name and form, then the raw bytes. Each tensor is stored in the
smallest of these forms:

- ``plain``: the values as they lie in memory;
- ``book``: each different value once, and for each element an index of as few bits as possible
  (shared weights and weights of few bits);
- ``mask``: one bit per element that says whether it is zero, then the nonzero elements, plain or as
  ``book`` (pruned weights);
- ``narrow``: whole numbers in the smallest integers that hold them (the indices of ``to_sparse``);
- ``same``: the name of an earlier tensor that this one shares (tied weights).

Nothing in a file is executed when it is read.
"""

from __future__ import annotations

import io
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpulab import _files, _validate, devices
from gpulab.compression import compressed_layers
from gpulab.compression.compressed_layers import finish
from gpulab.errors import CheckpointError, shown

_MAGIC = b"gpulab-model-2\n"
_MOST_VALUES = 256
_DTYPES = (
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)


def save(model: Any, path: str | Path) -> int:
    """Write the finished model's tensors to a file, completely or not at all, and return the file's
    size in bytes.

    Parameters
    ----------
    model : torch.nn.Module
        A model made by this package, or any other module.
    path : str or Path

    Raises
    ------
    InputError
        If it is not a module, or ``path`` is no path.
    OSError
        If the file cannot be written.
    """
    content = packed(model)
    _files.write_atomically(_validate.expanded("save", path), content)
    return len(content)


def load(path: str | Path) -> dict[str, Any]:
    """Return the tensors of a file that ``save`` wrote, for ``load_state_dict`` of a finished model
    of the same shape (with ``assign=True`` for 2:4 weights, into which PyTorch cannot copy).

    Raises
    ------
    CheckpointError
        If the file is damaged or was not written by ``save``.
    InputError
        If ``path`` is no path, or the file has a tensor of a library's own type, and that library
        is not installed.
    OSError
        If it cannot be read.
    """
    content = _files.read_regular(_validate.expanded("load", path), 2**62)
    head = len(_MAGIC) + 8
    length, checksum = (
        int.from_bytes(content[at : at + 4], "little") for at in (head - 8, head - 4)
    )
    if not content.startswith(_MAGIC) or zlib.crc32(content[head:]) != checksum or not length:
        raise CheckpointError(
            f"load: {shown(str(path))} is damaged or of another kind; expected a file written by "
            "compression.save. Save the model again."
        )
    header = json.loads(zlib.decompress(content[head : head + length]))
    body = io.BytesIO(content[head + length :])
    done: dict[str, Any] = {}
    for name, entry in header.items():
        if entry["form"] == "same":
            done[name] = done[entry["as"]]
        else:
            done[name] = _restored(entry, [body.read(size) for size in entry["parts"]])
    return done


def size_on_disk(model: Any) -> int:
    """Return the size in bytes of the file that ``save`` would write; nothing is written.

    Raises
    ------
    InputError
        If it is not a module.
    """
    return len(packed(model))


def packed(model: Any) -> bytes:
    """Return the file's content."""
    compressed_layers.module("save", model)
    header: dict[str, Any] = {}
    body = io.BytesIO()
    seen: dict[int, str] = {}
    for name, tensor in finish(model).state_dict(keep_vars=True).items():
        first = seen.setdefault(id(tensor), name)
        if first != name:
            header[name] = {"form": "same", "as": first}
            continue
        entry, parts = _smallest(tensor.detach())
        entry["parts"] = [len(part) for part in parts]
        header[name] = entry
        for part in parts:
            body.write(part)
    names = zlib.compress(json.dumps(header, separators=(",", ":")).encode(), 9)
    rest = names + body.getvalue()
    return _MAGIC + len(names).to_bytes(4, "little") + zlib.crc32(rest).to_bytes(4, "little") + rest


def _smallest(tensor: Any) -> tuple[dict[str, Any], list[bytes]]:
    """Return the header's entry and the bytes of the smallest form."""
    name = str(tensor.dtype).removeprefix("torch.")
    if type(tensor) is not torch.Tensor or name not in _DTYPES:
        file = io.BytesIO()  # a library's own type is stored in PyTorch's file format
        torch.save(tensor, file)
        return {"form": "torch", "shape": list(tensor.shape)}, [file.getvalue()]
    plain = tensor.cpu().contiguous().flatten()
    # NumPy has no bfloat16: take its 16 bits as integers
    flat = np.asarray((plain.view(torch.uint16) if name == "bfloat16" else plain).numpy())
    entry: dict[str, Any] = {"dtype": name, "shape": list(tensor.shape)}
    forms: list[tuple[dict[str, Any], list[bytes]]] = [
        ({**entry, "form": "plain"}, [flat.tobytes()])
    ]
    if flat.dtype.kind == "i" and flat.size and flat.min() >= 0:
        kind = np.min_scalar_type(int(flat.max())).name
        forms.append(({**entry, "form": "narrow", "as": kind}, [flat.astype(kind).tobytes()]))
    if flat.size > 1:
        booked = _book(flat)
        if booked is not None:
            forms.append(({**entry, "form": "book", "bits": booked[0]}, booked[1]))
        # bfloat16 is compared without its sign bit, so that -0 counts as zero too
        zero = (flat << 1 if tensor.dtype is torch.bfloat16 else flat) == 0
        if zero.any():
            rest, bits = flat[~zero], np.packbits(~zero).tobytes()
            forms.append(({**entry, "form": "mask"}, [bits, rest.tobytes()]))
            booked = _book(rest)
            if booked is not None:
                forms.append(({**entry, "form": "mask", "bits": booked[0]}, [bits, *booked[1]]))
    return min(forms, key=lambda form: sum(map(len, form[1])))


def _book(flat: np.ndarray) -> tuple[int, list[bytes]] | None:
    """Return (bits per index, [book, packed indices]); None where there are too many different
    values.
    """
    # the first few values decide for most float weights, whose sorting would take seconds
    if len(np.unique(flat[: 16 * _MOST_VALUES])) > _MOST_VALUES:
        return None
    book, indices = np.unique(flat, return_inverse=True)
    if not 1 <= len(book) <= _MOST_VALUES:
        return None
    bits = max(1, math.ceil(math.log2(len(book))))
    places = np.unpackbits(indices.astype(np.uint8)[:, None], axis=1)[:, 8 - bits :]
    return bits, [book.tobytes(), np.packbits(places.flatten()).tobytes()]


def _unpack_bits(content: bytes, bits: int, count: int) -> np.ndarray:
    each = np.unpackbits(np.frombuffer(content, np.uint8))[: count * bits].reshape(count, bits)
    return np.packbits(np.pad(each, ((0, 0), (8 - bits, 0))), axis=1)[:, 0]


def _restored(entry: dict[str, Any], parts: list[bytes]) -> Any:
    if entry["form"] == "torch":
        with (
            compressed_layers.quiet(),
            devices.guard("load: a tensor of a library's own type", "its library. Install it."),
            # PyTorch's own 2:4 tensors are not among the classes that it loads by default
            torch.serialization.safe_globals(
                [
                    torch.sparse.SparseSemiStructuredTensorCUSPARSELT,
                    torch.sparse.SparseSemiStructuredTensorCUTLASS,
                ]
            ),
        ):
            if b"torchao" in parts[0]:
                import torchao.quantization  # noqa: F401  (it tells PyTorch which of its classes are safe)
            return torch.load(io.BytesIO(parts[0]), weights_only=True)
    plain = np.dtype("uint16" if entry["dtype"] == "bfloat16" else entry["dtype"])
    flat = np.zeros(math.prod(entry["shape"]), plain)
    if entry["form"] == "mask":
        there = np.unpackbits(np.frombuffer(parts[0], np.uint8))[: flat.size].astype(bool)
        flat[there] = _values(entry, parts[1:], plain, int(there.sum()))
    else:
        flat[:] = _values(entry, parts, plain, flat.size)
    # bfloat16 is 16 bits in NumPy
    return torch.from_numpy(flat).view(getattr(torch, entry["dtype"])).view(entry["shape"])


def _values(entry: dict[str, Any], parts: list[bytes], plain: np.dtype, count: int) -> np.ndarray:
    values = np.frombuffer(parts[0], entry.get("as", plain))
    return values[_unpack_bits(parts[1], entry["bits"], count)] if "bits" in entry else values
