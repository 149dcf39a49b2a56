"""Move arrays between host and devices, and share them between libraries without a copy.

``to_device`` and ``to_host`` are MATLAB's ``gpuArray`` and ``gather``. They copy only if the data
is somewhere else; ``share`` never copies. Arrays of JAX and TensorFlow are immutable: ``to_device``
always copies into and out of these libraries, and memory that ``share`` shares with them must not
be written to. Lists and scalars are refused, because the caller must decide which dtype and shape a
list of numbers gets.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpulab import _backends, _validate
from gpulab.devices import Device, available, find, guard, of_name
from gpulab.errors import CopyRequiredError, DeviceError, InputError, OutOfMemoryError, kind_of
from gpulab.units import format_bytes


def _owner(x: object, function: str) -> _backends.Backend:
    owner = _backends.backend_of(x)
    if owner is None:
        raise InputError(
            f"{function}: got {kind_of(x)}; expected an array of {', '.join(_backends.names())}. "
            "Wrap it with numpy.asarray first."
        )
    return owner


def device_of(x: Any) -> Device:
    """Return the device that holds the array.

    Parameters
    ----------
    x : ndarray, torch.Tensor, cupy.ndarray, jax.Array or tf.Tensor

    Returns
    -------
    Device
        For a JAX array that is spread over several devices, the first of them.

    Raises
    ------
    InputError
        If ``x`` is not an array of a known library, or has no data (a tensor on "meta", a traced
        value inside a function that is being compiled).

    Examples
    --------
    >>> import numpy as np
    >>> str(device_of(np.zeros(3)))
    'cpu'
    """
    return of_name(_owner(x, "device_of").device_of(x))


def to_host(x: Any) -> np.ndarray:
    """Return the array as a NumPy array, once the device has finished (MATLAB: ``gather``).

    Parameters
    ----------
    x : ndarray, torch.Tensor, cupy.ndarray, jax.Array or tf.Tensor
        Any shape and stride. A tensor that takes part in autograd gives its values, detached.

    Returns
    -------
    ndarray
        If ``x`` is already in main memory, the same memory (change one, and the other changes),
        read-only if ``x`` belongs to JAX or TensorFlow; else a copy. The value of a tf.Variable is
        always copied.

    Raises
    ------
    InputError
        If ``x`` is not an array, or of a kind that numpy lacks (bfloat16, float8, sparse,
        quantized, nested, without data).
    OutOfMemoryError
        If main memory does not hold the copy.
    DeviceError
        If the device no longer answers.

    Examples
    --------
    >>> import torch
    >>> to_host(torch.arange(3))
    array([0, 1, 2])
    """
    owner = _owner(x, "to_host")
    if owner.device_of(x) != "cpu":
        _need_main_memory("to_host", owner.nbytes(x))
    with guard(f"to_host: copying {format_bytes(owner.nbytes(x))} from {owner.device_of(x)}"):
        return owner.to_host(x)


def to_device(
    a: Any, device: Device | str | None = None, library: str = "torch", pinned: bool = False
) -> Any:
    """Return the array on a device (MATLAB: ``gpuArray``); the array itself if it is already there.

    Parameters
    ----------
    a : ndarray, torch.Tensor, cupy.ndarray, jax.Array or tf.Tensor
        Any shape and stride.
    device : Device, str or None
        None takes the best one available for the library: CUDA or ROCm, XPU, MPS, CPU.
    library : str
        Of the result: "torch", "numpy", "cupy", "jax" or "tensorflow".
    pinned : bool
        Transfer through page-locked memory; with device "cpu" the result itself is page-locked.
        Needs an accelerator.

    Returns
    -------
    torch.Tensor, ndarray, cupy.ndarray, jax.Array or tf.Tensor
        Dtype and shape of ``a``. On the same device no byte is copied, unless the memory cannot be
        shared (read-only, negative strides), or the array passes from another library to JAX or
        TensorFlow or back: their arrays are immutable. A tensor that stays with torch stays in
        autograd; across libraries the values are detached.

    Raises
    ------
    InputError
        If ``a`` is not an array, or its dtype does not exist in the library (for JAX without
        ``jax_enable_x64``, 64-bit ones do not) or on the device (Apple's GPUs have no float64).
    MissingLibraryError
        If the library belongs to an extra that is not installed.
    DeviceError
        If the machine has no such device, the library cannot use it, or there is no accelerator to
        pin memory for.
    OutOfMemoryError
        If the device's free memory does not hold the array.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.zeros(3)
    >>> t = to_device(a, "cpu")
    >>> t[0] = 7
    >>> a
    array([7., 0., 0.])
    """
    owner, pinned = _owner(a, "to_device"), _validate.flag("to_device", "pinned", pinned)
    target = _backends.backend(library)
    where = _destination(device, library)
    if pinned and len(available()) == 1:
        raise DeviceError(
            "to_device: pinned=True, but this machine has no accelerator to pin memory for; "
            "expected one. Pass pinned=False."
        )
    here = owner.device_of(a)
    if owner is target and here == str(where) and not pinned:
        return a
    nbytes = owner.nbytes(a)
    if where.is_cpu and here != "cpu":
        _need_main_memory("to_device", nbytes)
    with guard(f"to_device: moving {format_bytes(nbytes)} from {here} to {where}"):
        if owner is target:
            return owner.move(a, str(where), pinned)
        on_gpus = here.startswith("cuda") and str(where).startswith("cuda")
        is_shared = here == str(where) or target.name not in ("numpy", "cupy")
        if on_gpus or (is_shared and not owner.in_numpy(a)):
            return _across_libraries(a, owner, target, str(where), pinned)
        return target.from_host(owner.to_host(a), str(where), pinned)


def _destination(device: Device | str | None, library: str) -> Device:
    """Return the device of the result; if none is named, the best one for the library."""
    if device is None:
        best = "cpu" if library == "numpy" else _backends.backend(library).best_device()
        if best is not None:
            return of_name(best)
    where = find(device)
    if library == "cupy" and where.torch_type != "cuda":
        raise DeviceError(
            f"to_device: cupy has no arrays on '{where}'; expected a CUDA device. Pass "
            "library='torch' or 'numpy'."
        )
    return where


def _across_libraries(
    a: Any, owner: _backends.Backend, target: _backends.Backend, where: str, pinned: bool
) -> Any:
    """Pass an array to another library without NumPy: between GPUs, or if NumPy lacks its dtype
    (bfloat16). The owner first moves it to the target device if necessary; then it is shared.
    """
    # ``of_name`` raises for "meta", which has no data to move
    moved = a if str(of_name(owner.device_of(a))) == where else owner.move(a, where, pinned)
    plain = moved.detach() if hasattr(moved, "detach") else moved
    try:
        try:
            view = _backends.share(plain, target.name)
        except CopyRequiredError:
            # The target may refuse the memory layout, so try a compact copy. NumPy refuses only the
            # dtype, for which a copy is no remedy.
            compact = owner.compact(plain) if target.name != "numpy" else None
            if compact is None:
                raise
            view = _backends.share(compact, target.name)
    except CopyRequiredError as error:
        raise InputError(str(error).replace("share:", "to_device:", 1)) from error
    return target.copy(view) if owner.immutable or target.immutable else view


def share(x: Any, library: str) -> Any:
    """Return a view of the same memory in another library: change one, and the other changes.

    Parameters
    ----------
    x : ndarray, torch.Tensor, cupy.ndarray, jax.Array or tf.Tensor
        Also an array of any other library that supports DLPack.
    library : str
        "torch", "numpy", "cupy", "jax" or "tensorflow".

    Returns
    -------
    torch.Tensor, ndarray, cupy.ndarray, jax.Array or tf.Tensor
        ``x`` itself if it already belongs to that library. No byte is ever copied.

    Raises
    ------
    CopyRequiredError
        If the memory cannot be shared (another device, autograd, read-only, negative strides, a
        dtype the library lacks, sparse, quantized or masked; for JAX and TensorFlow also memory
        that does not begin on a 64-byte boundary); the message states which call makes the copy.
    InputError
        If ``x`` is not an array, or the library is not known.
    MissingLibraryError
        If the library belongs to an extra that is not installed.

    Notes
    -----
    JAX and TensorFlow promise that an array never changes, and compile code that relies on it. So
    only read a view of their arrays: numpy's view is read-only; views of torch and CuPy cannot be
    marked as read-only, and writing to them breaks the promise. Conversely, do not write to memory
    while JAX or TensorFlow uses a view of it: the view may show new or old numbers. On Linux
    NumPy's arrays seldom begin on a 64-byte boundary; those of torch on a CPU do.

    Examples
    --------
    >>> import numpy as np
    >>> a = np.zeros(3)
    >>> share(a, "torch")[0] = 5
    >>> a
    array([5., 0., 0.])
    """
    return _backends.share(x, library)


def _need_main_memory(function: str, nbytes: int) -> None:
    """Refuse a copy that main memory cannot hold: Linux would grant the allocation and kill the
    kernel later.
    """
    free = find("cpu").free_bytes
    if nbytes > free:
        raise OutOfMemoryError(
            f"{function}: the copy needs {format_bytes(nbytes)} of main memory and "
            f"{format_bytes(free)} is free; expected it to fit. Copy a part of the array, or call "
            "gl.memory.release() first."
        )
