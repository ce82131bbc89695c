# SPDX-License-Identifier: Apache-2.0
"""Tensors by name in a process that was started anew, on a GPU: the same tensors as the file has, and how long they take.

    PYTHONPATH=... python3 tests/gpu/python_names.py [--gib N] [--rounds N] [--folder FOLDER] [--json FILE] [--simulate]

Writes a file with the layout of a Llama model, of some 500 tensors in bfloat16, and reads it once, so that it is in the page cache. A process
loads it under a name, and ends. Then processes have its tensors, each in its own way and each one new:

  open     gpupool.open(name)
  load     gpupool.torch.load(path, name=name), which looks at the file, too
  read     gpupool.torch.load(path), without a name

Each of them has imported everything and has a context on the GPU, as a worker that was restarted. Each time is from the call until the GPU is
idle. "again" is the same call in the same process. Exit status 1: a process has other tensors than the file.

The daemon is the one that GPUPOOL_SOCKET names. --simulate: small, without a GPU, to try the script itself; times mean nothing then.
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

from python_load import WAIT_S, check, folder_for, layout_of, load_by_mmap, measure, simulate, warm, write_file

NAME = "tests/python_names"
WAYS = ("open", "load", "read")


# --- a process that has tensors ---


def sums_of(tensors):
    """{name: [type, shape, sum of the bits]}."""
    import torch

    return {name: [str(tensor.dtype), list(tensor.shape), tensor.view(torch.int16).sum(dtype=torch.int64).item()]
            for name, tensor in tensors.items()}


def run_one(way, path, is_simulated):
    """Tells the seconds of the first call and of a second one, and the sums."""
    import torch

    import gpupool.torch

    place = {"pool": gpupool.device_pool(0)} if is_simulated else {"device": "cuda"}
    if is_simulated:
        gpupool.device_pool(0).acquire(1).close()
    else:
        torch.zeros(1, device="cuda")
        gpupool.default_client()

    def call(_):
        if way == "open":
            return gpupool.open(NAME)
        return gpupool.torch.load(path, name=NAME if way == "load" else None, **place)

    synchronize = (lambda: None) if is_simulated else torch.cuda.synchronize
    tensors, seconds = measure(call, path, synchronize)
    sums = sums_of(tensors)
    del tensors
    _, again = measure(call, path, synchronize)
    print(json.dumps({"seconds": seconds, "again": again, "sums": sums}), flush=True)


def start_one(way, path, is_simulated):
    command = [sys.executable, __file__, "--one", way, "--file", path, *(["--simulate"] if is_simulated else [])]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=WAIT_S)
    check(done.returncode == 0, f"the process of '{way}' ended with status {done.returncode}")
    return json.loads(done.stdout)


# --- all of them ---


def run(path, rounds, is_simulated):
    """{way: {seconds, again}}, each one a list. The first load makes the name."""
    expected = sums_of(load_by_mmap(path, "cpu"))
    built = start_one("load", path, is_simulated)
    check(built["sums"] == expected, "the process that read the file has other tensors")
    figures = {way: {"seconds": [], "again": []} for way in WAYS}
    for _ in range(rounds):
        for way, found in figures.items():
            told = start_one(way, path, is_simulated)
            check(told.pop("sums") == expected, f"'{way}' has other tensors than the file")
            for kind, seconds in told.items():
                found[kind].append(seconds)
    figures["built"] = built["seconds"]
    return figures


def show(figures):
    print(f"the first process had the tensors, read and published, after {figures['built'] * 1e3:.1f} ms")
    for way in WAYS:
        for kind, what in (("seconds", "in a new process"), ("again", "again")):
            found = [seconds * 1e3 for seconds in figures[way][kind]]
            print(f"{way}, {what}: median {statistics.median(found):.2f} ms, {min(found):.2f} to {max(found):.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the file is written; otherwise /dev/shm, or the folder of temporary files")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_one(options.one, options.file, options.simulate)
        return
    shapes = layout_of(min(options.gib, 0.05) if options.simulate else options.gib)
    folder = options.folder or folder_for(sum(2 * math.prod(shape) for shape in shapes.values()))
    with tempfile.TemporaryDirectory(prefix="gpupool-names-", dir=folder) as made:
        path = pathlib.Path(made) / "model.safetensors"
        gib = write_file(path, shapes) / 2**30
        warm(path)
        print(f"{len(shapes)} tensors, {gib:.2f} GiB, in {folder}", flush=True)
        if options.simulate:
            simulate()
        from gpupool import NoNameError, names

        try:
            figures = {"gib": gib, "tensors": len(shapes), **run(path, options.rounds, options.simulate)}
        finally:
            try:
                names.unpublish(NAME)
            except NoNameError:  # nothing was published
                pass
    show(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
