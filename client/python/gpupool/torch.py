# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors in memory of the pools.

    import gpupool.torch
    frame = gpupool.torch.empty((1080, 1920, 3), dtype=torch.uint8, device="cuda")
    batch = gpupool.torch.zeros((64, 3, 224, 224))  # pinned host memory

Such a tensor goes to another process without a copy: through pipes and queues of multiprocessing and torch.multiprocessing, to a
process of any start method but fork after CUDA was used. The work on the stream that is current when it is pickled comes before the
work on the stream that is current when it is received, on the GPU. The sender may drop its tensor at once. Other tensors are sent
as PyTorch sends them.

torch.multiprocessing.reductions.reduce_tensor() returns a handle of such a tensor, which any number of processes rebuild while one of
them has the tensor (_torch_handles.py).

load() reads safetensors files straight into memory of the pools.

publish() puts a set of tensors under a name, and open() has the set in any process of the user, without a copy.

TensorProducer and TensorConsumer pass tensors through a channel of gpupool.channels, without a message to the daemon for each.

collate() is for DataLoader(collate_fn=...): the workers write batches into pinned memory, and the trainer has them without a copy.

use_pool() and enable() put all tensors that a program makes on a GPU into memory of the pools. Other processes cannot have those:
make tensors that are sent by empty().
"""
import collections
import contextlib
import ctypes
import multiprocessing.reduction
import multiprocessing.util
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.multiprocessing.reductions
import torch.utils.data
from torch.utils.data._utils.collate import collate as _collate
from torch.utils.data._utils.collate import default_collate_fn_map

import gpupool
from gpupool import _gpupool, _torch_channels, _torch_handles, _torch_load, _torch_names, _transfer
from gpupool import _torch_memory as _memory
from gpupool._gpupool import _alloc_timeout
from gpupool._torch_channels import TensorConsumer, TensorFrame, TensorProducer, make_channel
from gpupool._torch_memory import DLPACK_LEGACY as _DLPACK_LEGACY
from gpupool._torch_names import NamedTensors

try:
    import numpy
except ImportError:
    numpy = None

if not hasattr(torch.float32, "itemsize"):
    raise ImportError(f"gpupool.torch needs PyTorch 2.1 or newer, and this is {torch.__version__}")

__all__ = ["NamedTensors", "TensorConsumer", "TensorFrame", "TensorProducer", "collate", "empty", "enable", "from_buffer", "load",
           "make_channel", "open", "publish", "record_stream", "reuse", "sleep", "use_pool", "wake", "zeros"]

_lock = threading.Lock()
_is_forked = False
_worker_clients = {}  # of this process: without CUDA
_places = weakref.WeakKeyDictionary()  # of each client's pools, by id
_allocators = []  # PyTorch calls them as long as there are tensors


def _stream_of(client, device):
    """The stream on which the memory of a tensor on a device goes back: the current one. Host memory (None) has none: HostKeeper."""
    if device is None or client.gpu_kind != "cuda":
        return None
    if not torch.cuda.is_initialized():
        torch.cuda.init()
    return _memory.current_stream(device)


# --- the clients of this process ---


def _forget():
    """In a forked child: the clients are the parent's, and another thread of the parent may have had the lock."""
    global _lock, _is_ending, _is_forked, _room, _has_warned
    _lock, _is_ending, _is_forked, _room, _has_warned = threading.Lock(), False, True, _Room(), False
    _worker_clients.clear()
    _places.clear()
    _unread.clear()


os.register_at_fork(after_in_child=_forget)


def _client_without_cuda():
    """A DataLoader's worker has no CUDA, and may have been forked from a process that has."""
    with _lock:
        client = _worker_clients.get(os.getpid())
        if client is None or not client.connected:
            _worker_clients.clear()
            client = _worker_clients[os.getpid()] = gpupool.Client(cuda=False)
        return client


def _host_pool():
    if torch.utils.data.get_worker_info() is not None:
        return _client_without_cuda().host_pool()
    return gpupool.host_pool()


