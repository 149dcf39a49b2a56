"""A kernel whose device function stands in another file."""

import numpy as np
from _device_functions import second

from gpulab.kernels import cuda, simulate


def kernel(x, out):
    i = cuda.grid(1)
    out[i] = second(x, i)


def test_lines_of_another_file_are_kept_apart():
    """A load out of bounds in line 5 of the other file is told there, and counts there; a note says which file it is."""
    s = simulate(kernel, 1, 32, np.zeros(32, np.float32), np.zeros(32, np.float32))
    (finding,) = s.findings
    assert (finding.kind, finding.code, finding.count) == ("bounds", "return x[2 * i]", 16)
    assert finding.line % 1_000_000 == 5
    assert finding.line > 1_000_000
    assert s.lines[finding.line].global_load_requests == 1
    # 16 lanes are within bounds: every second of 32 floats, 128 bytes, four sectors.
    assert s.lines[finding.line].global_load_sectors == 4
    assert "_device_functions.py" in s.notes[0]
