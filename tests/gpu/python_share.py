# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory of the pools beside PyTorch's own, on a GPU: correct, and how fast.

    PYTHONPATH=... python3 tests/gpu/python_share.py [--rounds N] [--json FILE]

- Checks: streams, DLPack of both kinds, pinned memory, CuPy where it is installed, PyTorch's allocators in the module.
- A tensor of 1 MiB to another process and an answer back, the first time that it is sent, beside torch.multiprocessing's way. The
  two take turns.
- The time of a trainer in its loader and in the copy to the GPU, for each batch, with collate() and with pin_memory=True, in turns.

The daemon is the one that GPUPOOL_SOCKET names.
"""
import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import time

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

import gpupool
import gpupool.torch

SIZE = 1 << 20
WAIT_S = 120
STEPS_MS = (0, 20, 100)


def check(condition, what):
    if not condition:
        raise SystemExit(f"wrong: {what}")


# --- checks ---


def answer_sums(connection):
    """In another process: the sum of each tensor that comes, twice its values in place, until None comes."""
    while (tensor := connection.recv()) is not None:
        total = float(tensor.double().sum())
        tensor.mul_(2)
        place = tensor.device.type, tensor.is_pinned() if tensor.device.type == "cpu" else None
        del tensor
        connection.send((total, place))


def check_processes():
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=answer_sums, args=(theirs,), daemon=True)
    process.start()
    for side in (torch.cuda.default_stream(), torch.cuda.Stream()):
        with torch.cuda.stream(side):
            for _ in range(20):
                tensor = gpupool.torch.empty(SIZE, device="cuda")
                torch.cuda._sleep(20_000_000)  # some 10 ms: the value is not there when the tensor is sent
                tensor.fill_(3)
                ours.send(tensor)
                check(ours.poll(WAIT_S), "no answer")
                check(ours.recv() == (3.0 * SIZE, ("cuda", None)), "another sum on the GPU")
                wait_until_ours(tensor)
                check(bool((tensor == 6).all()), "the other process's writes are not seen")
                del tensor
    batch = gpupool.torch.zeros((4, 1000)).fill_(1)
    check(batch.is_pinned() and batch.pin_memory() is batch, "memory of a host pool is not pinned")
    ours.send(batch)
    check(ours.recv() == (4000.0, ("cpu", True)), "another sum on the host")
    ours.send(torch.ones(5, device="cuda"))  # PyTorch's own memory, as PyTorch sends it
    check(ours.recv()[0] == 5.0, "a tensor of PyTorch's own")
    ours.send(None)
    process.join(WAIT_S)
    check(process.exitcode == 0, "the other process failed")


def wait_until_ours(tensor):
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return gpupool.torch.reuse(tensor)
        except gpupool.SharedError:
            check(time.monotonic() < end, "the other process does not drop a tensor")
            time.sleep(0.0005)


def check_protocols():
    buffer = gpupool.device_pool(0).acquire(4096, torch.cuda.current_stream(), zero=True)
    view = buffer.view((32, 32), "float32")
    check(view.__dlpack_device__() == (2, 0), "DLPack's device")
    check(float(torch.from_dlpack(view).sum()) == 0, "zeros")
    check(torch.as_tensor(view, device="cuda").data_ptr() == buffer.ptr, "__cuda_array_interface__ makes a copy")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tensor = torch.from_dlpack(view)
        torch.cuda._sleep(20_000_000)
        tensor.fill_(5)
    side.synchronize()
    check(float(torch.from_dlpack(view)[0, 0]) == 5, "one memory")
    del tensor
    try:
        import cupy
    except ImportError:
        print("CuPy is not there")
        return
    array = cupy.asarray(view)
    check(array.data.ptr == buffer.ptr and float(array.sum()) == 5 * 1024, "CuPy's array")
    check(cupy.from_dlpack(view).data.ptr == buffer.ptr, "CuPy by DLPack")


def check_allocators():
    """In processes of their own, because PyTorch's allocator is changed once."""
    for name, program in (
            ("use_pool", "with gpupool.torch.use_pool():\n    t = torch.ones(1 << 22, device='cuda')\n"),
            ("enable", "gpupool.torch.enable()\nt = torch.ones(1 << 22, device='cuda')\n")):
        text = f"import torch, gpupool.torch\n{program}assert float(t.sum()) == 1 << 22\n" \
               "assert gpupool.device_pool(0).info().leased_bytes >= 1 << 24\nprint('fine')\n"
        done = subprocess.run([sys.executable, "-c", text], check=False, capture_output=True, text=True, timeout=WAIT_S)
        check(done.returncode == 0 and done.stdout == "fine\n", f"{name}: {done.stdout}{done.stderr}")


