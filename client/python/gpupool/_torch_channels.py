# SPDX-License-Identifier: Apache-2.0
"""Tensors through channels: TensorProducer and TensorConsumer of gpupool.torch.

A frame's metadata begins with a description of its tensor, of at most DESCRIPTION_BYTES:

    version (1 byte, 1), dimensions (1 byte), length of the type's name (1 byte), 0 (1 byte), extents (8 bytes each), the type's name

The program's own metadata follows. The elements lie in the slot without gaps, in C order. A tensor over a slot is an export of the Frame,
so the slot is held until PyTorch frees the tensor's memory. Where the tensor's object is the last one over it, _detach() takes the memory
off it before.
"""
import contextlib
import math
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.utils.data

import gpupool
from gpupool import _torch_memory as _memory
from gpupool import channels
from gpupool._gpupool import _lend, _set_owner

_HEAD = struct.Struct("<BBBx")
_VERSION = 1
DIMENSIONS_MAX = 8
DESCRIPTION_BYTES = 128  # the head, 8 extents, and 60 bytes for the name of a type


# --- the description ---


def _describe(dtype, shape):
    name = str(dtype).removeprefix("torch.").encode()
    if len(shape) > DIMENSIONS_MAX:
        raise ValueError(f"the tensor has {len(shape)} dimensions: a channel carries up to {DIMENSIONS_MAX}")
    return _HEAD.pack(_VERSION, len(shape), len(name)) + struct.pack(f"<{len(shape)}q", *shape) + name


def _parse(metadata, n_bytes):
    """Returns (dtype, shape, description's length). n_bytes: of the frame. A producer of another program may have sent anything."""
    try:
        version, n_dimensions, n_name = _HEAD.unpack_from(metadata)
        if version != _VERSION:
            raise ValueError(f"version {version}")
        shape = struct.unpack_from(f"<{n_dimensions}q", metadata, _HEAD.size)
        begin = _HEAD.size + 8 * n_dimensions
        name = metadata[begin:begin + n_name].decode("ascii")
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype) or len(name) != n_name:
            raise ValueError(f"type {name!r}")
        if n_dimensions > DIMENSIONS_MAX or any(extent < 0 for extent in shape) or math.prod(shape) * dtype.itemsize != n_bytes:
            raise ValueError(f"shape {shape} of {dtype} in {n_bytes} bytes")
    except (struct.error, ValueError) as error:
        raise gpupool.ProtocolError(f"the frame has no tensor of gpupool.torch: {error}") from None
    return dtype, shape, begin + n_name


# --- tensors over frames ---


class _HostKeeper(_memory.HostKeeper):
    """As of a buffer: copies to GPUs may not be over when the tensor dies."""

    __slots__ = ()


class _DeviceKeeper(_memory.Keeper):
    """Work on the stream that is current when the tensor dies comes before the end of the frame, too."""

    __slots__ = ()

    def __del__(self):
        if torch.cuda.is_initialized():
            with contextlib.suppress(gpupool.StaleError):
                self.buffer.record_stream(_memory.current_stream(self.buffer.device) or _memory.DLPACK_LEGACY)


class FrameMark(_memory.Mark):
    """Of a storage over a frame. It goes to other processes as PyTorch sends it: a frame has no token."""

    __slots__ = ()

    def find(self, storage):
        return None


def _over(frame, shape, dtype, stream):
    """A tensor over a frame of one element or more, also over one that was received: PyTorch knows no memory that is read-only."""
    twin = dtype if dtype in _memory.DLPACK_DTYPES else _memory.twin_of(dtype)
    is_real_gpu = frame.kind == "device" and frame.pool.client.gpu_kind == "cuda"
    keeper = _HostKeeper(frame) if frame.kind == "host" else _DeviceKeeper(frame) if is_real_gpu else _memory.Keeper(frame)
    tensor = torch.from_dlpack(_set_owner(_lend(frame.view(shape, twin), stream if is_real_gpu else None), keeper))
    storage = tensor.untyped_storage()
    storage._gpupool = FrameMark(keeper, storage)
    return tensor if twin is dtype else _memory.typed(storage, dtype, tensor.size(), tensor.stride())


def _detach(tensor):
    """Takes the memory off a tensor, which is without elements then."""
    with torch.no_grad():
        tensor.set_(torch.empty(0, dtype=tensor.dtype, device=tensor.device))


def _client(client):
    """That of a place. A DataLoader's worker has no CUDA, and may have been forked from a process that has."""
    if client is not None or torch.utils.data.get_worker_info() is None:
        return client
    return gpupool.torch._client_without_cuda()


