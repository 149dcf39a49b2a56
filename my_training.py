"""Run the function `data_parallel` on 2 ranks:

    torchrun --nproc-per-node=2 my_training.py

On several machines, start it on each with `--nnodes`, `--node-rank` and `--master-addr`; in a Slurm job, with
`srun torchrun --nnodes=$SLURM_NNODES --rdzv-backend=c10d --rdzv-endpoint=$HEAD:29500 ...`. `--results FILE` keeps what the ranks returned.
"""

from __future__ import annotations

import argparse
import datetime
import os
import pickle

import torch
import torch.distributed as dist

import gpulab as gl
import gpulab.training
import torch.optim


def my_part(step):
    return list(range(64 * step + dist.get_rank(), 64 * step + 64, dist.get_world_size()))


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def data_parallel():
    job = gl.training.task("digits-mlp")
    model, losses = job.make_model(seed=0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        loss = job.loss(model, job.train[my_part(step)])
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Open the process group that torchrun describes, call the function, show what each rank returned."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", help="a file for what the ranks returned, pickled by rank 0")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    own_gpu = dist.is_nccl_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if own_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if own_gpu else "gloo", timeout=datetime.timedelta(seconds=20.0))
    try:
        result = data_parallel()
        results = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(result, results)
        for rank, returned in enumerate(results or []):
            print(f"[rank {rank}] {returned!r}")
        if chosen.results and results is not None:
            with open(chosen.results, "wb") as file:
                pickle.dump(results, file)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
