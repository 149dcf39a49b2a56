"""The questions and exercises of notebook 02."""

from gpulab.lessons._content import Lesson

LESSON = Lesson("02_data_transfer")
