# SPDX-License-Identifier: Apache-2.0
"""A tensor to another process and back, by channels and by PyTorch's pipe, alternately in one run.

    PYTHONPATH=... python3 tests/gpu/python_channels.py [--rounds N] [--turns N] [--json FILE]

The tensor has 1 MiB in the memory of the GPU. By channels the other process receives it, writes each element plus one into a slot of the
channel back, and releases it. By torch.multiprocessing's pipe it receives a handle, makes a tensor that has each element plus one, and sends
that. Contents are compared once in each round. Prints the median turn of each way, and their ratio. Exit status 1: contents were wrong; 77:
no GPU. The daemon is the one that GPUPOOL_SOCKET names.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.multiprocessing as multiprocessing

N_BYTES = 1 << 20
WAIT_S = 60


def names_of(pid):
    return f"tests/python_channels/{pid}/there", f"tests/python_channels/{pid}/back"


def answer(pipe, parent, n_channel, n_pipe, rounds):
    from gpupool.torch import TensorConsumer, TensorProducer

    there, back = names_of(parent)
    with TensorConsumer(there, timeout=WAIT_S) as consumer, TensorProducer(back, timeout=WAIT_S) as producer:
        pipe.send(None)
        for _ in range(rounds):
            for _ in range(n_channel):
                received = consumer.receive()
                with producer.loan(received.shape, received.dtype) as tensor:
                    torch.add(received, 1, out=tensor)
                del received
            for _ in range(n_pipe):
                pipe.send(pipe.recv() + 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        return 77
    import gpupool
    from gpupool.torch import TensorConsumer, TensorProducer, make_channel

    there, back = names_of(os.getpid())
    for name in (there, back):
        make_channel(name, max_bytes=N_BYTES, pool=gpupool.device_pool(0))
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs, os.getpid(), options.turns, options.turns, options.rounds), daemon=True)
    process.start()
    times = {"channel": [], "pipe": []}
    with TensorProducer(there, timeout=WAIT_S) as producer, TensorConsumer(back, timeout=WAIT_S) as consumer:
        pipe.recv()
        for number in range(options.rounds):
            tensor = torch.full((N_BYTES // 4,), float(number), device="cuda")
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(options.turns):
                producer.send(tensor)
                received = None  # the one before is released
                received = consumer.receive()
            torch.cuda.synchronize()
            times["channel"].append((time.perf_counter() - begin) / options.turns)
            right = torch.equal(received, tensor + 1)
            received = None
            begin = time.perf_counter()
            for _ in range(options.turns):
                pipe.send(tensor)
                result = pipe.recv()
            torch.cuda.synchronize()
            times["pipe"].append((time.perf_counter() - begin) / options.turns)
            right = right and torch.equal(result, tensor + 1)
            if not right:
                print(f"round {number}: other contents")
                return 1
    process.join(WAIT_S)
    medians = {way: statistics.median(found[1:]) * 1e6 for way, found in times.items()}
    print(f"there and back: by channels {medians['channel']:.1f} us, by PyTorch's pipe {medians['pipe']:.1f} us, "
          f"ratio {medians['channel'] / medians['pipe']:.3f}")
    if options.json:
        options.json.write_text(json.dumps(medians))
    return 0


if __name__ == "__main__":
    sys.exit(main())
