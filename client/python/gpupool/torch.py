# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors in memory of the pools.

    import gpupool.torch
    frame = gpupool.torch.empty((1080, 1920, 3), dtype=torch.uint8, device="cuda")
    batch = gpupool.torch.zeros((64, 3, 224, 224))  # pinned host memory

Such a tensor goes to another process without a copy: through pipes and queues of multiprocessing and torch.multiprocessing, to a
process of any start method but fork after CUDA was used. The work on the stream that is current when it is pickled comes before the
work on the stream that is current when it is received, on the GPU. The sender may drop its tensor at once. Other tensors are sent
as PyTorch sends them.

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
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.multiprocessing.reductions
import torch.utils.data
from torch.utils.data._utils.collate import collate as _collate
from torch.utils.data._utils.collate import default_collate_fn_map

import gpupool
from gpupool import _gpupool, _transfer
from gpupool._gpupool import _alloc_timeout

try:
    import numpy
except ImportError:
    numpy = None

if not hasattr(torch.float32, "itemsize"):
    raise ImportError(f"gpupool.torch needs PyTorch 2.1 or newer, and this is {torch.__version__}")

__all__ = ["collate", "empty", "enable", "from_buffer", "record_stream", "reuse", "use_pool", "zeros"]

_lock = threading.Lock()
_is_forked = False
_worker_clients = {}  # of this process: without CUDA
_places = weakref.WeakKeyDictionary()  # of each client's pools, by id
_allocators = []  # PyTorch calls them as long as there are tensors

_DTYPES = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
           torch.float64, torch.complex64, torch.complex128}
_DLPACK_CUDA = 2  # the type of a device
_DLPACK_LEGACY = 1  # the legacy default stream

# --- streams, and what becomes of host memory ---


def _current_stream(device):
    """The handle of torch.cuda.current_stream(device), which takes some microseconds to make its object."""
    return torch._C._cuda_getCurrentRawStream(device)


def _stream_of(client, device):
    """The stream on which the memory of a tensor on a device goes back: the current one. Host memory (None) has none: _Keeper."""
    if device is None or client.gpu_kind != "cuda":
        return None
    if not torch.cuda.is_initialized():
        torch.cuda.init()
    return _current_stream(device)


def _used_devices():
    """Those that this process has a context on. Asked when each tensor in host memory dies, so by the quickest calls there are."""
    if not torch.cuda.is_initialized():
        return []
    return [device for device in range(torch._C._cuda_getDeviceCount()) if torch._C._cuda_hasPrimaryContext(device)]


class _Keeper:
    """Of a storage: its buffer. The storages of one keeper are sent with one token, where they are in one message."""

    __slots__ = ("buffer", "is_of_batch")

    def __init__(self, buffer):
        self.buffer, self.is_of_batch = buffer, False


class _HostKeeper(_Keeper):
    """Copies to and from GPUs may not be over when the last storage dies. As a rule they are on the streams that are current then, so
    that the memory goes back behind these."""

    __slots__ = ()

    def __del__(self):
        current = torch._C._cuda_getDevice() if torch.cuda.is_initialized() else -1
        for device in _used_devices():
            with contextlib.nullcontext() if device == current else torch.cuda.device(device):
                try:
                    self.buffer.record_stream(_current_stream(device) or _DLPACK_LEGACY)
                except gpupool.StaleError:  # closed by the program
                    return


def _keep(buffer):
    return (_HostKeeper if buffer.kind == "host" else _Keeper)(buffer)


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
    return _make_over(_keep(buffer), shape, dtype, offset)


def _make_over(keeper, shape, dtype, offset):
    buffer = keeper.buffer
    view = buffer.view(shape, dtype, offset)
    if buffer.read_only:
        tensor = torch.from_dlpack(view)  # which says that it cannot be, where PyTorch does not know such memory
    else:
        on_gpu = view.__dlpack_device__()[0] == _DLPACK_CUDA
        stream = (_current_stream(buffer.device) or _DLPACK_LEGACY) if on_gpu else None
        tensor = torch.from_dlpack(view.__dlpack__(stream=stream))
    tensor.untyped_storage()._gpupool = keeper
    return tensor


def _make(shape, dtype, device, pool, timeout, zero):
    if pool is None:
        pool = _pool_of(device)
    elif device is not None:
        raise ValueError("device and pool: the pool says which device it is")
    dtype = torch.get_default_dtype() if dtype is None else dtype
    shape = torch.Size(shape if isinstance(shape, (tuple, list)) else (shape,))
    n_bytes = shape.numel() * dtype.itemsize
    if n_bytes == 0:
        is_cuda = pool.kind == "device" and pool.client.gpu_kind == "cuda"  # memory of a simulated GPU is the host's
        return torch.empty(shape, dtype=dtype, device=torch.device("cuda", pool.device) if is_cuda else "cpu")
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
    gpupool.ExhaustedError, a MemoryError, when there was no room until the timeout."""
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


# --- the buffer of a tensor ---


def _mark_of(tensor):
    """The note of this module at the storage of a tensor: the _Keeper of an open buffer, _SMALL, or None."""
    if tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda") or tensor.is_quantized:
        return None
    try:
        mark = getattr(tensor.untyped_storage(), "_gpupool", None)
    except RuntimeError:  # a tensor without a storage
        return None
    return None if isinstance(mark, _Keeper) and mark.buffer.closed else mark


def _find(tensor):
    """The Buffer that a tensor lies in, or None."""
    mark = _mark_of(tensor)
    return mark.buffer if isinstance(mark, _Keeper) else None


def _need(tensor):
    buffer = _find(tensor)
    if buffer is None:
        raise ValueError("the tensor is not in memory of gpupool.torch: make it by empty(), zeros() or from_buffer()")
    return buffer


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Says that work on a further stream uses the tensor, as Tensor.record_stream() does for PyTorch's own memory. The memory is
    lent again when the work that is enqueued there when the tensor dies is done."""
    _need(tensor).record_stream(stream)


def reuse(tensor: torch.Tensor) -> None:
    """Says that this process writes to a tensor again that it sent, or received. The current stream waits for the work of the
    processes that have dropped the tensor. Raises gpupool.SharedError while another process has it."""
    buffer = _need(tensor)
    buffer.reuse(_stream_of(buffer.pool.client, buffer.device))


# --- tensors between processes ---


def _writer_of(buffer):
    """The stream behind which a tensor is sent: the current one, which comes behind the one that the tensor was made on. Host memory
    is sent when the GPUs that this process uses are idle."""
    if buffer.kind == "host":
        for device in _used_devices():
            torch.cuda.synchronize(device)
        return None
    stream, made_on = _stream_of(buffer.pool.client, buffer.device), buffer.stream
    made_on = getattr(made_on, "cuda_stream", made_on)  # a stream of PyTorch that the program named
    if stream is not None and isinstance(made_on, int) and made_on >= 0 and (made_on or _DLPACK_LEGACY) != (stream or _DLPACK_LEGACY):
        ordered = torch.cuda.ExternalStream(made_on if made_on != _DLPACK_LEGACY else 0, buffer.device)
        torch.cuda.current_stream(buffer.device).wait_stream(ordered)
    return stream


def _reduce(tensor):
    mark = _mark_of(tensor)
    if mark is None:
        return torch.multiprocessing.reductions.reduce_tensor(tensor)
    if tensor.requires_grad and not tensor.is_leaf:
        raise RuntimeError("a tensor that has a history of operations cannot be sent to another process: send tensor.detach()")
    if tensor.is_neg() or tensor.is_conj():
        raise RuntimeError("a lazily negated or conjugated tensor cannot be sent: send tensor.resolve_neg().resolve_conj()")
    kind, size = (type(tensor) is torch.nn.Parameter, tensor.requires_grad), tuple(tensor.size())
    if tensor.numel() == 0:
        return _rebuild_empty, (tensor.device, tensor.dtype, size, tensor.stride(), *kind)
    if mark is _SMALL:
        whole = tensor.contiguous()
        return _rebuild_small, (ctypes.string_at(whole.data_ptr(), whole.nbytes), tensor.dtype, size, *kind)
    offset = tensor.data_ptr() - mark.buffer.ptr
    is_plain_view = tensor.is_contiguous() and offset % tensor.dtype.itemsize == 0
    return _rebuild, (mark, offset, tensor.dtype, size, None if is_plain_view else tensor.stride(), *kind)


def _reduce_keeper(keeper):
    """A pickler asks once for each of its messages, and remembers the answer."""
    buffer, client = keeper.buffer, keeper.buffer.pool.client
    token = _transfer.send(client, buffer, _writer_of(buffer))
    if keeper.is_of_batch:
        _note_sent(client, token)
    return _attach, (token, _transfer.origin_of(client), buffer.pool.id, buffer.read_only)


def _attach(token, origin, pool_id, read_only):
    client = _client_without_cuda() if torch.utils.data.get_worker_info() else None
    if client is None or client.identity != origin[0]:
        client = _transfer.client_of(origin)
    return _keep(gpupool.attach(token, _stream_of(client, _device_of(client, pool_id)), read_only=read_only, client=client))


def _finish(tensor, is_parameter, requires_grad):
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


def _rebuild_empty(device, dtype, size, stride, is_parameter, requires_grad):
    return _finish(torch.empty_strided(size, stride, dtype=dtype, device=device), is_parameter, requires_grad)


def _rebuild(keeper, offset, dtype, size, stride, is_parameter, requires_grad):
    if stride is None:
        return _finish(_make_over(keeper, size, dtype, offset), is_parameter, requires_grad)
    start = offset % dtype.itemsize  # the elements of a view need not begin at the buffer's
    n_bytes = (keeper.buffer.nbytes - start) // dtype.itemsize * dtype.itemsize
    flat = _make_over(keeper, n_bytes, torch.uint8, start).view(dtype) if start else _make_over(keeper, n_bytes // dtype.itemsize, dtype, 0)
    return _finish(flat.as_strided(size, stride, offset // dtype.itemsize), is_parameter, requires_grad)


def _device_of(client, pool_id):
    places = _places.get(client)
    if places is None or pool_id not in places:
        places = _places[client] = {pool.id: pool.device for pool in client.pools()}
    if pool_id not in places:
        raise LookupError(f"pool {pool_id} of the tensor's process is not a pool of this process's daemon")
    return places[pool_id]


for _type in (torch.Tensor, torch.nn.Parameter):
    multiprocessing.reduction.ForkingPickler.register(_type, _reduce)
for _type in (_Keeper, _HostKeeper):
    multiprocessing.reduction.ForkingPickler.register(_type, _reduce_keeper)


# --- batches ---

_unread = collections.deque(maxlen=256)  # the batches that this worker sent last: more than a trainer leaves unread
_is_ending = False
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
        return _finish(torch.frombuffer(bytearray(contents), dtype=dtype).view(size), is_parameter, requires_grad)
    memoryview(buffer)[:] = contents
    return _finish(from_buffer(buffer, size, dtype), is_parameter, requires_grad)


def _is_plain(tensor):
    return (tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_nested and tensor.numel() > 0
            and not tensor.requires_grad and tensor.dtype in _DTYPES)


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
    tensor = from_buffer(buffer, tuple(size), dtype)
    tensor.untyped_storage()._gpupool.is_of_batch = torch.utils.data.get_worker_info() is not None
    return tensor


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
        return _mark_small(torch.stack(batch, 0))
    out = _empty_of_batch(torch.Size((len(batch), *first.size())), first.dtype)
    return default_collate_fn_map[torch.Tensor](batch, collate_fn_map=collate_fn_map) if out is None else torch.stack(batch, 0, out=out)


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