def _pool_of(device):
    device = torch.device("cpu" if device is None else device)
    if device.type == "cpu":
        return _host_pool()
    if device.type != "cuda":
        raise ValueError(f"device is {device}: the pools have memory of 'cuda' devices and, for 'cpu', pinned host memory")
    return gpupool.device_pool(torch.cuda.current_device() if device.index is None else device.index)


# --- making tensors ---


def from_buffer(
    buffer: gpupool.Buffer, shape: int | Sequence[int] | None = None, dtype: torch.dtype = torch.uint8, offset: int = 0
) -> torch.Tensor:
    """Returns a tensor over a gpupool.Buffer, without a copy. The tensor keeps the buffer.

    shape: an integer or a tuple; None: all elements that there are. offset: in bytes, of the tensor's first element."""
    return _memory.over(_memory.keep(buffer), shape, dtype, offset)


def _choose_pool(device, pool):
    if pool is None:
        return _pool_of(device)
    if device is not None:
        raise ValueError("device and pool: the pool says which device it is")
    return pool


def _make(shape, dtype, device, pool, timeout, zero):
    pool = _choose_pool(device, pool)
    dtype = torch.get_default_dtype() if dtype is None else dtype
    shape = torch.Size(shape if isinstance(shape, (tuple, list)) else (shape,))
    n_bytes = shape.numel() * dtype.itemsize
    if n_bytes == 0:
        return torch.empty(shape, dtype=dtype, device=_memory.device_of(pool))
    return from_buffer(pool.acquire(n_bytes, _stream_of(pool.client, pool.device), timeout, zero), tuple(shape), dtype)


def empty(
    shape: int | Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | int | None = None,
    pool: gpupool.Pool | None = None,
    timeout: float | None = None,
) -> torch.Tensor:
    """Returns a tensor of undefined contents in memory of a pool.

    dtype: None: PyTorch's default. device: a CUDA device; "cpu" or None: pinned host memory. pool: a gpupool.Pool, in the place of
    device. timeout: seconds to wait for room; None: the client's alloc_timeout (GPUPOOL_ALLOC_TIMEOUT, 10 s); math.inf: no limit.

    Memory of a GPU belongs to the stream that is current, as with torch.empty(); of further streams record_stream() tells. Raises
    gpupool.ExhaustedError when there was no room until the timeout: a MemoryError, and of a GPU a torch.OutOfMemoryError."""
    return _make(shape, dtype, device, pool, timeout, False)


def zeros(
    shape: int | Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | int | None = None,
    pool: gpupool.Pool | None = None,
    timeout: float | None = None,
) -> torch.Tensor:
    """As empty(), of zeros."""
    return _make(shape, dtype, device, pool, timeout, True)


def _acquire_in(pool, n_bytes, timeout):
    """A Buffer whose memory goes back on the current stream."""
    return pool.acquire(n_bytes, _stream_of(pool.client, pool.device), timeout)


def _read_set(path, pool, timeout):
    """The TensorSet of files."""
    return _torch_load.read(path, lambda n_bytes, wait_s: _acquire_in(pool, n_bytes, wait_s), timeout)


def load(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    device: torch.device | str | int | None = None,
    pool: gpupool.Pool | None = None,
    timeout: float | None = None,
) -> dict[str, torch.Tensor]:
    """Returns the tensors of a safetensors file, by name, in memory of a pool.

    path: a file, an index (model.safetensors.index.json), or a folder with an index or with files. device, pool: as of empty().
    timeout: as of empty(), for each buffer.

    A file is read into one buffer of at most 8 GiB, or a few. Each tensor keeps the buffer that it lies in, so memory goes back when
    the last tensor of a buffer is dropped. Raises ValueError for a file that is not valid, and what empty() raises.

    name: the tensors are those of open(name), if they were loaded from this file as it is now. Otherwise one process reads the file and
    publishes the tensors, with keep, and the others wait for it: timeout seconds (else NoNameError); None: no limit. If that process dies or
    fails, another one reads the file. Returns a NamedTensors. Raises ValueError for a name that holds other things."""
    pool = _choose_pool(device, pool)
    if name is None:
        return _read_set(path, pool, timeout).tensors()

    def build(source):
        made = _read_set(path, pool, timeout)
        made.directory = made.directory._replace(source=source)
        return _torch_names.publish(name, made, _writer_of, lambda place, n_bytes: _acquire_in(place, n_bytes, timeout), waits=True, keep=True)

    return _torch_names.load(name, lambda: _torch_load.identity(path), build, pool, timeout)


