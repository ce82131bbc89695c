#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Records the allocations of real PyTorch programs, as traces that tests and benchmarks replay. Needs PyTorch with CUDA and a
GPU; run by hand, the traces are kept in the tree.

    record.py [--out DIRECTORY] [PROGRAM…]        default: $OUT/traces, or ./traces; all programs

Each program runs in a process of its own, so that PyTorch's own peak is its alone, with PyTorch's default allocator
settings. Its results are of no interest (random weights, random data), and it allocates as such models do.
"""
import argparse
import datetime
import os
import random
import subprocess
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import trace_file  # noqa: E402
from programs import PROGRAMS  # noqa: E402

SECONDS_PROCESS_MAX = 150
FILE_BYTES_MAX = 300_000


def start_history(torch):
    memory = torch.cuda.memory
    try:
        memory._record_memory_history("all", context=None, stacks="python", max_entries=4_000_000)  # no stacks
    except TypeError:  # another PyTorch's arguments
        memory._record_memory_history(max_entries=4_000_000)


def record(name, directory):
    """Runs one program in this process and writes its trace."""
    import torch

    torch.cuda.init()
    rng = random.Random(name)
    torch.manual_seed(1)
    start_history(torch)
    start = time.monotonic()
    note = "ended early"
    try:
        note = PROGRAMS[name](torch, rng)
    except Exception:  # what it did until here is a trace too
        traceback.print_exc()
    torch.cuda.synchronize()
    seconds = time.monotonic() - start
    stats = torch.cuda.memory_stats()
    traces = torch.cuda.memory._snapshot()["device_traces"]
    trace = trace_file.convert(traces[torch.cuda.current_device()])
    facts = {
        "program": name,
        "about": " ".join(PROGRAMS[name].__doc__.split()) + f" {note}.",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "gpu": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "allocations": trace.allocations,
        "streams": len(trace.streams),
        "peak_live_bytes": trace.peak_live_bytes,
        "torch_peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "torch_peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "torch_peak_requested_bytes": stats.get("requested_bytes.all.peak", 0),
        "torch_peak_active_bytes": stats.get("active_bytes.all.peak", 0),
    }
    if stats.get("num_ooms", 0) or stats.get("num_alloc_retries", 0):
        facts["torch_retries"] = stats.get("num_alloc_retries", 0)
    path = os.path.join(directory, f"{name}.trace.gz")
    file_bytes = trace_file.write(path, facts, trace.lines)
    ratio = facts["torch_peak_reserved_bytes"] / max(trace.peak_live_bytes, 1)
    print(f"{name}: {note} in {seconds:.1f} s, {trace.allocations} allocations on {len(trace.streams)} streams, "
          f"peak live {trace.peak_live_bytes / 2**20:.1f} MiB, PyTorch's peak reserved "
          f"{facts['torch_peak_reserved_bytes'] / 2**20:.1f} MiB, ratio {ratio:.4f}, {file_bytes} bytes")
    if trace.peak_segment_bytes != facts["torch_peak_reserved_bytes"]:
        print(f"{name}: NOTE: the history's segments add up to {trace.peak_segment_bytes} bytes at most, which is "
              "not what PyTorch says it reserved: the history is not whole")
    if trace.unknown_frees or trace.lost_frees:
        print(f"{name}: NOTE: the history has {trace.unknown_frees} frees without an allocation, and lacks "
              f"{trace.lost_frees}")
    if file_bytes > FILE_BYTES_MAX:
        print(f"{name}: NOTE: the file is larger than {FILE_BYTES_MAX} bytes")


def main():
    parser = argparse.ArgumentParser(description="Records allocation traces of PyTorch programs.")
    parser.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "traces"))
    parser.add_argument("--here", action="store_true", help="in this process (one program)")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    arguments = parser.parse_args()
    unknown = set(arguments.programs) - set(PROGRAMS)
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    os.makedirs(arguments.out, exist_ok=True)
    if arguments.here:
        for name in arguments.programs:
            record(name, arguments.out)
        return 0
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")}
    failed = 0
    for name in arguments.programs or PROGRAMS:
        command = [sys.executable, os.path.abspath(__file__), "--here", "--out", arguments.out, name]
        try:
            status = subprocess.run(command, env=environment, timeout=SECONDS_PROCESS_MAX).returncode
        except subprocess.TimeoutExpired:
            status = "too slow"
        if status != 0:
            print(f"{name}: FAILED ({status})")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
