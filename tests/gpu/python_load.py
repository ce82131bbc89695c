# SPDX-License-Identifier: Apache-2.0
"""gpupool.torch.load() beside safetensors.torch.load_file(), on a GPU: the same tensors, and how long each of them takes.

    PYTHONPATH=... python3 tests/gpu/python_load.py [--gib N] [--rounds N] [--new N] [--folder FOLDER] [--packages FOLDER] [--json FILE]
        [--simulate]

Writes a file with the layout of a Llama model, of some 500 tensors in bfloat16, and reads it once, so that it is in the page cache. Then
the ways load it in turns:

  rounds   in this process, whose pools, streams and allocators have been used before
  new      in a process of its own each, which has imported everything and has a context on the GPU, as a worker that was restarted

Each time is from the call until the GPU is idle. A way "mmap" is what the package does, by PyTorch alone: it is there without the package
too. The last lines have the medians and their ratio to gpupool's. Before, a set of
tensors on the GPU and on the host is packed and unpacked. Exit status 1: the ways have different tensors.

The daemon is the one that GPUPOOL_SOCKET names. --packages: a folder of wheels, such as that of safetensors. --simulate: small, without
a GPU, to try the script itself; times mean nothing then.
"""
import argparse
import ctypes
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile

LAYERS, WAIT_S = 55, 300
NAMES = ("gpupool", "safetensors", "mmap")


def check(condition, what):
    if not condition:
        raise SystemExit(f"wrong: {what}")


# --- the file ---


def layout_of(gib):
    """The tensors {name: shape} of a model in bfloat16 whose file has about so many GiB: 8 with a width of 4096."""
    width = max(64, round(4096 * math.sqrt(gib / 8) / 64) * 64)
    inner, narrow, words = width * 5 // 8, width // 4, 32000 * width // 4096
    shapes = {"lm_head.weight": (words, width), "model.embed_tokens.weight": (words, width), "model.norm.weight": (width,)}
    parts = {"input_layernorm": (width,), "mlp.down_proj": (width, inner), "mlp.gate_proj": (inner, width), "mlp.up_proj": (inner, width),
             "post_attention_layernorm": (width,), "self_attn.k_proj": (narrow, width), "self_attn.o_proj": (width, width),
             "self_attn.q_proj": (width, width), "self_attn.v_proj": (narrow, width)}
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{part}.weight": shape for part, shape in parts.items()}
    return dict(sorted(shapes.items()))


def write_file(path, shapes):
    """Each tensor has other contents."""
    import torch

    sizes = {name: 2 * math.prod(shape) for name, shape in shapes.items()}
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "BF16", "shape": shapes[name], "data_offsets": [end, end + size]}
        end += size
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)
    base = torch.randint(-2**31, 2**31, (max(sizes.values()) // 4 + 1,), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    with open(path, "wb") as file:
        file.write(len(told).to_bytes(8, "little") + told)
        for number, size in enumerate(sizes.values()):
            contents = base + number
            file.write((ctypes.c_char * size).from_address(contents.data_ptr()))
    return 8 + len(told) + end


def warm(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(64 << 20):
            pass


def folder_for(n_bytes):
    for folder in ("/dev/shm", tempfile.gettempdir()):
        if os.path.isdir(folder) and shutil.disk_usage(folder).free > 1.1 * n_bytes:
            return folder
    raise SystemExit(f"no folder has room for {n_bytes} bytes: name one with --folder")


# --- the ways ---


def add_packages(folder):
    """Wheels, unpacked where this process and those that it starts import from."""
    if folder is None:
        return None
    unpacked = tempfile.mkdtemp(prefix="gpupool-packages-")
    for wheel in pathlib.Path(folder).glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(unpacked)
    sys.path.append(unpacked)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), unpacked)))
    return unpacked


def load_by_mmap(path, device):
    import torch

    contents = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=path.stat().st_size)
    whole = torch.empty(0, dtype=torch.uint8).set_(contents)
    length = int.from_bytes(bytes(whole[:8].tolist()), "little")
    header = json.loads(bytes(whole[8:8 + length].tolist()))
    del header["__metadata__"]
    data = whole[8 + length:]
    return {name: data[slice(*told["data_offsets"])].view(torch.bfloat16).view(told["shape"]).to(device, copy=True)
            for name, told in header.items()}


def ways_of(is_simulated):
    """{name: load(path)} of the ways that this machine has, and a function that waits for the GPU."""
    import torch

    import gpupool.torch

    if is_simulated:
        ways = {"gpupool": lambda path: gpupool.torch.load(path, pool=gpupool.device_pool(0)), "mmap": lambda path: load_by_mmap(path, "cpu")}
    else:
        ways = {"gpupool": lambda path: gpupool.torch.load(path, device="cuda"), "mmap": lambda path: load_by_mmap(path, "cuda")}
    try:
        import safetensors.torch as package
    except ImportError:
        pass
    else:
        ways["safetensors"] = lambda path: package.load_file(path, device="cpu" if is_simulated else "cuda")
    return ways, (lambda: None) if is_simulated else torch.cuda.synchronize


def measure(load, path, synchronize):
    """The tensors, and the seconds that they took."""
    synchronize()
    began = time.perf_counter()
    tensors = load(path)
    synchronize()
    return tensors, time.perf_counter() - began


