# SPDX-License-Identifier: Apache-2.0
"""Tensors of every type on a GPU between processes, and the handles of PyTorch's reduce_tensor() in several of them.

    PYTHONPATH=... python3 tests/gpu/python_handles.py [--sim]

- Every type that PyTorch has is made, sent, read and written by another process, with strides and offsets.
- One handle is rebuilt by three processes at once, on two streams each, behind work of the sender that is not done yet; by a process
  that has not imported the package; from the arguments alone, with another device at their place; and no more when the tensor is gone.
- Storages, parameters, subclasses and sparse tensors whose parts lie in a pool.
- The error for memory of use_pool() and enable().
- All memory is back at the end.

The daemon is the one that GPUPOOL_SOCKET names. With --sim, it simulates its GPUs, and what needs CUDA is left out.
"""
import argparse
import multiprocessing
import pickle
import subprocess
import sys
import time
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor  # as programs do, before the package is there

import gpupool
import gpupool.torch

WAIT_S = 120
RANKS = 3
ROWS, COLUMNS = RANKS, 1 << 18
DEVICE_PLACE = 6  # among the arguments of PyTorch's handles
SLEEP_CYCLES = 50_000_000  # some 25 ms
DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
IS_SIM = "--sim" in sys.argv


class Tagged(torch.Tensor):
    """A subclass, which goes by its storage."""


def check(condition, what):
    if not condition:
        raise SystemExit(f"wrong: {what}")


def make(shape, dtype):
    return gpupool.torch.zeros(shape, dtype=dtype, pool=gpupool.device_pool(0))


def bytes_of(tensor):
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def wait_until(condition, what):
    end = time.monotonic() + WAIT_S
    while not condition():
        check(time.monotonic() < end, what)
        time.sleep(0.001)


def may_write(tensor):
    try:
        gpupool.torch.reuse(tensor)
    except gpupool.SharedError:
        return False
    return True


def arrive(value):
    return pickle.loads(ForkingPickler.dumps(value))


