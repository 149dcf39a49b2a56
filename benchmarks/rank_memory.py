"""Compare predicted memory per rank with real ranks: `python benchmarks/rank_memory.py [--ranks 2
4] [--quick]`.

Each strategy trains the course's transformer and its CNN (or MLP, where layers are split) on a gloo
cluster of this machine; the live tensor storage of the first and of the last rank is tracked
operator by operator, and its peak is compared with `predict_ranks`. Both use the tracker of
`gpulab.parallel`, on real and on fake tensors, so an error of the tracker itself does not show in
this comparison. It would in the second one: for float32 with Adam each rank also trains without a
tracker, and the highest level of PyTorch's CPU allocator, from the profiler's records, is compared
with the predicted peak, and with peak + scratch. Then the largest case is predicted
in a process of its own: a 7-billion-parameter transformer on 1,024 ranks, with the time and the
growth of the process.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import warnings

import gpulab as gl
from gpulab.parallel._strategies import strategies

TRANSFORMER = "transformer"
PIPELINES = ("split", "pipeline-gpipe", "pipeline-1f1b")

BIG = """
import json, pathlib, sys, time
import torch, numpy, torch._subclasses.fake_tensor, torch.distributed.fsdp, torch.distributed.tensor
import gpulab.parallel
from gpulab.parallel import gpt_shape, predict_ranks
def resident(field):
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
before, start, cpu = resident("VmRSS"), time.perf_counter(), time.process_time()
shape, pipelined = gpt_shape("7B"), sys.argv[1].startswith("pipeline")
x = torch.zeros(1024 if pipelined else 1, shape.context, dtype=torch.int64, device="meta")
p = predict_ranks(shape.model, x, x, strategy=sys.argv[1], ranks=1024, precision="bfloat16")
print(json.dumps({"strategy": sys.argv[1], "seconds": round(time.perf_counter() - start, 1),
                  "cpu_seconds": round(time.process_time() - cpu, 1),
                  "grown_mib": round((resident("VmHWM") - before) / 2**20), "peak_gib": round(p.peak_bytes / 2**30, 2)}))
