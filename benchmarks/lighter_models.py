"""How much accuracy lighter models keep, over seeds and test items, with the bytes of their files;
and the error of 8-bit inputs without VNNI.

python benchmarks/lighter_models.py    the hard digits, three seeds (three minutes on two quiet
                                       cores)
python benchmarks/lighter_models.py --task digits-cnn --seeds 5
"""

from __future__ import annotations

import argparse

import torch

from gpulab import compression, training
from gpulab.compression import Recipe, compressed_layers
from gpulab.units import format_flops

RECIPES = (
    Recipe(zeros=0.8, fine_tune=0),
    Recipe(zeros=0.8),
    Recipe(zeros=0.9),
    Recipe(channels=0.5, fine_tune=0),
    Recipe(channels=0.5),
    Recipe(values=16, fine_tune=0),
    Recipe(bits=8),
    Recipe(bits=8, activations="static"),
    Recipe(bits=4, fine_tune=0),
    Recipe(bits=4, weights="per-tensor", fine_tune=0),
    Recipe(bits=4),
    Recipe(bits=2, fine_tune=0),
    Recipe(bits=2),
    Recipe(zeros=0.8, bits=8),
    Recipe(network="resnext"),
    Recipe(network="mobilenet"),
)


def overflow() -> None:
    """Print the largest error of one linear layer in 8-bit kernels with inputs of 8 and of 7 bits,
    relative to its largest output.
    """
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(1024, 64), torch.randn(64, 1024)
    with torch.no_grad():
        exact = layer(x)
        for bits in (8, 7):
            small = compressed_layers.Integer(
                layer, compressed_layers.Scheme("per-channel", 8, "dynamic", bits)
            )
            error = float((small(x) - exact).abs().max() / exact.abs().max())
            print(
                f"8-bit kernel, inputs of {bits} bits: largest error {error:.2%} of the largest "
                "output"
            )
    print(f"this CPU: inputs get {compressed_layers.activation_bits()} bits")


def main() -> None:
    """Compress the models, measure them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", default="digits-hard-cnn", choices=training.tasks())
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--deadline",
        type=float,
        default=0.3,
        help="seconds of timing for each model and batch size",
    )
    arguments = parser.parse_args()
    overflow()
    w = compression.diet(
        arguments.task,
        RECIPES,
        seeds=range(arguments.seeds),
        device="cpu",
        deadline=arguments.deadline,
    )
    print(
        f"| {arguments.task} | bytes | FLOP an item | right, {arguments.seeds} seeds [95 %] | "
        "speed-up |"
    )
    print("|---|---|---|---|---|")
    for each in w.models:
        low, high = each.accuracy_interval
        fast = (
            ""
            if each.speedup is None
            else f"{each.speedup:.2f} "
            f"{each.speedup_interval and tuple(round(v, 2) for v in each.speedup_interval)}"
        )
        right = f"{100 * each.accuracy:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
        print(
            f"| {each.label} | {each.file_bytes:,} | {format_flops(each.flops_per_item)} | {right} "
            f"| {fast} |"
        )


if __name__ == "__main__":
    main()