class Rank:
    """Another process, which answers."""

    def __init__(self, function):
        self.ours, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("spawn").Process(target=function, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def tell(self, value):
        self.ours.send(value)

    def hear(self):
        check(self.ours.poll(WAIT_S), "no answer")
        return self.ours.recv()

    def end(self):
        self.tell(None)
        self.process.join(WAIT_S)
        check(self.process.exitcode == 0, "the other process failed")


# --- types ---


def echo(connection):
    """In another process: describes each tensor that comes and adds 1 to all bytes of its storage, until None comes."""
    while (tensor := connection.recv()) is not None:
        told = tensor.dtype, tuple(tensor.size()), tensor.stride(), tensor.storage_offset(), bytes(bytes_of(tensor).tolist())
        bytes_of(tensor).add_(1)
        del tensor
        connection.send(told)


def check_types():
    rank = Rank(echo)
    for dtype in DTYPES:
        tensor = make(18, dtype)
        check(IS_SIM or tensor.device.type == "cuda", f"{dtype} is on {tensor.device}")
        contents = bytes_of(tensor)
        contents[:] = torch.arange(contents.numel(), device=tensor.device).to(torch.uint8)
        before = bytes(contents.tolist())
        view = torch.empty(0, dtype=dtype, device=tensor.device).set_(tensor.untyped_storage(), 1, (2, 3), (1, 4))
        rank.tell(view)
        check(rank.hear() == (dtype, (2, 3), (1, 4), 1, before), f"{dtype} in another process")
        wait_until(lambda tensor=tensor: may_write(tensor), "the other process does not drop a tensor")
        check(bytes(contents.tolist()) == bytes((byte + 1) % 256 for byte in before), f"{dtype} that another process has written")
        del tensor, view, contents
    rank.end()


def check_parts():
    parameter = torch.nn.Parameter(make(4, torch.bfloat16), requires_grad=True)
    tagged = make(4, torch.float32).fill_(2).as_subclass(Tagged)
    sparse = torch.sparse_coo_tensor(make((1, 2), torch.int64).copy_(torch.tensor([[0, 2]])), make(2, torch.float32).fill_(3), (4,))
    whole = make(4, torch.float32)
    sent = ForkingPickler.dumps([parameter, tagged, sparse, whole.untyped_storage(), whole])
    del parameter, tagged, sparse
    other, tagged, sparse, storage, again = pickle.loads(sent)
    check(type(other) is torch.nn.Parameter and other.requires_grad and other.dtype is torch.bfloat16, "a parameter")
    check(type(tagged) is Tagged and tagged.tolist() == [2] * 4, "a subclass")
    check(sparse.to_dense().tolist() == [3, 0, 3, 0], "a sparse tensor")
    torch.empty(0, device=whole.device).set_(storage).fill_(5)
    check(whole.tolist() == [5] * 4 == again.tolist() and storage.data_ptr() == again.untyped_storage().data_ptr(), "a storage")
    lazy = make(2, torch.complex64).fill_(1 + 2j).conj()
    check(arrive(lazy).tolist() == [1 - 2j] * 2, "a conjugated tensor")
    del again, storage
    if not IS_SIM:
        whole.share_memory_()  # of a tensor on a GPU it does nothing
        gpupool.torch.reuse(whole)


# --- handles ---


def rebuild(connection):
    """In a rank: rebuilds the handle that comes on two streams, reads all, adds 1 to its own row, and keeps the tensor until it is told."""
    while (told := connection.recv()) is not None:
        place, number = told
        try:
            function, arguments = pickle.loads(place)
            arguments = list(arguments)
            arguments[DEVICE_PLACE] = 0 if IS_SIM else torch.cuda.current_device()
            first = function(*arguments)
            total = float(first.sum())
            with torch.cuda.stream(None if IS_SIM else torch.cuda.Stream()):  # the storage is there; this stream has to wait as well
                second = function(*arguments)
                also = float(second.sum())
            second[number].add_(1)
            if not IS_SIM:
                torch.cuda.synchronize()
            connection.send((total, also))
            connection.recv()
            del first, second
            connection.send("dropped")
        except gpupool.NoTokenError as error:
            connection.send(f"NoTokenError: {error}")


def check_ranks():
    ranks = [Rank(rebuild) for _ in range(RANKS)]
    for value in range(1, 6):
        tensor = make((ROWS, COLUMNS), torch.float32)
        if not IS_SIM:
            torch.cuda._sleep(SLEEP_CYCLES)  # the value is not there when the handle is made
        tensor.fill_(value)
        handle = reduce_tensor(tensor)
        check(IS_SIM or handle[0] is rebuild_cuda_tensor, "the function of a tensor on a GPU")
        handle = pickle.dumps(handle)
        for number, rank in enumerate(ranks):
            rank.tell((handle, number))
            told = rank.hear()
            expected = float(value * ROWS * COLUMNS + number * COLUMNS)
            check(told == (expected, expected), f"a rank reads {told} instead of {expected}")
        check(not may_write(tensor), "reuse() while ranks have the tensor")
        for rank in ranks:
            rank.tell("drop")
            check(rank.hear() == "dropped", "a rank does not drop its tensors")
        wait_until(lambda tensor=tensor: may_write(tensor), "ranks have a tensor still")
        check(bool((tensor == value + 1).all()), "the ranks' writes are not seen")
        ranks[0].tell((handle, 0))  # again, as the sender has the tensor
        check(isinstance(ranks[0].hear(), tuple), "a handle does not serve again")
        ranks[0].tell("drop")
        ranks[0].hear()
        del tensor
        for rank in ranks:
            wait_until(lambda: gone(handle), "the tensor stays")
            rank.tell((handle, 0))
            check(str(rank.hear()).startswith("NoTokenError: the tensor of this handle is gone"), "a handle without a tensor")
    for rank in ranks:
        rank.end()


def gone(handle):
    function, arguments = pickle.loads(handle)
    try:
        function(*arguments)
    except gpupool.NoTokenError:
        return True
    return False


def check_arguments():
    """As programs take them apart."""
    tensor = make((2, 3), torch.float8_e5m2)
    bytes_of(tensor)[:] = torch.arange(6, device=tensor.device)
    function, arguments = reduce_tensor(tensor.t())
    other = function(*[bytes(value) if isinstance(value, bytes) else value for value in arguments])
    check((other.dtype, other.stride(), bytes_of(other).tolist()) == (torch.float8_e5m2, (1, 3), list(range(6))), "a handle of float8")
    program = "import pickle, sys, torch\nfunction, arguments = pickle.loads(bytes.fromhex(sys.argv[1]))\n" \
              "print(function(*arguments).view(torch.uint8).sum().item())"
    done = subprocess.run([sys.executable, "-c", program, pickle.dumps((function, arguments)).hex()], check=False, capture_output=True,
                          text=True, timeout=WAIT_S)
    check(done.stdout == "15\n", f"a process without the package: {done.stdout}{done.stderr}")
    host = gpupool.torch.zeros(1000).fill_(4)
    function, arguments = reduce_tensor(host)
    other = function(*arguments)
    check(float(other.sum()) == 4000 and other.is_pinned() == host.is_pinned(), "a handle of pinned memory")
    del other
    plain = torch.ones(3, device=tensor.device)
    function, arguments = reduce_tensor(plain)
    check(IS_SIM or function is rebuild_cuda_tensor, "a handle of PyTorch's own memory")


def check_allocators():
    """In processes of their own, because PyTorch's allocator is changed once. An error leaves the process as it was."""
    ask = """
from multiprocessing.reduction import ForkingPickler
from torch.multiprocessing.reductions import reduce_tensor
for ask in reduce_tensor, ForkingPickler.dumps:
    try:
        ask(t)
    except RuntimeError as error:
        assert "gpupool.torch.empty()" in str(error), error
    else:
        raise SystemExit("PyTorch makes a handle")
assert float((t + 1).sum()) == 2 << 22
shared = gpupool.torch.zeros(4, device="cuda")
function, arguments = reduce_tensor(shared)
function(*arguments).fill_(2)
assert shared.tolist() == [2] * 4
print("fine")
"""
    for name, program in (("use_pool", "with gpupool.torch.use_pool():\n    t = torch.ones(1 << 22, device='cuda')\n"),
                          ("enable", "gpupool.torch.enable()\nt = torch.ones(1 << 22, device='cuda')\n")):
        done = subprocess.run([sys.executable, "-c", "import torch, gpupool.torch\n" + program + ask], check=False, capture_output=True,
                              text=True, timeout=WAIT_S)
        check(done.returncode == 0 and done.stdout == "fine\n", f"{name}: {done.stdout}{done.stderr}")


def nothing_is_leased():
    gpupool.trim()
    return all(pool.info().leased_bytes == 0 for pool in gpupool.pools())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sim", action="store_true")
    parser.parse_args()
    for step in check_types, check_parts, check_ranks, check_arguments, *(() if IS_SIM else (check_allocators,)):
        began = time.monotonic()
        step()
        if not IS_SIM:
            torch.cuda.synchronize()
        print(f"{step.__name__}: fine, {time.monotonic() - began:.1f} s", flush=True)
    wait_until(nothing_is_leased, f"memory is leased still: {[pool.info() for pool in gpupool.pools()]}")


if __name__ == "__main__":
    main()