class _TensorPlace:
    def __init__(self, place):
        self.place = place
        self._is_real = place.pool.client.gpu_kind == "cuda"

    def _stream(self, device=None):
        """The current stream of the channel's device; of a channel of host memory that of another device. None: there is none."""
        own = self.place.pool.device
        device = device if own is None else own
        return (_memory.current_stream(device) or _memory.DLPACK_LEGACY) if self._is_real and device is not None else None

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def closed(self) -> bool:
        return self.place.closed

    def close(self) -> None:
        """Leaves the place, as the place of gpupool.channels. Raises BufferError while tensors use slots."""
        self.place.close()

    def __enter__(self):
        self.place.__enter__()
        return self

    def __exit__(self, *exception):
        self.place.__exit__(*exception)


# --- the producer ---


def make_channel(
    name: str,
    example: torch.Tensor | None = None,
    *,
    max_bytes: int | None = None,
    device: torch.device | str | int | None = None,
    pool: gpupool.Pool | None = None,
    metadata_bytes: int = 0,
    client: gpupool.Client | None = None,
    **options: Any,
) -> None:
    """Makes a channel for tensors under a name.

    example: a tensor of the largest size; or max_bytes. device: a CUDA device; "cpu" or None: pinned host memory, or where there is an
    example, the memory that it is in. pool: a gpupool.Pool, in the place of device. metadata_bytes: the program's own, beside what
    describes a tensor. options: those of gpupool.channels.make().
    """
    if (example is None) == (max_bytes is None):
        raise ValueError("a channel for tensors needs an example or max_bytes, and not both")
    if pool is not None and device is not None:
        raise ValueError("device and pool: the pool says which device it is")
    if pool is None:
        device = torch.device(example.device if device is None and example is not None else device or "cpu")
        if client is None:
            pool = gpupool.torch._pool_of(device)
        elif device.type == "cpu":
            pool = client.host_pool()
        else:
            pool = client.device_pool(torch.cuda.current_device() if device.index is None else device.index)
    n_bytes = max(example.numel() * example.element_size(), 1) if max_bytes is None else max_bytes
    channels.make(name, n_bytes, pool=pool, metadata_bytes=DESCRIPTION_BYTES + metadata_bytes, client=client, **options)


class TensorProducer(_TensorPlace):
    """Takes the producer's place of a channel for tensors, which it makes where it is given an example or max_bytes: see
    make_channel(). timeout, client: as of gpupool.channels.Producer."""

    def __init__(
        self,
        name: str,
        example: torch.Tensor | None = None,
        *,
        max_bytes: int | None = None,
        timeout: float | None = None,
        client: gpupool.Client | None = None,
        **options: Any,
    ) -> None:
        client = _client(client)
        if example is not None or max_bytes is not None:
            make_channel(name, example, max_bytes=max_bytes, client=client, **options)
        elif options:
            raise TypeError(f"{', '.join(options)}: options of a channel that is made, which needs an example or max_bytes")
        super().__init__(channels.Producer(name, timeout=timeout, client=client))

    def _check(self, n_bytes):
        if n_bytes > self.place.slot_bytes:
            raise ValueError(f"the tensor has {n_bytes} bytes, and a slot of channel {self.place.name!r} {self.place.slot_bytes}")

    def send(
        self, tensor: torch.Tensor, stream: torch.cuda.Stream | None = None, *, metadata: bytes = b"", timeout: float | None = None
    ) -> None:
        """Copies a tensor into a slot and sends it, behind the current stream, or a stream of PyTorch.

        timeout: seconds to wait for a slot; None: for ever. The tensor may be changed at once. A tensor of a GPU may go through a channel
        of host memory, and the reverse."""
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested:
            raise TypeError("a channel carries strided tensors that are neither quantised nor nested")
        n_bytes = tensor.numel() * tensor.element_size()
        self._check(n_bytes)
        description = b"".join((_describe(tensor.dtype, tensor.shape), metadata))
        with contextlib.nullcontext() if stream is None else torch.cuda.stream(stream):
            # A copy from a GPU to the host is done in the order of the stream, and the consumer waits for it.
            current = self._stream(tensor.device.index if tensor.device.type == "cuda" else None)
            with self.place.loan(current, timeout) as frame:
                if n_bytes > 0:
                    _copy(_over(frame, tensor.shape, tensor.dtype, current), tensor.detach())
                frame.send(n_bytes, description)

    @contextlib.contextmanager
    def loan(
        self,
        shape: int | Sequence[int],
        dtype: torch.dtype | None = None,
        *,
        metadata: bytes | bytearray = b"",
        timeout: float | None = None,
    ) -> Iterator[torch.Tensor]:
        """Yields a tensor over a free slot, to be written in place. It is sent at the end of the with statement, behind the current
        stream, and has no elements then. After an exception nothing is sent.

        dtype: None: PyTorch's default. metadata: bytes, or a bytearray that is filled meanwhile. Raises BufferError at the end where another tensor over the memory is left, such as a view."""
        dtype = torch.get_default_dtype() if dtype is None else dtype
        shape = torch.Size(shape if isinstance(shape, (tuple, list)) else (shape,))
        n_bytes = shape.numel() * dtype.itemsize
        self._check(n_bytes)
        description = _describe(dtype, shape)
        current = self._stream()
        with self.place.loan(current, timeout) as frame:
            if n_bytes > 0:
                tensor = _over(frame, shape, dtype, current)
            else:
                tensor = torch.empty(shape, dtype=dtype, device=torch.device("cuda", frame.device) if current is not None else "cpu")
            yield tensor
            _detach(tensor)
            frame.send(n_bytes, b"".join((description, metadata)), self._stream())


