"""Random numbers in kernels, under the names of ``numba.cuda.random``, where Numba is missing.

``simulated()`` makes the states of generators here even with Numba, since this is faster.

The generator is xoroshiro128+ with states from SplitMix64, 2**64 steps apart, as Numba has it: the
same seed gives the same numbers. Source: D. Blackman and S. Vigna, xoroshiro128plus.c and
splitmix64.c, prng.di.unimi.it (public domain), with the constants of 2016.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gpulab.kernels._host import DeviceArray
from gpulab.kernels._language import float32, float64, int64, uint32, uint64

xoroshiro128p_dtype = np.dtype([("s0", np.uint64), ("s1", np.uint64)], align=True)
_TWO_PI = 2 * math.pi

# -------------------------------------------------------------------------------------------------
# On the host: the states of many generators. A step is a linear map over bits, so the images of the
# 128 single bits describe it. Squaring the map k times gives 2 ** k steps.

_Pairs = tuple[np.ndarray, np.ndarray]  # the two words of each state


def _step(s0: np.ndarray, s1: np.ndarray) -> _Pairs:
    """Return the states after each generator has drawn one number."""
    s1 = s1 ^ s0
    return _rotated(s0, 55) ^ s1 ^ (s1 << np.uint64(14)), _rotated(s1, 36)


def _sent(images: _Pairs, s0: np.ndarray, s1: np.ndarray) -> _Pairs:
    """Apply a linear map, described by the images of the single bits, to states."""
    total0, total1 = np.zeros_like(s0), np.zeros_like(s1)
    for bit in range(128):
        is_set = ((s0 if bit < 64 else s1) >> np.uint64(bit % 64)) & np.uint64(1)
        total0, total1 = total0 ^ is_set * images[0][bit], total1 ^ is_set * images[1][bit]
    return total0, total1


def _first_state(seed: int) -> int:
    """Return the word that SplitMix64 derives from a seed."""
    word = (seed + 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def init_xoroshiro128p_states(
    states: DeviceArray, seed: int, subsequence_start: int = 0, stream: Any = 0
) -> None:
    """Fill an array with the states of generators, each 2**64 steps after the one before."""
    s0 = s1 = np.full(1, _first_state(int(seed)), np.uint64)
    bits = np.uint64(1) << np.arange(64, dtype=np.uint64)
    none = np.zeros_like(bits)
    images = _step(np.concatenate([bits, none]), np.concatenate([none, bits]))
    for _ in range(64):
        images = _sent(images, *images)
    jumps = images
    for bit in reversed(f"{max(0, subsequence_start):b}"):
        if bit == "1":
            s0, s1 = _sent(jumps, s0, s1)
        jumps = _sent(jumps, *jumps)
    while s0.size < states.size:
        more0, more1 = _sent(images, s0, s1)
        s0, s1 = np.concatenate([s0, more0]), np.concatenate([s1, more1])
        images = _sent(images, *images)
    states.array["s0"], states.array["s1"] = s0[: states.size], s1[: states.size]


def create_xoroshiro128p_states(
    n: int, seed: int, subsequence_start: int = 0, stream: Any = 0
) -> DeviceArray:
    """Return an array on the device with the states of n generators.

    Examples
    --------
    >>> states = create_xoroshiro128p_states(2, seed=1234567)
    >>> [[int(word) for word in state] for state in states.copy_to_host()]
    [[6457827717110365317, 6457827717110365317], [13230395419047269443, 1279938054373323149]]
    """
    states = DeviceArray(np.empty(n, xoroshiro128p_dtype), stream)
    init_xoroshiro128p_states(states, seed, subsequence_start)
    return states


# -------------------------------------------------------------------------------------------------
# In kernels


def _rotated(word: Any, bits: int) -> Any:
    """Return a word with its bits rotated to the left."""
    return (word << uint32(bits)) | (word >> uint32(64 - bits))


def xoroshiro128p_next(states: Any, index: Any) -> Any:
    """Return the next 64 random bits, and advance the generator."""
    index = int64(index)
    s0 = states[index]["s0"]
    s1 = states[index]["s1"]
    result = s0 + s1
    s1 = s1 ^ s0
    states[index]["s0"] = _rotated(s0, 55) ^ s1 ^ (s1 << uint32(14))
    states[index]["s1"] = _rotated(s1, 36)
    return result


def xoroshiro128p_uniform_float64(states: Any, index: Any) -> Any:
    """Return a float64 from 0 to below 1, and advance the generator."""
    return (xoroshiro128p_next(states, index) >> uint32(11)) * (
        float64(1) / (uint64(1) << uint32(53))
    )


def xoroshiro128p_uniform_float32(states: Any, index: Any) -> Any:
    """Return a float32 from 0 to 1, and advance the generator."""
    return float32(xoroshiro128p_uniform_float64(states, index))


def xoroshiro128p_normal_float32(states: Any, index: Any) -> Any:
    """Return a float32 of mean 0 and standard deviation 1; advance the generator twice."""
    u1 = xoroshiro128p_uniform_float32(states, index)
    u2 = xoroshiro128p_uniform_float32(states, index)
    return math.sqrt(-float32(2.0) * math.log(u1)) * math.cos(float32(_TWO_PI) * u2)


def xoroshiro128p_normal_float64(states: Any, index: Any) -> Any:
    """Return a float64 of mean 0 and standard deviation 1; advance the generator twice."""
    u1 = xoroshiro128p_uniform_float32(states, index)
    u2 = xoroshiro128p_uniform_float32(states, index)
    return math.sqrt(-float64(2.0) * math.log(u1)) * math.cos(_TWO_PI * u2)
