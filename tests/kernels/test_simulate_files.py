"""A kernel whose device function stands in another file, and one that stands inside of a function."""

import numpy as np
from _device_functions import second
from random_kernels import function_of

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


INDENTED = '''from gpulab.kernels import cuda
def make():
    def inner(out):
        """Told in a text
that goes on at the margin."""
        i = cuda.grid(1)
#       out[i] = 7
        out[i] = i
    return inner
'''


def test_a_kernel_inside_of_a_function_may_have_rows_at_the_margin():
    """A line that was commented out there, and a long text, as Python allows; lines keep their numbers."""
    out = np.zeros(4)
    s = simulate(function_of(INDENTED, "make", "<rows at the margin>")(), 1, 4, out)
    assert out.tolist() == [0, 1, 2, 3]
    assert {line for line, counts in s.lines.items() if counts.executed_warps} == {6, 8}
    assert (s.source[6].strip(), s.source[7]) == ("i = cuda.grid(1)", "#       out[i] = 7")
