"""The colors of the course, each with one meaning, and the three styles of evidence.

The hues are Okabe and Ito's (Color Universal Design, 2008; https://jfly.uni-koeln.de/color/),
distinguishable with any of the common color-vision deficiencies. Color is never the only cue:
shape, fill and a label carry the same information.
"""

from __future__ import annotations

from gpulab.evidence import Badge

ORANGE = "#E69F00"
SKY_BLUE = "#56B4E9"
BLUISH_GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILLION = "#D55E00"
REDDISH_PURPLE = "#CC79A7"
GREY = "#8A8A8A"  # ceilings, guides and what belongs to no device

# One meaning for each device throughout the course: the host is blue, an accelerator of whatever
# make is vermillion.
DEVICES = {
    "cpu": BLUE,
    "cuda": VERMILLION,
    "rocm": VERMILLION,
    "mps": VERMILLION,
    "xpu": VERMILLION,
}
# Bytes on their way: to the device, back, and within the host's own memory.
COPIES = {"to_device": REDDISH_PURPLE, "to_host": BLUISH_GREEN, "host": BLUE}
LANES = {"data": BLUE, "copy": REDDISH_PURPLE, "compute": VERMILLION}

# What holds memory during a training step; these pictures show no devices, so the hues may be used
# again.
MEMORY = {
    "parameters": BLUE,
    "gradients": ORANGE,
    "optimizer": REDDISH_PURPLE,
    "activations": BLUISH_GREEN,
    "inputs": SKY_BLUE,
    "temporary": YELLOW,
    "tensors": BLUE,
    "cached": ORANGE,
    "context": REDDISH_PURPLE,
    "this process": SKY_BLUE,
    "other processes": YELLOW,
    "inside operators": VERMILLION,
    "margin": GREY,
    "free": "#C8C8C8",
}


def device_color(device: str) -> str:
    """Return the color of a device by its kind or its PyTorch name.

    >>> device_color("cuda:0") == device_color("cuda") == VERMILLION
    True
    """
    return DEVICES.get(str(device).partition(":")[0].lower(), GREY)


def memory_color(category: str) -> str:
    """Return the color of a category of memory; gray if it has no color of its own."""
    return MEMORY.get(category.lower(), GREY)


def edged(symbol: str, size: int, color: str, width: int = 2) -> dict[str, object]:
    """Return a marker with an edge, which stays visible under other markers."""
    return {
        "symbol": symbol,
        "size": size,
        "color": color,
        "line": {"width": width, "color": color},
    }


def marker(badge: Badge, color: str, symbol: str = "circle", size: int = 11) -> dict[str, object]:
    """Return a marker that shows its evidence: measured is solid, recorded and modelled are
    hollow.
    """
    return edged(symbol if badge is Badge.MEASURED else f"{symbol}-open", size, color)


def line(badge: Badge, color: str, width: float = 2) -> dict[str, object]:
    """Return a line that shows its evidence: measured is solid, recorded is dotted, modelled is
    dashed.
    """
    dash = {Badge.MEASURED: "solid", Badge.RECORDED: "dot", Badge.MODELLED: "dash"}[badge]
    return {"color": color, "width": width, "dash": dash}