def _copy(out, tensor):
    """copy_(), also of types that PyTorch does not copy."""
    if tensor.dtype not in _memory.DLPACK_DTYPES and not tensor.dtype.is_complex:
        twin = _memory.twin_of(tensor.dtype)
        out, tensor = out.view(twin), tensor.view(twin)
    out.copy_(tensor, non_blocking=tensor.device.type == "cuda")


# --- the consumer ---


class TensorFrame:
    """A tensor that was received, and what came with it. frame: the gpupool.channels.Frame; None: the tensor has no elements.

    As a context manager it ends with release(); tensors that are left over the memory, such as views, keep the slot."""

    def __init__(self, frame, stream):
        dtype, shape, n_description = _parse(frame.metadata, frame.nbytes)
        self.metadata = frame.metadata[n_description:]
        self.sequence, self.missed, self.again = frame.sequence, frame.missed, frame.again
        self.frame, self._shape, self._dtype = frame, shape, dtype
        if frame.nbytes > 0:
            self.tensor = _over(frame, shape, dtype, stream)
        else:
            on_gpu = frame.kind == "device" and frame.pool.client.gpu_kind == "cuda"
            self.tensor = torch.empty(shape, dtype=dtype, device=torch.device("cuda", frame.device) if on_gpu else "cpu")

    def release(self, stream: Any = None) -> None:
        """Gives the slot back behind the stream that it was received for and the current one, or a stream. The tensor has no elements
        then. Raises BufferError where another tensor over the memory is left."""
        if not self.frame.closed:
            _detach(self.tensor)
            self.frame.release(stream)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if not self.frame.closed:
            _detach(self.tensor)
            self.frame.__exit__(*exception)


class TensorConsumer(_TensorPlace):
    """Takes a consumer's place of a channel for tensors. The arguments are those of gpupool.channels.Consumer.

    Iterating yields tensors over the slots, without a copy. A slot is held until PyTorch frees the tensor's memory, behind the streams that
    are current when it is received and when it is freed; gpupool.torch.record_stream() tells of further ones. A received
    tensor is not written: clone() it, or say receive(copy=True). Writing to one in a device pool with export = vmm ends the work of the GPU
    with an error."""

    def __init__(
        self,
        name: str,
        place: int | None = None,
        *,
        timeout: float | None = None,
        wait_for_producer: bool = False,
        client: gpupool.Client | None = None,
    ) -> None:
        super().__init__(channels.Consumer(name, place, timeout=timeout, wait_for_producer=wait_for_producer, client=_client(client)))

    def receive(self, stream: Any = None, timeout: float | None = None, *, copy: bool = False) -> torch.Tensor:
        """Returns the next tensor, over its slot. copy: in memory of PyTorch. stream: the one that reads it; None: the current one, and
        the CPU for host memory."""
        tensor = self.receive_frame(stream, timeout).tensor
        return tensor.clone() if copy else tensor

    def receive_frame(self, stream: Any = None, timeout: float | None = None) -> TensorFrame:
        """As receive(), and returns a TensorFrame, which has the metadata, too."""
        stream = self._stream() if stream is None else stream
        return TensorFrame(self.place.receive(stream, timeout), stream)

    async def get(self) -> torch.Tensor:
        """As receive(), in a task of asyncio."""
        stream = self._stream()
        return TensorFrame(await self.place.get(stream), stream).tensor

    def __iter__(self):
        return self

    def __next__(self) -> torch.Tensor:
        try:
            return self.receive()
        except gpupool.EndedError:
            raise StopIteration from None

    def __aiter__(self):
        return self

    async def __anext__(self) -> torch.Tensor:
        try:
            return await self.get()
        except gpupool.EndedError:
            raise StopAsyncIteration from None
