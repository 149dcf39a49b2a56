"""The IPython magics and display hooks that ``%load_ext gpulab`` registers."""

from __future__ import annotations

from typing import Any


def register(shell: Any) -> None:
    """Register all magics and display hooks with an IPython shell; calling it twice does no harm."""
    _register_displays(shell)


def _register_displays(shell: Any) -> None:
    """Show predictions as forms; only the names are told here, so nothing heavy is loaded before the first prediction."""
    formatter = shell.display_formatter.mimebundle_formatter
    formatter.for_type_by_name("gpulab.lessons._predictions", "Prediction", _show_prediction)


def _show_prediction(prediction: Any, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    from gpulab.widgets.prediction import render

    return render(prediction, include, exclude)