def check_same(first, second, what):
    import torch

    check(first.keys() == second.keys(), f"{what}: other names")
    for name, tensor in first.items():
        other = second[name]
        check((tensor.dtype, tensor.shape) == (other.dtype, other.shape), f"{what}: another type or shape of {name}")
        check(torch.equal(tensor.view(torch.int16), other.view(torch.int16)), f"{what}: other contents of {name}")


def check_sets(is_simulated):
    """Tensors of two devices, and a directory in a buffer of the GPU."""
    import torch

    import gpupool.torch
    from gpupool._torch_set import TensorSet

    def acquire(device, n_bytes):
        return (gpupool.host_pool() if device.type == "cpu" else gpupool.device_pool(0)).acquire(n_bytes)

    device = torch.device("cpu") if is_simulated else torch.device("cuda", 0)
    weight = torch.arange(12.0, device=device).reshape(3, 4)
    tensors = {"weight": weight, "tied": weight.t(), "host": torch.ones(5), "empty": torch.empty(0, 3, device=device)}
    found = TensorSet.unpack(*TensorSet.of(tensors, acquire).pack(gpupool.device_pool(0).acquire, limit=0)).tensors()
    for name, tensor in tensors.items():
        check((found[name].device, found[name].stride()) == (tensor.device, tensor.stride()), f"a set: another place of {name}")
        check(torch.equal(found[name], tensor), f"a set: other contents of {name}")
    check(found["weight"].data_ptr() == found["tied"].data_ptr(), "a set: tied tensors are not tied")
    check(found["host"].is_pinned() or is_simulated, "a set: host memory is not pinned")


def run_rounds(path, rounds, is_simulated):
    """{name: seconds of each round}. The first round, which is not counted, compares the tensors."""
    ways, synchronize = ways_of(is_simulated)
    ours, _ = measure(ways["gpupool"], path, synchronize)
    check_same(ours, load_by_mmap(path, "cpu") if is_simulated else ways["mmap"](path), "mmap")
    if "safetensors" in ways:
        check_same(ours, ways["safetensors"](path), "safetensors")
    del ours
    seconds = {name: [] for name in NAMES if name in ways}
    for _ in range(rounds):
        for name, found in seconds.items():
            found.append(measure(ways[name], path, synchronize)[1])
    return seconds


def run_new(path, rounds, names, is_simulated):
    """{name: seconds}, each in a process of its own."""
    seconds = {name: [] for name in names}
    for _ in range(rounds):
        for name, found in seconds.items():
            command = [sys.executable, __file__, "--one", name, "--file", path, *(["--simulate"] if is_simulated else [])]
            done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=WAIT_S)
            check(done.returncode == 0, f"the process of {name} ended with status {done.returncode}")
            found.append(float(done.stdout))
    return seconds


def run_one(name, path, is_simulated):
    import torch

    import gpupool

    ways, synchronize = ways_of(is_simulated)
    if not is_simulated:
        torch.zeros(1, device="cuda")
    if name == "gpupool":
        gpupool.default_client()
    tensors, seconds = measure(ways[name], path, synchronize)
    check(len(tensors) > 0, "no tensors")
    print(seconds, flush=True)


# --- figures ---


def show(what, seconds, gib):
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    for name, found in seconds.items():
        ratio = "" if name == "gpupool" else f"; gpupool takes {medians['gpupool'] / medians[name]:.2f} of it"
        print(f"{what}: {name}: median {medians[name]:.3f} s ({gib / medians[name]:.1f} GiB/s), {min(found):.3f} to {max(found):.3f}{ratio}")
    return {name: {"seconds": found, "median_s": medians[name]} for name, found in seconds.items()}


def simulate():
    os.environ["GPUPOOL_SOCKET"] = "private"
    os.environ.setdefault("GPUPOOL_DAEMON_ARGS", "--gpu sim --log-level error")
    import gpupool
    os.environ["GPUPOOL_SOCKET"] = gpupool.default_client().socket_path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=3)
    parser.add_argument("--folder", help="where the file is written; otherwise /dev/shm, or the folder of temporary files")
    parser.add_argument("--packages")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--one", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        run_one(options.one, options.file, options.simulate)
        return
    unpacked = add_packages(options.packages)
    shapes = layout_of(min(options.gib, 0.05) if options.simulate else options.gib)
    folder = options.folder or folder_for(sum(2 * math.prod(shape) for shape in shapes.values()))
    with tempfile.TemporaryDirectory(prefix="gpupool-load-", dir=folder) as made:
        path = pathlib.Path(made) / "model.safetensors"
        gib = write_file(path, shapes) / 2**30
        warm(path)
        print(f"{len(shapes)} tensors, {gib:.2f} GiB, in {folder}", flush=True)
        if options.simulate:
            simulate()
        check_sets(options.simulate)
        rounds = run_rounds(path, options.rounds, options.simulate)
        figures = {"gib": gib, "tensors": len(shapes), "rounds": show("rounds", rounds, gib)}
        if options.new > 0:
            figures["new"] = show("new", run_new(path, options.new, list(rounds), options.simulate), gib)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if unpacked:
        shutil.rmtree(unpacked)


if __name__ == "__main__":
    main()
