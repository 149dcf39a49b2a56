"""A kernel of Triton, in a module of its own: its text is read from the file. Without Triton there is none."""

try:
    import triton
    import triton.language as tl
except ImportError:  # the doctests of this folder are collected without it as well
    saxpy_triton = None
else:

    @triton.jit
    def saxpy_triton(a, x, y, out, n, BLOCK: tl.constexpr):
        """Compute out = a * x + y, one program for BLOCK elements."""
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = i < n
        tl.store(out + i, a * tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside), mask=inside)
