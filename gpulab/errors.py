"""The exceptions that gpulab raises on purpose, so that callers can catch them apart from bugs.

Every message has one form: what failed, with its values; what was expected; what to do.
Built-in parents (``ValueError``, ``MemoryError``) are kept, so code that knows only those still works.
"""

from __future__ import annotations


class GpulabError(Exception):
    """The parent of every error that gpulab raises on purpose."""


class InputError(GpulabError, ValueError):
    """An argument is not one that the function can use (unknown name, negative size, wrong dtype)."""


class DeviceError(GpulabError, RuntimeError):
    """The device asked for is not there, or it vanished during the work."""


class OutOfMemoryError(GpulabError, MemoryError):
    """The work does not fit into the memory that is free."""


class CopyRequiredError(GpulabError, ValueError):
    """Sharing without a copy is impossible here; the message says which call makes the copy."""


class StoppedError(GpulabError):
    """The learner stopped the work before it had anything to report."""


class MeasurementError(GpulabError, RuntimeError):
    """The function that was measured raised; its own error is the cause.

    Attributes
    ----------
    partial : gpulab.timing.Measurement or None
        What was measured until then; None where not one sample was finished.
    """

    def __init__(self, message: str, partial: object = None) -> None:
        super().__init__(message)
        self.partial = partial


class RecordingError(GpulabError, ValueError):
    """A recording is damaged, from a future version, or not a recording at all."""
