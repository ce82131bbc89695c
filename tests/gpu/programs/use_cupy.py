# SPDX-License-Identifier: Apache-2.0
"""CuPy: FFT, sort, a kernel of its own, streams, pinned memory. use_cupy.py pool|async: its memory pool, or cudaMallocAsync()."""
import sys

import turns

turns.need("cupy")
import cupy  # noqa: E402

ASYNC = sys.argv[1] == "async"
ITEMS = 8 << 20

if ASYNC:
    try:
        cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    except Exception as error:
        turns.skip(f"no MemoryAsyncPool: {error}")

TWICE = cupy.RawKernel('extern "C" __global__ void twice(double *v, int n) {'
                       'int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) v[i] = v[i] * 2 + 1; }', "twice")
random = cupy.random.RandomState(1)
values = random.random_sample(ITEMS).astype(cupy.float64)
kept = [cupy.full(4 << 20, number, dtype=cupy.float32) for number in range(8)]
pinned = cupy.cuda.alloc_pinned_memory(1 << 20)
streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
cupy.cuda.Device().synchronize()
totals, number = [0.0, 0.0, 0.0], 0


def step():
    """Arrays of the step go back to the pool at its end, on the stream that used them."""
    global number
    with streams[number % len(streams)] as stream:
        part = values[(number % 64) << 10:].copy()
        TWICE(((part.size + 255) // 256,), (256,), (part, part.size))
        part.sort()
        totals[0] += float(part[::7].sum())
        totals[1] += float(cupy.abs(cupy.fft.rfft(part[:1 << 20])).sum())
        totals[2] += float((kept[number % 8] * 2).sum())
        stream.synchronize()
    number += 1


def held():
    """A memory pool counts what it took from CUDA; the other one does not, and the arrays do."""
    if ASYNC:
        return values.nbytes + sum(array.nbytes for array in kept)
    return cupy.get_default_memory_pool().total_bytes()


for _ in range(3):
    step()
try:
    cupy.empty(1 << 46, dtype=cupy.uint8)
    sys.exit("no error")
except (cupy.cuda.memory.OutOfMemoryError, cupy.cuda.runtime.CUDARuntimeError):
    pass
turns.converse(step, held, lambda: totals, steps=10)
