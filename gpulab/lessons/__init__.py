"""The learner's side of a lesson: predictions, checked exercises, hints, solutions and progress.

Nothing here imports a widget, a figure or IPython, so the same cells work in a plain script. The progress lives in
``.gpulab/progress.json`` of the working directory, or where ``GPULAB_PROGRESS`` says.
"""

from gpulab.lessons._predictions import KeptAnswer, Prediction, answer, known, predict
from gpulab.lessons._reveal import Reveal, reveal

__all__ = ["KeptAnswer", "Prediction", "Reveal", "answer", "known", "predict", "reveal"]
