# SPDX-License-Identifier: Apache-2.0
"""Sets of tensors under a name (<gpupool/names.h>): publish(), open() and load(name=...) of gpupool.torch.

A name holds up to 64 buffers, and the directory of the set (_tensors.py). publish() leaves a tensor where it is if it lies in a buffer of
the name's client, and copies all others into few buffers. open() makes tensors over the buffers of the name, and copies nothing.

Each tensor of an opened set keeps the buffer that it lies in, as each tensor of gpupool.torch does. So the set has nothing to give back.
"""
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

import gpupool
from gpupool import _torch_memory as memory
from gpupool import names
from gpupool._torch_set import TensorSet

BUFFERS_MAX = 64  # of a name
KEPT_MAX = 48  # buffers that tensors stay in. The others are for tensors that are copied, and for a large directory


class NamedTensors(dict[str, torch.Tensor]):
    """The tensors of a name that was opened, by their own names. Each of them keeps the memory that it lies in, and so its share of the
    generation: the memory goes back when the last tensor is dropped, behind the streams that used it."""

    def __init__(self, opened: names.Name, tensors: TensorSet):
        super().__init__(tensors.tensors())
        self.name, self.generation, self.layout = opened.name, opened.generation, opened.layout
        self.keep, self.live, self.source = opened.keep, opened.live, tensors.directory.source

    def close(self) -> None:
        """Drops the tensors of the set. Those that the program has elsewhere stay valid, and keep their memory."""
        self.clear()

    def __enter__(self) -> "NamedTensors":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<gpupool.torch.NamedTensors {self.name!r}, generation {self.generation}, {len(self)} tensors>"


# --- streams ---


def on_stream(stream: Any) -> contextlib.AbstractContextManager:
    """A torch.cuda.Stream is current in the with statement; None: nothing changes."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


def _writer(buffers: Iterable[gpupool.Buffer], writer_of: Callable[[gpupool.Buffer], Any], waits: bool) -> Any:
    """The stream behind which buffers are published. None: their work is done. That of several devices is waited for."""
    streams = {}
    for buffer in buffers:
        streams[buffer.kind, buffer.device] = writer_of(buffer)
        if buffer.kind == "device" and buffer.pool.client.gpu_kind != "cuda":
            memoryview(buffer).release()  # which waits: PyTorch has no stream of a simulated GPU
    if len(streams) == 1 and not waits:
        return next(iter(streams.values()))
    for (_, device), stream in streams.items():
        if stream is not None:
            torch.cuda.current_stream(device).synchronize()
    return None


def _reader(client: gpupool.Client) -> int | None:
    """The stream that waits for the contents. None: the call that opens the name waits, because there is no stream yet."""
    if client.gpu_kind != "cuda" or not torch.cuda.is_initialized():
        return None
    return memory.current_stream(torch.cuda.current_device())


# --- publishing ---


def publish(name: str, tensors: TensorSet, writer_of: Callable[[gpupool.Buffer], Any],
            acquire: Callable[[gpupool.Pool, int], gpupool.Buffer], *, waits: bool = False, **options: bool) -> int:
    """Publishes a set, and returns the generation. writer_of(buffer): the stream that has written it. acquire(pool, n_bytes): makes the
    buffer of a directory that is too large for a name. waits: until the contents are there. Then the generation stays if this process
    dies next."""
    directory, buffers = tensors.pack(lambda n_bytes: acquire(tensors.buffers[0].pool, n_bytes))
    if len(buffers) > BUFFERS_MAX:
        raise ValueError(f"the tensors need {len(buffers)} buffers, and a name has up to {BUFFERS_MAX}: use several names")
    return names.publish_buffers(name, buffers, directory=directory, stream=_writer(buffers, writer_of, waits), **options)


def gather(tensors: Mapping[str, torch.Tensor], is_wanted: Callable[[gpupool.Buffer], bool],
           acquire: Callable[[torch.device, int], gpupool.Buffer] | None) -> TensorSet:
    """The set of tensors. Those in wanted buffers stay there, and acquire(device, n_bytes) makes buffers for the others; None: there must
    be no others."""
    if not tensors:
        raise ValueError("there is no tensor to publish")

    def refuse(device, n_bytes):
        raise ValueError("live contents are not copied: make each tensor by gpupool.torch.empty(), zeros() or from_buffer(), in at most "
                         f"{KEPT_MAX} buffers of one client")

    return TensorSet.keeping(tensors, is_wanted, acquire or refuse, KEPT_MAX)


# --- opening ---


def tensors_of(opened: names.Name) -> NamedTensors:
    """The tensors of a name that was opened. The Name is used up. Raises ValueError for a name that holds something else."""
    if any(memory.device_of(buffer.pool).type == "cuda" for buffer in opened.buffers):
        torch.cuda.init()
    try:
        return NamedTensors(opened, TensorSet.unpack(opened.directory, opened.buffers))
    except ValueError as error:
        raise ValueError(f"the name {opened.name!r} holds no tensors of gpupool.torch.publish(): open it by "
                         f"gpupool.names.open_buffers() ({error})") from error


def open_tensors(name: str, stream: Any, client: gpupool.Client | None, **options: Any) -> NamedTensors:
    client = gpupool.default_client() if client is None else client
    with on_stream(stream):
        return tensors_of(names.open_buffers(name, stream=_reader(client), client=client, **options))


# --- loading a file once ---


def _is_at(buffers: Iterable[gpupool.Buffer], pool: gpupool.Pool) -> bool:
    """Whether buffers are on the device of a pool, or on the host if it is a host pool, of any NUMA node."""
    return all((buffer.kind, buffer.device) == (pool.kind, pool.device) for buffer in buffers)


def _check_loaded(found: NamedTensors, is_at: bool) -> None:
    if not found.source:
        raise ValueError(f"the name {found.name!r} holds tensors that were not loaded from a file: choose another name")
    if not is_at:
        raise ValueError(f"the tensors of the name {found.name!r} are on another device than was asked for: use a name for each device")


def load(name: str, identity: Callable[[], str], build: Callable[[str], int], pool: gpupool.Pool, timeout: float | None) -> NamedTensors:
    """Opens a name whose tensors were made of the contents that identity() names. Otherwise one process builds it: build(source) publishes
    the tensors. identity() is called before the contents are read, and after the name was opened. So contents that change meanwhile are
    read again."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if end is None else max(0, end - time.monotonic())
        opened = names.open_or_build(name, stream=_reader(pool.client), timeout=left, client=pool.client)
        if opened is None:
            try:
                build(identity())
            except BaseException:
                with contextlib.suppress(gpupool.Error):  # the daemon is gone, say, or it was published
                    names.abandon(name, client=pool.client)
                raise
            continue
        is_at = _is_at(opened.buffers, pool)
        found = tensors_of(opened)
        _check_loaded(found, is_at)
        if found.source == identity():
            return found
        generation = found.generation
        del opened, found  # before another process reads the new contents
        with contextlib.suppress(gpupool.NoNameError):  # another process has seen it, too
            names.unpublish(name, generation=generation, client=pool.client)
