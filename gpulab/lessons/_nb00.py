"""The questions and exercises of notebook 00."""

from gpulab.lessons._content import Lesson

LESSON = Lesson("00_start_here")