# --- sets of tensors under a name ---


def _is_of_choice(buffer, pool, client):
    """Whether a buffer can belong to a name of the client, and has the place that the program chose. pool: None: any."""
    return buffer.pool.client is client and (pool is None or buffer.pool.id == pool.id)


def publish(
    name: str,
    tensors: Mapping[str, torch.Tensor],
    *,
    keep: bool = False,
    live: bool = False,
    same_layout: bool = False,
    device: torch.device | str | int | None = None,
    pool: gpupool.Pool | None = None,
    timeout: float | None = None,
    stream: torch.cuda.Stream | None = None,
) -> int:
    """Publishes tensors under a name, in the place of what it stood for, and returns the generation.

    Tensors that lie in buffers of gpupool.torch, such as those of empty() and load(), are published where they are; do not write to them any
    more. All others are copied, into few buffers. device, pool: where the tensors shall be, as of empty(); None: each one on its device.
    timeout: as of empty(), for each buffer that is made.

    keep: the name stays when this process ends. live: this process goes on writing; then no tensor is copied. same_layout: only in the place
    of tensors with the same names, types, shapes and places (else InvalidError). stream: the one that has written the tensors; None: the
    current one. Readers wait for it on the GPU.

    Raises TypeError or ValueError for a value that is not a dense tensor on a GPU or the host, for a quantised one, and with live for a
    tensor that would be copied; and what empty() raises."""
    pool = None if device is None and pool is None else _choose_pool(device, pool)
    client = gpupool.default_client() if pool is None else pool.client

    def acquire(place, n_bytes):
        return _acquire_in(_pool_of(place) if pool is None else pool, n_bytes, timeout)

    with _torch_names.on_stream(stream):
        gathered = _torch_names.gather(tensors, lambda buffer: _is_of_choice(buffer, pool, client), None if live else acquire)
        return _torch_names.publish(name, gathered, _writer_of, lambda place, n_bytes: _acquire_in(place, n_bytes, timeout), keep=keep,
                                    live=live, same_layout=same_layout)


def open(
    name: str,
    *,
    generation: int = 0,
    write: bool = False,
    timeout: float | None = 0,
    stream: torch.cuda.Stream | None = None,
    client: gpupool.Client | None = None,
) -> NamedTensors:
    """Opens a name that publish() made, and returns its tensors, by their names: a dict.

    generation: at least this one. timeout: seconds to wait until it is published, else NoNameError; None: no limit. stream: the one that
    reads the tensors, which waits for the publisher's work on the GPU; None: the current one.

    The tensors are in the memory that all processes share. Do not write to them: on a device pool with export = vmm a kernel that does
    ends this process's CUDA context. write: of a name with live contents, to write to them too."""
    return _torch_names.open_tensors(name, stream, client, generation=generation, write=write, timeout=timeout)


# --- the buffer of a tensor ---


def _find(tensor):
    """The Buffer that a tensor lies in, or None."""
    keeper = _memory.keeper_of(tensor)
    return None if keeper is None else keeper.buffer


