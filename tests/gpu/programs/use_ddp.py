# SPDX-License-Identifier: Apache-2.0
"""Two processes that train one model by DistributedDataParallel. use_ddp.py nccl: each has a GPU. use_ddp.py gloo: both have the first
one. Prints the losses' sum."""
import os
import sys
import tempfile

import turns

turns.need("torch")
import torch  # noqa: E402
import torch.distributed as distributed  # noqa: E402
import torch.multiprocessing as processes  # noqa: E402


def rank(number, backend, rendezvous, results):
    torch.cuda.set_device(number if backend == "nccl" else 0)
    distributed.init_process_group(backend, init_method=f"file://{rendezvous}", rank=number, world_size=2)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    rate = torch.optim.SGD(parallel.parameters(), lr=1e-2)
    total = 0.0
    for step in range(10):
        inputs = torch.randn(64, 512, generator=torch.Generator().manual_seed(10 * step + number)).cuda()
        loss = parallel(inputs).square().mean()
        rate.zero_grad()
        loss.backward()
        rate.step()
        total += loss.item()
    everywhere = torch.tensor([total], dtype=torch.float64, device="cuda" if backend == "nccl" else "cpu")
    distributed.all_reduce(everywhere)
    if number == 0:
        results.put(everywhere.item())
    distributed.destroy_process_group()


def main():
    backend = sys.argv[1]
    if not torch.cuda.is_available():
        turns.skip("PyTorch has no GPU")
    if backend == "nccl" and torch.cuda.device_count() < 2:
        turns.skip("NCCL needs two GPUs, one for each rank")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    context = processes.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(rank, (backend, os.path.join(folder, "rendezvous"), results), nprocs=2)
    print(f"sum {results.get():.9g}", flush=True)


if __name__ == "__main__":
    main()
