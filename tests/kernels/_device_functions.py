"""A device function in a file of its own, for tests of line numbers."""


def second(x, i):
    return x[2 * i]