def _need(tensor):
    buffer = _find(tensor)
    if buffer is None:
        if _memory.mark_of(tensor) is not None:
            raise ValueError("the tensor is not in memory of gpupool.torch any more: PyTorch has moved it, as share_memory_() does, or "
                             "its buffer is closed")
        raise ValueError("the tensor is not in memory of gpupool.torch: make it by empty(), zeros() or from_buffer()")
    return buffer


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Says that work on a further stream uses the tensor, as Tensor.record_stream() does for PyTorch's own memory. The memory is
    lent again when the work that is enqueued there when the tensor dies is done."""
    mark = _memory.mark_of(tensor)
    (mark.buffer if isinstance(mark, _torch_channels.FrameMark) and mark.buffer is not None else _need(tensor)).record_stream(stream)


def reuse(tensor: torch.Tensor) -> None:
    """Says that this process writes to a tensor again that it sent, or received. The current stream waits for the work of the
    processes that have dropped the tensor. Raises gpupool.SharedError while another process has it."""
    buffer = _need(tensor)
    buffer.reuse(_stream_of(buffer.pool.client, buffer.device))


# --- tensors that sleep ---


def _buffers_of(tensors):
    """The Buffers of a tensor, a mapping or an iterable of tensors, each one once."""
    if isinstance(tensors, torch.Tensor):
        tensors = [tensors]
    elif isinstance(tensors, Mapping):
        tensors = tensors.values()
    return list({id(buffer): buffer for buffer in map(_need, tensors)}.values())


def sleep(tensors: torch.Tensor | Mapping[str, torch.Tensor] | Iterable[torch.Tensor], keep: Literal["gpu", "host", "nothing"] = "gpu") -> None:
    """Puts the buffers of tensors to sleep, as Buffer.sleep() does, behind the current streams. The buffers were acquired with can_sleep:
    from_buffer() makes tensors over them. All tensors of a buffer sleep, and nothing may use them until wake().

    After a failure the buffers before it sleep. The call can be made again."""
    for buffer in _buffers_of(tensors):
        buffer.sleep(keep, _stream_of(buffer.pool.client, buffer.device))


def wake(tensors: torch.Tensor | Mapping[str, torch.Tensor] | Iterable[torch.Tensor], *, timeout: float | None = None) -> None:
    """Wakes the buffers of tensors: their memory is at the same addresses. timeout: as of empty(), for each buffer. The contents are there
    for what the current streams do next.

    After a failure the buffers before it are awake. The call can be made again."""
    for buffer in _buffers_of(tensors):
        buffer.wake(_stream_of(buffer.pool.client, buffer.device), timeout)


# --- tensors between processes ---


def _writer_of(buffer):
    """The stream behind which a tensor is sent: the current one, which comes behind the one that the tensor was made on. Host memory
    is sent when the GPUs that this process uses are idle."""
    if buffer.kind == "host":
        for device in _memory.used_devices():
            torch.cuda.synchronize(device)
        return None
    stream, made_on = _stream_of(buffer.pool.client, buffer.device), buffer.stream
    made_on = getattr(made_on, "cuda_stream", made_on)  # a stream of PyTorch that the program named
    if stream is not None and isinstance(made_on, int) and made_on >= 0 and (made_on or _DLPACK_LEGACY) != (stream or _DLPACK_LEGACY):
        ordered = torch.cuda.ExternalStream(made_on if made_on != _DLPACK_LEGACY else 0, buffer.device)
        torch.cuda.current_stream(buffer.device).wait_stream(ordered)
    return stream


def _reduce(tensor):
    mark = _memory.mark_of(tensor)
    is_small = mark is _SMALL
    if mark is None or not (is_small or mark.find(tensor.untyped_storage())):
        with _torch_handles.sending():
            return torch.multiprocessing.reductions.reduce_tensor(tensor)
    _torch_handles.check(tensor)
    kind, size = (type(tensor) is torch.nn.Parameter, tensor.requires_grad), tuple(tensor.size())
    if tensor.numel() == 0:
        return _rebuild_empty, (tensor.device, tensor.dtype, size, tensor.stride(), *kind)
    if is_small:
        whole = tensor.resolve_neg().resolve_conj().contiguous()
        return _rebuild_small, (ctypes.string_at(whole.data_ptr(), whole.nbytes), tensor.dtype, size, *kind)
    return _rebuild, (tensor.untyped_storage(), tensor.storage_offset(), tensor.dtype, size, tensor.stride(), _traits_of(tensor), *kind)


def _traits_of(tensor):
    """A tensor has these beside its memory: is it lazily conjugated, is it lazily negated, its quantiser. None: nothing."""
    if tensor.is_quantized:
        return False, False, _quantizer_of(tensor)
    return (tensor.is_conj(), tensor.is_neg(), None) if tensor.is_conj() or tensor.is_neg() else None


def _quantizer_of(tensor):
    """As torch._utils._rebuild_qtensor() takes it. None: the tensor has none, as torch.empty() makes it."""
    try:
        scheme = tensor.qscheme()
    except RuntimeError:
        return None
    if scheme == torch.per_tensor_affine:
        return scheme, tensor.q_scale(), tensor.q_zero_point()
    return torch.per_channel_affine, tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points(), tensor.q_per_channel_axis()


def _reduce_storage(storage):
    keeper = _memory.keeper_of_storage(storage)
    if keeper is None:
        return torch.multiprocessing.reductions.reduce_storage(storage)
    return _memory.storage_over, (keeper, storage.nbytes(), storage.data_ptr() - keeper.buffer.ptr)


def _reduce_keeper(keeper):
    """A pickler asks once for each of its messages, and remembers the answer."""
    buffer, client = keeper.buffer, keeper.buffer.pool.client
    token = _transfer.send(client, buffer, _writer_of(buffer), _BATCH_LIFETIME_S if keeper.is_of_batch else None)
    if keeper.is_of_batch:
        _note_sent(client, token)
    return _attach, (token, *_place_of(buffer))


def _place_of(buffer):
    """The arguments of _attach() beside the token."""
    return _transfer.origin_of(buffer.pool.client), buffer.pool.id, _gpupool._is_mapped_read_only(buffer)


def _attach(token, origin, pool_id, read_only):
    client = _client_without_cuda() if torch.utils.data.get_worker_info() else None
    if client is None or client.identity != origin[0]:
        client = _transfer.client_of(origin)
    return _memory.keep(gpupool.attach(token, _stream_of(client, _device_of(client, pool_id)), read_only=read_only, client=client))


def _finish(tensor, is_parameter, requires_grad):
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


def _rebuild_empty(device, dtype, size, stride, is_parameter, requires_grad):
    return _finish(_memory.typed(torch.UntypedStorage(0, device=device), dtype, size, stride), is_parameter, requires_grad)


def _rebuild(storage, offset, dtype, size, stride, traits, is_parameter, requires_grad):
    is_conj, is_neg, quantizer = traits or (False, False, None)
    if quantizer is not None:
        typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
        tensor = torch._utils._rebuild_qtensor(typed, offset, size, stride, quantizer, False, {})
    else:
        tensor = _memory.typed(storage, dtype, size, stride, offset)
    tensor = tensor.conj() if is_conj else tensor
    return _finish(torch._neg_view(tensor) if is_neg else tensor, is_parameter, requires_grad)


def _device_of(client, pool_id):
    places = _places.get(client)
    if places is None or pool_id not in places:
        places = _places[client] = {pool.id: pool.device for pool in client.pools()}
    if pool_id not in places:
        raise LookupError(f"pool {pool_id} of the tensor's process is not a pool of this process's daemon")
    return places[pool_id]


for _type in (torch.Tensor, torch.nn.Parameter):
    multiprocessing.reduction.ForkingPickler.register(_type, _reduce)
multiprocessing.reduction.ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
for _type in (_memory.Keeper, _memory.HostKeeper):
    multiprocessing.reduction.ForkingPickler.register(_type, _reduce_keeper)


# --- batches ---

_unread = collections.deque(maxlen=256)  # the batches that this worker sent last: more than a trainer leaves unread
_is_ending = False
# The trainer ends a worker when it wants no more batches, and has received those that it wanted. Where it ends itself before its iterator, it
# ends the workers by SIGTERM, which leaves them no time to revoke anything.
_BATCH_LIFETIME_S = 1
_REVOKING = -50  # behind multiprocessing's queues (-5), whose threads pickle, and before the farewell of the client


def _note_sent(client, token):
    if not _unread:
        multiprocessing.util.Finalize(None, _revoke_unread, exitpriority=_REVOKING)
    _unread.append((client, token))
    if _is_ending:  # and the queue's thread pickles the last batch
        _revoke_unread()


def _revoke_unread():
    """At the end of a worker. Its trainer has received all batches that it wants: it left the loop early, perhaps, or died."""
    global _is_ending
    _is_ending = True
    while True:
        try:
            client, token = _unread.pop()
        except IndexError:  # that was the last one
            return
        try:
            gpupool.revoke(token, client=client)
        except gpupool.NoTokenError:
            pass  # it was received
        except gpupool.Error:
            return  # the daemon is gone


_SMALL = object()  # the mark of a worker's tensor whose contents are sent, and not a token
_SMALL_BYTES = 16384  # a token costs three messages to the daemon, which take longer than the contents of so many bytes


def _rebuild_small(contents, dtype, size, is_parameter, requires_grad):
    """In pinned memory, too, unless there is none at once: the trainer, which empties the pool, might wait for it for ever."""
    try:
        buffer = _host_pool().acquire(len(contents), timeout=0)
    except gpupool.Error:
        storage = torch.frombuffer(bytearray(contents), dtype=torch.uint8).untyped_storage()
        return _finish(_memory.typed(storage, dtype, size), is_parameter, requires_grad)
    memoryview(buffer)[:] = contents
    return _finish(from_buffer(buffer, size, dtype), is_parameter, requires_grad)


def _is_plain(tensor):
    return (tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_nested and tensor.numel() > 0
            and not tensor.requires_grad and not tensor.is_quantized)


def _is_small(n_bytes):
    return n_bytes <= _SMALL_BYTES and torch.utils.data.get_worker_info() is not None


def _mark_small(tensor):
    tensor.untyped_storage()._gpupool = _SMALL
    return tensor


class _Room:
    """How long a batch waits for room. The trainer, which empties the pool, may wait for this very batch. So the wait is short, and a
    batch goes in PyTorch's own memory after it. The next batches do not wait, until one finds room. Each wait in vain halves the next
    one: all of them together take twice _BATCH_WAIT_S."""

    def __init__(self):
        self.wait_s, self.is_scarce = _BATCH_WAIT_S, False

    def acquire(self, pool, n_bytes):
        """Returns a Buffer. Raises what Pool.acquire() raises."""
        wait_s = 0 if self.is_scarce else min(self.wait_s, _alloc_timeout(pool.client))
        began = time.monotonic()
        try:
            buffer = pool.acquire(n_bytes, timeout=wait_s)
        except (MemoryError, gpupool.LimitError):
            self.is_scarce = True
            if wait_s > 0:
                self.wait_s /= 2
            raise
        self.is_scarce = False
        if time.monotonic() - began > self.wait_s / 2:
            self.wait_s = _BATCH_WAIT_S  # waiting pays
        return buffer


_BATCH_WAIT_S = 1.0  # longer than a step of most trainings, after which a batch is dropped
_room = _Room()
_has_warned = False


def _empty_of_batch(size, dtype):
    """A tensor in pinned memory for a batch. None: the pool has no room, and PyTorch's own memory serves."""
    global _has_warned
    try:
        buffer = _room.acquire(_host_pool(), size.numel() * dtype.itemsize)
    except (MemoryError, gpupool.LimitError) as error:
        if not _has_warned:
            _has_warned = True
            warnings.warn(f"gpupool.torch.collate: no room for a batch, so it is not in pinned memory: {error}", RuntimeWarning, stacklevel=2)
        return None
    keeper = _memory.keep(buffer)
    keeper.is_of_batch = torch.utils.data.get_worker_info() is not None
    return _memory.over(keeper, tuple(size), dtype, 0)


