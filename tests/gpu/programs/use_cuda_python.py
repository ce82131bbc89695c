# SPDX-License-Identifier: Apache-2.0
"""cuda-python: the driver's and the runtime's calls by its bindings, which find both by themselves."""
import turns

turns.need("cuda", "numpy")
try:
    from cuda.bindings import driver, runtime
except Exception as error:
    turns.skip(f"cuda.bindings: {error}")
import numpy  # noqa: E402

SIZE = 32 << 20


def ok(result):
    code, *values = result
    if int(code) != 0:
        raise RuntimeError(f"{code!r}")
    return values[0] if len(values) == 1 else values


ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
context = ok(driver.cuDevicePrimaryCtxRetain(device))
ok(driver.cuCtxSetCurrent(context))
kept = ok(driver.cuMemAlloc(SIZE))
data = numpy.random.default_rng(1).integers(0, 1 << 16, SIZE // 4, dtype=numpy.uint32)
back = numpy.empty_like(data)
total = 0


def step():
    global total
    by_runtime, by_order = ok(runtime.cudaMalloc(SIZE)), ok(runtime.cudaMallocAsync(SIZE, 0))
    ok(driver.cuMemcpyHtoD(kept, data.ctypes.data, SIZE))
    ok(runtime.cudaMemcpyAsync(by_order, int(kept), SIZE, runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice, 0))
    ok(runtime.cudaMemcpy(by_runtime, by_order, SIZE, runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice))
    ok(driver.cuMemcpyDtoH(back.ctypes.data, int(by_runtime), SIZE))
    ok(runtime.cudaFreeAsync(by_order, 0))
    ok(runtime.cudaFree(by_runtime))
    total += int(back[::100].sum(dtype=numpy.int64))


for _ in range(3):
    step()
turns.converse(step, lambda: SIZE, lambda: [float(total)])
