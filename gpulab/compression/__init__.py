"""Lighter models: prune, quantize, share and group weights, and compare the results.

Everything here takes any ``torch.nn.Module`` and returns a changed copy. A fine-tuned model keeps
its constraint while it trains; ``finish`` makes the model that is shipped.
"""

from gpulab.compression._compress import prune, quantize, quantize_aware, share_weights, to_sparse
from gpulab.compression._storage import load, save, size_on_disk
from gpulab.compression._weigh import Recipe, Support, cook, count, diet, support, weigh
from gpulab.compression.compressed_layers import finish
from gpulab.compression.weighed_models import Cost, WeighedModel, Weighing

__all__ = [
    "Cost",
    "Recipe",
    "Support",
    "WeighedModel",
    "Weighing",
    "cook",
    "count",
    "diet",
    "finish",
    "load",
    "prune",
    "quantize",
    "quantize_aware",
    "save",
    "share_weights",
    "size_on_disk",
    "support",
    "to_sparse",
    "weigh",
]