"""


def make(kind):
    """Return (factory, this rank's inputs, targets, loss) of a model, which are the same for real
    ranks and for predictions.
    """
    import torch

    from gpulab import networks

    if kind == TRANSFORMER:
        x = torch.zeros(4, 64, dtype=torch.int64)
        return lambda: networks.transformer(1000, 128, 4, 4, context=64), x, x, None
    loss = torch.nn.functional.cross_entropy
    if kind == "cnn":
        return (
            lambda: networks.cnn(width=16, stages=3),
            torch.zeros(8, 1, 16, 16),
            torch.zeros(8, dtype=torch.int64),
            loss,
        )
    return (
        lambda: networks.mlp(64, 512, 8, depth=5),
        torch.zeros(16, 64),
        torch.zeros(16, dtype=torch.int64),
        loss,
    )


def on_real_rank(kind, strategy, options):
    """Take three steps on this rank with real tensors; return the peaks that `follow` measured."""
    import torch

    from gpulab.parallel._rank_memory import follow

    factory, inputs, targets, loss = make_here(kind)  # noqa: F821  (sent along)
    torch.manual_seed(0)
    if torch.is_floating_point(inputs):
        inputs = torch.rand_like(inputs)
    followed = follow(strategy, factory(), (inputs, targets), loss=loss, steps=3, **options)
    if set(options) == {"microbatches"}:
        followed["allocated"] = allocated(strategy, factory, inputs, targets, loss, options)
    return followed


def allocated(strategy, factory, inputs, targets, loss, options):
    """Return the highest level of PyTorch's CPU allocator over the later three of five steps,
    without code of gpulab's trackers; None if it grew from step to step, since then threads of gloo
    released memory that the profiler counts on.
    """
    from functools import partial

    import torch
    import torch.distributed as dist

    sys.path.insert(0, folder_here)  # noqa: F821  (sent along)
    from _memory_oracle import LATER, highest_level

    from gpulab.parallel._strategies import STRATEGIES, Setting

    def loss_of(model, batch):
        return model(*batch) if loss is None else loss(model(batch[0]), batch[1])

    def run():
        setting = Setting(
            rank=dist.get_rank(),
            size=dist.get_world_size(),
            device=torch.device("cpu"),
            model=factory(),
            loss=loss_of,
            make_optimizer=partial(torch.optim.Adam, lr=1e-3),
            bucket_bytes=25 * 2**20,
            **options,
        )
        trainer = STRATEGIES[strategy].build(setting)
        batch = (inputs, targets)
        trainer.step(batch)
        trainer.step(batch)
        with torch.profiler.record_function(LATER):
            for _ in range(3):
                trainer.step(batch)

    batch_bytes = sum({id(each): each.nbytes for each in (inputs, targets)}.values())
    highest, grown = highest_level(run)
    return batch_bytes + highest if grown == 0 else None


def real(ranks, kind, strategy, options):
    """Return the answer of each rank."""
    on_real_rank.__globals__.update(
        make_here=make, folder_here=str(pathlib.Path(__file__).resolve().parent)
    )
    return ranks.run(on_real_rank, kind, strategy, options, timeout_seconds=120)


def cases(size, quick):
    """Yield (kind, strategy, options) of each case."""
    for strategy in strategies():
        for kind in (TRANSFORMER, "mlp" if strategy in (*PIPELINES, "tensor") else "cnn"):
            options = {"microbatches": 4 if strategy in PIPELINES else 1}
            yield kind, strategy, options
            if kind == TRANSFORMER and not quick:
                yield kind, strategy, {**options, "precision": "bfloat16"}
                yield kind, strategy, {**options, "checkpoint": True}
                yield kind, strategy, {**options, "optimizer": "sgd-momentum"}


def compare(ranks, size, quick=False):
    """Print the error of each case on the first and the last rank; return all errors, and what the
    allocator had at most beside the predictions.
    """
    errors, levels = [], []
    for kind, strategy, options in cases(size, quick):
        factory, inputs, targets, loss = make(kind)
        words = ", ".join(
            str(v) if k != "checkpoint" else "checkpointed"
            for k, v in options.items()
            if k != "microbatches"
        )
        try:
            measured = real(ranks, kind, strategy, options)
        except gl.errors.GpulabError as error:
            print(f"{strategy:15s} {kind:12s} {words:14s} not run: {str(error)[:300]}", flush=True)
            ranks.recover()
            continue
        for rank, one in list(enumerate(measured))[:: max(1, size - 1)]:  # the first and the last
            p = gl.parallel.predict_ranks(
                factory,
                inputs,
                targets,
                strategy=strategy,
                ranks=size,
                rank=rank,
                loss=loss,
                **options,
            )
            error = p.peak_bytes / one["peak_bytes"] - 1
            apart = {
                c: (n, one["peak_by_category"].get(c, 0))
                for c, n in p.peak_by_category.items()
                if n != one["peak_by_category"].get(c, 0)
            }
            errors.append((abs(error), strategy, kind, words, rank))
            print(
                f"{strategy:15s} {kind:12s} {words:14s} rank {rank}: real "
                f"{one['peak_bytes']:>11,d}  predicted {error:+.2%}  {apart or ''}",
                flush=True,
            )
            if one.get("allocated") is not None:
                above = one["allocated"] - p.peak_bytes
                levels.append((above, above - p.scratch_bytes))
                print(f"{'':55s}allocator {one['allocated']:,d}, {above:+,d} B", flush=True)
            elif "allocated" in one:
                print(f"{'':55s}allocator: released by threads of gloo, not seen", flush=True)
    return errors, levels


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--quick", action="store_true", help="float32 with Adam only")
    parser.add_argument("--no-big", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    for size in options.ranks:
        with gl.parallel.cluster(size) as ranks:
            errors, levels = compare(ranks, size, options.quick)
        if not errors:
            print(f"{size} ranks: no case ran")
            continue
        worst = max(errors)
        exact = sum(error[0] == 0 for error in errors)
        print(
            f"{size} ranks: {len(errors)} predictions, {exact} equal to the byte, worst "
            f"{worst[0]:.2%} ({', '.join(map(str, worst[1:]))})"
        )
        over = [level for level in levels if level[1] > 0]
        print(
            f"{size} ranks: PyTorch's allocator, {len(levels)} cases whose releases it saw: "
            f"{sum(level[0] == 0 for level in levels)} peaks equal to the predicted one, "
            f"{len(levels) - len(over)} at most predicted peak + scratch, the others above that by "
            f"at most {max((level[1] for level in over), default=0):,d} B"
        )
    if not options.no_big:
        for strategy in ("ddp", "zero1", "zero2", "zero3"):
            out = subprocess.run(
                [sys.executable, "-c", BIG, strategy], capture_output=True, text=True, check=True
            ).stdout
            print(json.loads(out), flush=True)


if __name__ == "__main__":
    main()