def _stack(batch, *, collate_fn_map=None):
    """A batch of tensors in pinned memory."""
    first = batch[0]
    if _is_forked:  # a data set in memory of the parent's pools: an error is better than a segmentation fault
        for part in batch:
            if part.device.type == "cpu" and part.layout == torch.strided:
                _gpupool._check_memory(part.data_ptr())
    if not _is_plain(first) or any(part.requires_grad or part.dtype != first.dtype for part in batch):
        return default_collate_fn_map[torch.Tensor](batch, collate_fn_map=collate_fn_map)
    if _is_small(len(batch) * first.nbytes):
        return _mark_small(_memory.stack(batch))
    out = _empty_of_batch(torch.Size((len(batch), *first.size())), first.dtype)
    return default_collate_fn_map[torch.Tensor](batch, collate_fn_map=collate_fn_map) if out is None else _memory.stack(batch, out)


def _with_pinned_numbers(make):
    """A worker sends other tensors by a file each, in some 1.5 ms."""
    def collate_numbers(batch, *, collate_fn_map=None):
        made = make(batch, collate_fn_map=collate_fn_map)
        if not isinstance(made, torch.Tensor) or not _is_plain(made):
            return made
        if _is_small(made.nbytes):
            return _mark_small(made)
        out = _empty_of_batch(made.size(), made.dtype)
        return made if out is None else out.copy_(made)
    return collate_numbers


