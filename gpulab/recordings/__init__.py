"""Measurements of named machines, with their date: they are loaded and looked up, never run.

A recording is one JSON file that ``gpulab record`` wrote. It holds numbers and words, never code,
and every field is checked on load. Its figures carry the badge ``RECORDED``.
"""

from gpulab.recordings._files import directory, load, names, of_accelerators, read, readable, write
from gpulab.recordings.schema import Entry, Recording, Timing
from gpulab.recordings.several import Difference, RecordingDiff, diff, merge

__all__ = [
    "Difference",
    "Entry",
    "Recording",
    "RecordingDiff",
    "Timing",
    "diff",
    "directory",
    "load",
    "merge",
    "names",
    "of_accelerators",
    "read",
    "readable",
    "write",
]
