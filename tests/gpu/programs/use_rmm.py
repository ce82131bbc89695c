# SPDX-License-Identifier: Apache-2.0
"""RMM under CuPy. use_rmm.py cuda|pool: a resource that asks CUDA each time, or RMM's pool above it, which never shrinks."""
import sys

import turns

turns.need("cupy", "rmm")
import cupy  # noqa: E402
import rmm  # noqa: E402
from rmm.allocators.cupy import rmm_cupy_allocator  # noqa: E402

counted = rmm.mr.StatisticsResourceAdaptor(rmm.mr.CudaMemoryResource())
resource = rmm.mr.PoolMemoryResource(counted, initial_pool_size=512 << 20) if sys.argv[1] == "pool" else counted
rmm.mr.set_current_device_resource(resource)
cupy.cuda.set_allocator(rmm_cupy_allocator)

values = cupy.random.RandomState(1).random_sample(4 << 20)
buffer = rmm.DeviceBuffer.to_device(bytes(range(256)) * 4096)
total, number = 0.0, 0


def step():
    """Arrays of many sizes, which go back at its end."""
    global total, number
    parts = [values[number % 64:(part + 1) << 18] * part for part in range(8)]
    total += sum(float(part.sum()) for part in parts)
    copied = rmm.DeviceBuffer(size=buffer.size)
    copied.copy_from_device(buffer)
    total += copied.copy_to_host()[number % 256]
    number += 1


for _ in range(3):
    step()
try:
    rmm.DeviceBuffer(size=1 << 46)
    sys.exit("no error")
except MemoryError:
    pass
turns.converse(step, lambda: counted.allocation_counts.current_bytes, lambda: [total])