# --- a tensor to another process and an answer back ---


def answer(connection):
    torch.zeros(1, device="cuda")
    while (tensor := connection.recv()) is not None:
        del tensor
        connection.send_bytes(b"x")


def measure_sending(rounds):
    context = torch.multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs,), daemon=True)
    process.start()
    times = {"gpupool": [], "torch": [], "gpupool, made as well": [], "torch, made as well": []}
    makers = {"gpupool": lambda: gpupool.torch.empty(SIZE, dtype=torch.uint8, device="cuda"),
              "torch": lambda: torch.empty(SIZE, dtype=torch.uint8, device="cuda")}
    for i in range(rounds + 50):
        for name, make in makers.items():
            began = time.perf_counter_ns()
            tensor = make()
            made = time.perf_counter_ns()
            ours.send(tensor)
            ours.recv_bytes()
            done = time.perf_counter_ns()
            if i >= 50:
                times[name].append(done - made)
                times[name + ", made as well"].append(done - began)
            del tensor
    ours.send(None)
    process.join(WAIT_S)
    check(process.exitcode == 0, "the other process failed")
    return {name: statistics.median(values) for name, values in times.items()}


# --- batches ---


class Images(Dataset):
    """Like a training set of images: the time goes into the batch."""

    def __len__(self):
        return 64 * 40

    def __getitem__(self, index):
        return torch.full((3, 224, 224), float(index % 7)), index % 7


def time_loader(keywords, step_ms):
    """Seconds that the trainer waits for each batch and takes to have it on the GPU, and seconds from batch to batch. The GPU
    works for so long meanwhile."""
    loader = DataLoader(Images(), batch_size=64, num_workers=4, persistent_workers=True, **keywords)
    total = 0.0
    for _ in range(2):  # the second time counts
        times, began = [], time.perf_counter()
        start = began
        for images, labels in loader:
            images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            times.append(time.perf_counter() - began)
            torch.cuda._sleep(int(step_ms * 2e6))  # of cycles, of some 2 GHz
            total += float((images[:, 0, 0, 0] - labels).abs().sum())
            torch.cuda.synchronize()
            began = time.perf_counter()
        period = (began - start) / len(times)
    check(total == 0.0, "a batch has other contents")
    return statistics.median(times), period


def measure_loading(rounds):
    """By length of the step: a trainer that is quicker than its workers and PyTorch's pinning thread, and one that is slower."""
    kinds = {"collate": {"collate_fn": gpupool.torch.collate}, "collate, pin_memory": {"collate_fn": gpupool.torch.collate, "pin_memory": True},
             "pin_memory": {"pin_memory": True}, "neither": {}}
    found = {}
    for step_ms in STEPS_MS:
        times = {name: [] for name in kinds}
        for _ in range(rounds):
            for name, keywords in kinds.items():
                times[name].append(time_loader(keywords, step_ms))
        found[step_ms] = {name: [statistics.median(values) for values in zip(*taken, strict=True)] for name, taken in times.items()}
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--loaders", type=int, default=2)
    parser.add_argument("--json")
    options = parser.parse_args()
    check_protocols()
    check_processes()
    check_allocators()
    print("checks: passed", flush=True)
    sending = measure_sending(options.rounds)
    for name, ns in sending.items():
        print(f"1 MiB to another process and an answer, {name}: {ns / 1000:.1f} us")
    print(f"ratio: {sending['gpupool'] / sending['torch']:.3f}, with making {sending['gpupool, made as well'] / sending['torch, made as well']:.3f}",
          flush=True)
    loading = measure_loading(options.loaders)
    for step_ms, kinds in loading.items():
        for name, (trainer_s, period_s) in kinds.items():
            print(f"a batch of 38.5 MB, steps of {step_ms} ms, {name}: {trainer_s * 1e3:.3f} ms of the trainer, {period_s * 1e3:.2f} ms a step")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"sending_ns": sending, "loading_s": loading, "device": torch.cuda.get_device_name()}, file)


if __name__ == "__main__":
    main()
