"""Claims about the training loop."""

from __future__ import annotations

import math

from gpulab.claims import _sources as at
from gpulab.claims._pairs import Compare, average, items, pairs, several
from gpulab.claims._registry import Spec
from gpulab.claims.results import Claim

_THEME = "The training loop"


def _tip(name: str) -> Compare:
    return pairs("tips", {"tip": name, "form": "without"}, {"tip": name, "form": "with"})


def _means(first: str, second: str, *precisions: str) -> Compare:
    return several(
        *(
            pairs("training", {"means": first, "precision": name}, {"means": second})
            for name in precisions or ("float32", "bfloat16")
        )
    )


def _batches() -> Compare:
    sizes = {"cnn_training_step": (4, 256), "transformer_training_step": (1, 16)}
    return several(
        *(
            pairs(
                "catalogue",
                {"workload": name, "n": small, "dtype": "float32"},
                {"n": large},
                per=items,
            )
            for name, (small, large) in sizes.items()
        )
    )


CLAIMS = (
    Spec(
        Claim(
            "larger-batches",
            _THEME,
            "A larger batch trains more samples per second.",
            "time for each sample of a step, small batch / large batch",
            at.KUHN,
            "3. Max out the batch size",
            "any",
            1,
            math.inf,
            True,
        ),
        _batches(),
    ),
    Spec(
        Claim(
            "compile-float32",
            _THEME,
            "torch.compile makes training in float32 21 % faster on average.",
            "time of a step, mean of models, eager / compiled, float32",
            at.PYTORCH_2,
            "first page",
            "gpu",
            1.21,
            math.inf,
            True,
        ),
        average(_means("plain", "compile", "float32")),
    ),
    Spec(
        Claim(
            "compile-amp",
            _THEME,
            "torch.compile makes training in mixed precision 51 % faster on average.",
            "time of a step, mean of models, eager / compiled, bfloat16",
            at.PYTORCH_2,
            "first page",
            "gpu",
            1.51,
            math.inf,
            True,
        ),
        average(_means("plain", "compile", "bfloat16")),
    ),
    Spec(
        Claim(
            "graph-steps",
            _THEME,
            "A step recorded as a CUDA graph is faster, because there is no wait for kernel "
            "launches.",
            "time of a step, eager / graph",
            at.TUNING,
            "Use CUDA Graphs",
            "gpu",
            1,
            math.inf,
            True,
        ),
        _means("plain", "graph"),
    ),
    Spec(
        Claim(
            "channels-last-gpu",
            _THEME,
            "channels_last gains 8 to 35 % in mixed precision on Tensor Cores.",
            "time of a step of a convolutional network in bfloat16, contiguous / channels_last",
            at.CHANNELS_LAST,
            "Performance Gains",
            "gpu",
            1.08,
            1.35,
            True,
        ),
        _means("plain", "channels_last", "bfloat16"),
    ),
    Spec(
        Claim(
            "channels-last-cpu",
            _THEME,
            "On CPUs, channels_last is much faster than the default layout.",
            "time of a step of a convolutional network, contiguous / channels_last",
            at.INTEL,
            "What is Channels Last",
            "cpu",
            1,
            math.inf,
            True,
        ),
        _means("plain", "channels_last"),
    ),
    Spec(
        Claim(
            "fused-optimizer",
            _THEME,
            "The fused implementation of Adam is faster than the default one.",
            "time of a step, not fused / fused",
            at.ADAM,
            "note on foreach and fused",
            "any",
            1,
            math.inf,
            True,
        ),
        _means("not fused", "fused"),
    ),
    Spec(
        Claim(
            "foreach-optimizer",
            _THEME,
            "The foreach implementation of Adam is faster than the loop over tensors.",
            "time of a step of 24 small layers, loop / foreach",
            at.ADAM,
            "note on foreach and fused",
            "any",
            1,
            math.inf,
            True,
        ),
        _tip("foreach"),
    ),
    Spec(
        Claim(
            "checkpoint-30",
            _THEME,
            "Recomputing activations costs about 30 % more time.",
            "time of a step, checkpointed / plain",
            at.CHECKPOINTS,
            "abstract",
            "any",
            0,
            1.3,
            True,
        ),
        _means("checkpoint", "plain"),
    ),
    Spec(
        Claim(
            "pinned-training",
            _THEME,
            "Pinned memory in the DataLoader makes training faster.",
            "time of a step, pageable / pinned",
            at.TUNING,
            "Enable asynchronous data loading",
            "gpu",
            1,
            math.inf,
            True,
        ),
        _means("plain", "pinned"),
    ),
    Spec(
        Claim(
            "no-grad",
            _THEME,
            "torch.no_grad makes inference faster.",
            "time of a forward pass, with gradients / without",
            at.TUNING,
            "Disable gradient calculation for validation or inference",
            "any",
            1,
            math.inf,
            True,
        ),
        _tip("no_grad"),
    ),
    Spec(
        Claim(
            "inference-mode",
            _THEME,
            "Inference mode is faster still than torch.no_grad.",
            "time of a forward pass, no_grad / inference_mode",
            at.AUTOGRAD,
            "Inference Mode",
            "any",
            1,
            math.inf,
            True,
        ),
        _tip("inference_mode"),
    ),
    Spec(
        Claim(
            "set-to-none",
            _THEME,
            "Setting gradients to None saves memory operations compared with setting them to zero.",
            "time of a step, zeros / None",
            at.TUNING,
            "Use parameter.grad = None",
            "any",
            1,
            math.inf,
            True,
        ),
        _tip("set_to_none"),
    ),
    Spec(
        Claim(
            "no-bias-before-norm",
            _THEME,
            "A convolution before a batch norm needs no bias and is faster without one.",
            "time of both, forward and backward, with a bias / without",
            at.TUNING,
            "Disable bias for convolutions directly followed by a batch norm",
            "any",
            1,
            math.inf,
            True,
        ),
        _tip("no_bias_before_norm"),
    ),
    Spec(
        Claim(
            "no-anomaly-detection",
            _THEME,
            "Anomaly detection slows training and should be off.",
            "time of a step, with it / without it",
            at.TUNING,
            "Disable debugging APIs",
            "any",
            1,
            math.inf,
            True,
        ),
        _tip("no_anomaly_detection"),
    ),
    Spec(
        Claim(
            "cudnn-autotune",
            _THEME,
            "cuDNN's auto-tuner finds faster convolutions.",
            "time of a convolution, forward and backward, without it / with it",
            at.TUNING,
            "Enable cuDNN auto-tuner",
            "gpu",
            1,
            math.inf,
            True,
        ),
        _tip("cudnn_autotune"),
    ),
    Spec(
        Claim(
            "ddp-near-linear",
            _THEME,
            "Data-parallel training scales nearly linearly with the number of GPUs.",
            "time of a step on one rank / on several, each rank with the same batch: the efficiency",
            at.DDP,
            "abstract",
            "gpu",
            0.9,
            math.inf,
            True,
        ),
        several(
            *(
                pairs("data-parallel scaling", {"mode": "weak", "ranks": 1}, {"ranks": ranks})
                for ranks in (2, 4, 8)
            )
        ),
    ),
)
