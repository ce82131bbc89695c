# SPDX-License-Identifier: Apache-2.0
"""Numba: a kernel, device arrays, pinned arrays, streams."""
import turns

turns.need("numba", "numpy")
import warnings  # noqa: E402

import numpy  # noqa: E402

if not hasattr(numpy, "row_stack"):  # Numba 0.68 asks for it, and NumPy has it no more
    numpy.row_stack = numpy.vstack
warnings.simplefilter("ignore")
try:
    from numba import cuda
    if not cuda.is_available():
        turns.skip("Numba has no GPU")
except Exception as error:
    turns.skip(f"numba.cuda: {error}")
ITEMS = 8 << 20


@cuda.jit
def multiply_add(source, target):
    i = cuda.grid(1)
    if i < source.size:
        target[i] = source[i] * numpy.float32(0.5) + numpy.float32(1)


source = numpy.random.default_rng(1).random(ITEMS, dtype=numpy.float32)
kept = cuda.to_device(source)
result = cuda.pinned_array(ITEMS, dtype=numpy.float32)
stream = cuda.stream()
total = 0.0


def step():
    """An array of the step is freed when its last reference goes: Numba defers that, and frees several at once."""
    global total
    target = cuda.device_array(ITEMS, dtype=numpy.float32, stream=stream)
    multiply_add[(ITEMS + 255) // 256, 256, stream](kept, target)
    target.copy_to_host(result, stream=stream)
    stream.synchronize()
    total += float(result[::1000].sum())


for _ in range(3):
    step()
turns.converse(step, lambda: kept.nbytes, lambda: [total])