def _is_of_numbers(key):
    return key in (int, float) or (isinstance(key, tuple) and numpy is not None and numpy.number in key)


_collate_fn_map = {key: _with_pinned_numbers(make) if _is_of_numbers(key) else make for key, make in default_collate_fn_map.items()}
_collate_fn_map[torch.Tensor] = _stack


def collate(batch: list[Any]) -> Any:
    """For DataLoader(collate_fn=gpupool.torch.collate): as default_collate(), with the tensors of the batch in pinned memory of a
    pool. A worker writes them there, and sends them by token; in the trainer they are pinned already, so that pin_memory=True
    copies nothing. Tensors of at most 16 KiB, such as labels, are sent with their contents, and lie in pinned memory of the trainer.

    Where the pool has no room for a second, or as long as GPUPOOL_ALLOC_TIMEOUT says if that is less, a batch is what default_collate()
    makes of it, and goes by PyTorch's shared memory. The first time a process warns of that."""
    return _collate(batch, collate_fn_map=_collate_fn_map)


# --- all tensors of a program ---


def _library():
    _gpupool._keep_for_allocators()
    return _gpupool.__file__


@contextlib.contextmanager
def use_pool() -> Iterator[None]:
    """In the with statement, PyTorch's own caching allocator takes its memory from the device pools: statistics, streams and
    OutOfMemoryError are as with memory of its own. PyTorch 2.6 or newer."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(_library(), "gpupool_torch_pool_malloc", "gpupool_torch_pool_free")
    _allocators.append(allocator)
    with torch.cuda.use_mem_pool(torch.cuda.MemPool(allocator.allocator())):
        yield


def enable() -> None:
    """From now on gpupool's cache takes the place of PyTorch's caching allocator, on all GPUs. To be called before the first tensor
    is made on a GPU. There are no CUDA graphs, no MemPool and no memory statistics then."""
    functions = ctypes.CDLL(_library())

    def address(name):
        return ctypes.cast(getattr(functions, name), ctypes.c_void_p).value

    allocator = torch.cuda.memory.CUDAPluggableAllocator(_library(), "gpupool_torch_malloc", "gpupool_torch_free")
    hooks = allocator.allocator()
    hooks.set_record_stream_fn(address("gpupool_torch_record_stream"))
    hooks.set_begin_allocate_to_pool(address("gpupool_torch_begin_pool"))
    hooks.set_reset_fn(address("gpupool_torch_empty_cache"))
    torch.cuda.memory.change_current_allocator(allocator)
    _allocators.append(allocator)
