"""05.13: bytes of a parameter in four settings."""

# %% exercise
id = "05.13"
title = "bytes of a parameter in four settings"
answer_name = "bytes_a_parameter"

# %% stub
bytes_a_parameter = {
    "float32": ..., "autocast": ...,
    "pure bfloat16": ..., "bfloat16 with master weights": ...,
}

# %% hint
# Four numbers belong to each parameter while the model trains: the weight, its gradient, and Adam's
# two averages. How many bytes is each?

# %% hint
# Autocast casts a copy of what a product reads. Which of the four numbers does it change?

# %% hint
# With master weights there are two copies of each weight, one of 2 bytes and one of 4. Adam's
# averages are float32.

# %% solution
bytes_a_parameter = {"float32": 4 + 4 + 8, "autocast": 4 + 4 + 8, "pure bfloat16": 2 + 2 + 4, "bfloat16 with master weights": 2 + 2 + 8 + 4}

# %% check
from collections.abc import Mapping
from typing import Any
from gpulab.lessons import checking
from gpulab.lessons.content import Refused

SETTINGS = ("float32", "autocast", "pure bfloat16", "bfloat16 with master weights")
# Bytes of the weight, of its gradient, of Adam's two numbers together, and of the float32 master weight.
_PARTS = {
    "float32": (4, 4, 8, 0),
    "autocast": (4, 4, 8, 0),
    "pure bfloat16": (2, 2, 4, 0),
    "bfloat16 with master weights": (2, 2, 8, 4),
}


def check(answer: Any) -> str:
    if not isinstance(answer, Mapping):
        raise Refused(f"Your answer is {checking.describe(answer)}; the check expects a dict from each setting to bytes.")
    missing = [name for name in SETTINGS if name not in answer]
    if missing:
        raise Refused(f"{', '.join(missing)}: missing. The check expects all of {', '.join(SETTINGS)}.")
    for name in SETTINGS:
        said, right = checking.number(answer[name], f"bytes for {name!r}"), sum(_PARTS[name])
        if said == right:
            continue
        if name == "autocast" and said < right:
            raise Refused(f"autocast: {said:g} bytes. Autocast converts no weight: the model, its gradients and Adam's state stay float32.")
        if name == "autocast" and said == right + 2:
            raise Refused(f"autocast: {said:g} bytes. The 16-bit copy that autocast makes for a product lives for a part of the step only.")
        if said == 8 * right:
            raise Refused(f"{name}: {said:g}: those are bits. A byte has eight of them.")
        if name == "bfloat16 with master weights" and said < right:
            raise Refused(f"{name}: {said:g} bytes. The float32 copy of the weights and Adam's float32 state come on top of the 16-bit numbers.")
        if said == right / 2 or said == 4:
            raise Refused(f"{name}: {said:g} bytes. Besides the weight there is its gradient, and Adam keeps two numbers for each weight.")
        raise Refused(f"{name}: {said:g} bytes; count the weight, its gradient and Adam's two numbers, each with the bytes of its format.")
    return "Right. With Adam, mixed precision saves nothing on weights, gradients and optimizer state. It saves activations, and time."

# %% wrong: Autocast converts no weight
bytes_a_parameter = {"float32": 16, "autocast": 8, "pure bfloat16": 8, "bfloat16 with master weights": 16}

# %% wrong: come on top
bytes_a_parameter = {"float32": 16, "autocast": 16, "pure bfloat16": 8, "bfloat16 with master weights": 8}

# %% wrong: come on top
bytes_a_parameter = {"float32": 16, "autocast": 16, "pure bfloat16": 8, "bfloat16 with master weights": 12}

# %% wrong: Adam keeps two numbers
bytes_a_parameter = {"float32": 4, "autocast": 4, "pure bfloat16": 2, "bfloat16 with master weights": 6}

# %% wrong: Adam keeps two numbers
bytes_a_parameter = {"float32": 8, "autocast": 16, "pure bfloat16": 8, "bfloat16 with master weights": 16}

# %% wrong: each with the bytes of its format
bytes_a_parameter = {"float32": 16, "autocast": 16, "pure bfloat16": 16, "bfloat16 with master weights": 16}

# %% wrong: a part of the step only
bytes_a_parameter = {"float32": 16, "autocast": 18, "pure bfloat16": 8, "bfloat16 with master weights": 16}

# %% wrong: those are bits
bytes_a_parameter = {"float32": 128, "autocast": 128, "pure bfloat16": 64, "bfloat16 with master weights": 128}

# %% wrong: missing
bytes_a_parameter = {"float32": 16}

# %% wrong: a dict
bytes_a_parameter = 16
