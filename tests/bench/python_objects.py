#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures an object of the Python package, made and dropped warm, beside other objects with as much memory.

    PYTHONPATH=build/release/client/python/package tests/bench/python_objects.py [--bytes N] [--rounds N] [--json FILE]

The daemon is the one that GPUPOOL_SOCKET names. The cases take turns, so that what else goes on meets all of them; the figure of a
case is the median of its rounds. The time of an empty loop is taken off.
"""
import argparse
import json
import statistics
import time

import gpupool
import gpupool.channels

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None

CALLS = 20000


def cases_of_channel(size):
    """A frame there and back, both places in this process."""
    name = f"python_objects/{time.monotonic_ns()}"
    gpupool.channels.make(name, size, metadata_bytes=8)
    producer, consumer = gpupool.channels.Producer(name), gpupool.channels.Consumer(name)

    def frame(calls):
        for _ in range(calls):
            producer.loan().send()
            consumer.receive().release()

    def frame_with_views(calls):
        for _ in range(calls):
            with producer.loan() as frame:
                frame.array()
                frame.send(size, b"metadata")
            with consumer.receive() as frame:
                frame.array()
                frame.metadata

    found = {"gpupool: a frame through a channel": frame}
    if numpy is not None:
        found["gpupool: the same with arrays and metadata"] = frame_with_views
    return found


def cases(size):
    """Functions that make and drop an object so many times, by name."""
    def case(make, *arguments):
        def run(calls):
            for _ in range(calls):
                make(*arguments)
        return run

    host = gpupool.host_pool()
    found = {"empty loop": lambda calls: [None for _ in range(calls)], "gpupool: host buffer": case(host.acquire, size)}
    try:
        found["gpupool: device buffer"] = case(gpupool.device_pool().acquire, size)
    except gpupool.Error:
        pass
    found.update(cases_of_channel(size))
    found["bytearray()"] = case(bytearray, size)
    if numpy is not None:
        dtype = numpy.dtype("u1")

        def from_buffer(calls):
            for _ in range(calls):
                numpy.frombuffer(host.acquire(size), dtype)

        def as_array(calls):
            for _ in range(calls):
                numpy.asarray(host.acquire(size).view(size, "uint8"))
        found["gpupool: Pool.empty()"] = case(host.empty, size, dtype)
        found["gpupool: numpy.frombuffer(acquire())"] = from_buffer
        found["gpupool: numpy.asarray(acquire().view())"] = as_array
        found["numpy.empty()"] = case(numpy.empty, size, dtype)
    if torch is not None:
        def from_dlpack(calls):
            for _ in range(calls):
                torch.from_dlpack(host.acquire(size))

        def empty(calls):
            for _ in range(calls):
                torch.empty(size, dtype=torch.uint8)
        found["gpupool: torch.from_dlpack(acquire())"] = from_dlpack
        found["torch.empty()"] = empty
        if torch.cuda.is_available():
            def empty_on_gpu(calls):
                for _ in range(calls):
                    torch.empty(size, dtype=torch.uint8, device="cuda")

            def empty_pinned(calls):
                for _ in range(calls):
                    torch.empty(size, dtype=torch.uint8, pin_memory=True)
            found["torch.empty(device='cuda')"] = empty_on_gpu
            found["torch.empty(pin_memory=True)"] = empty_pinned
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--calls", type=int, default=CALLS, help="of a round")
    parser.add_argument("--json", help="a file for the figures")
    arguments = parser.parse_args()

    times = {name: [] for name in cases(arguments.bytes)}
    functions = cases(arguments.bytes)
    for function in functions.values():
        function(arguments.calls // 10 + 1)
    for _ in range(arguments.rounds):
        for name, function in functions.items():
            begin = time.perf_counter_ns()
            function(arguments.calls)
            times[name].append((time.perf_counter_ns() - begin) / arguments.calls)
    medians = {name: statistics.median(values) for name, values in times.items()}
    loop = medians.pop("empty loop")
    for name, median in medians.items():
        print(f"{name:42} {median - loop:7.0f} ns")
    if arguments.json is not None:
        with open(arguments.json, "w") as file:
            json.dump({"bytes": arguments.bytes, "ns": {name: median - loop for name, median in medians.items()}}, file, indent=1)


if __name__ == "__main__":
    main()
