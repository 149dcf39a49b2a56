"""The script of a beginner, which notebook 09 makes faster."""

from __future__ import annotations

from typing import Any

from gpulab import devices
from gpulab.training import Data


def beginners_script(model: Any, data: Data) -> list[float]:
    """Train for three epochs as beginners write it; the notebook shows the same lines as ``script``."""
    import torch

    device = str(devices.default())
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for first in [*range(0, len(data), 16)] * 3:  # three epochs
        items = [data[k] for k in range(first, min(first + 16, len(data)))]
        images = torch.stack([image for image, _ in items]).to(device)
        labels = torch.stack([label for _, label in items]).to(device)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses
