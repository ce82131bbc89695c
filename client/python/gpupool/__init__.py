# SPDX-License-Identifier: Apache-2.0
"""GPU memory and pinned host memory from the pools of gpupoold.

    pool = gpupool.host_pool()                  # or gpupool.device_pool(0)
    array = pool.empty((1000, 1000), "float32")  # a NumPy array
    buffer = pool.acquire(1 << 20)              # a Buffer, which other processes can attach to

The functions here use the process's default client: the daemon that GPUPOOL_SOCKET names, else the machine's.
"""
from gpupool._gpupool import (  # noqa: F401
    NO_STREAM,
    PER_THREAD,
    Array,
    Buffer,
    BufferInfo,
    CancelledError,
    CapturingError,
    Client,
    ConnectError,
    DisconnectedError,
    DriverError,
    EndedError,
    Error,
    ExhaustedError,
    ForkedError,
    InvalidError,
    LimitError,
    LostError,
    NoGpuError,
    NoMemoryError,
    NoNameError,
    NoPoolError,
    NoTokenError,
    Pool,
    PoolInfo,
    ProtocolError,
    SharedError,
    ShutdownError,
    StaleError,
    Stream,
    TimedOutError,
    TooLargeError,
    VacantError,
    VersionError,
    __version__,
    attach,
    default_client,
    revoke,
)
from gpupool import _errors, _farewell, _private  # noqa: F401
from gpupool._stats import stats  # noqa: F401


def device_pool(device=-1):
    """Returns the Pool of a device, by its ordinal in this process. -1: the calling thread's current device."""
    return default_client().device_pool(device)


def host_pool(numa_node=-1):
    """Returns the Pool of pinned host memory of a NUMA node. -1: the node where the calling thread runs, else the first."""
    return default_client().host_pool(numa_node)


def pools():
    """Returns a list of all pools of the daemon."""
    return default_client().pools()


def trim():
    """Gives memory that the default client keeps idle back to the daemon. Returns the number of bytes."""
    return default_client().trim()


def publish(name, tensors, *, keep=False, live=False, same_layout=False, device=None, pool=None, timeout=None, stream=None):
    """Publishes tensors of PyTorch under a name: gpupool.torch.publish()."""
    import gpupool.torch
    return gpupool.torch.publish(name, tensors, keep=keep, live=live, same_layout=same_layout, device=device, pool=pool, timeout=timeout,
                                 stream=stream)


def open(name, *, generation=0, write=False, timeout=0, stream=None, client=None):
    """Opens a name of tensors of PyTorch, and returns them, by their names: gpupool.torch.open()."""
    import gpupool.torch
    return gpupool.torch.open(name, generation=generation, write=write, timeout=timeout, stream=stream, client=client)


__all__ = [name for name in globals() if not name.startswith("_")] + ["__version__"]
