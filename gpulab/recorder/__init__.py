"""Measure a whole machine with one command, on a machine that has only numpy, torch and CuPy.

Experiments are registered in modules of this package; ``record`` runs them, the most informative
first, and writes a recording after each one, so that an interrupt loses nothing.
"""

from gpulab.recorder._model_errors import ModelError, model_errors
from gpulab.recorder._registry import Case, Experiment, experiments, register
from gpulab.recorder._run import record

__all__ = ["Case", "Experiment", "ModelError", "experiments", "model_errors", "record", "register"]

from gpulab.recorder import _catalogue as _catalogue  # each of these registers its experiments
from gpulab.recorder import _ceilings as _ceilings
from gpulab.recorder import _compression as _compression
from gpulab.recorder import _hierarchy as _hierarchy
from gpulab.recorder import _ladders as _ladders
from gpulab.recorder import _parallel as _parallel
from gpulab.recorder import _pipeline as _pipeline
from gpulab.recorder import _precision as _precision
from gpulab.recorder import _speedup as _speedup
from gpulab.recorder import _tips as _tips
from gpulab.recorder import _training as _training
from gpulab.recorder import _transfers as _transfers
