# SPDX-License-Identifier: Apache-2.0
"""Triton alone: its kernel works on tensors, and on memory that the driver's cuMemAlloc() gave."""
import ctypes

import turns

turns.need("torch", "triton")
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

if not torch.cuda.is_available():
    turns.skip("PyTorch has no GPU")
ITEMS = 16 << 20


@triton.jit
def multiply_add(source, target, items, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < items
    tl.store(target + places, tl.load(source + places, mask=inside) * 0.5 + 1.0, mask=inside)


class Raw:
    """Memory of the driver, as Triton takes it: an object with data_ptr() and dtype."""
    dtype = torch.float32

    def __init__(self, driver, size_bytes):
        pointer = ctypes.c_uint64(0)
        code = driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size_bytes))
        if code != 0:
            raise RuntimeError(f"cuMemAlloc: {code}")
        self.pointer = pointer.value

    def data_ptr(self):
        return self.pointer


torch.manual_seed(1)
first = torch.rand(ITEMS, generator=torch.Generator().manual_seed(1)).cuda()
second = torch.empty_like(first)
driver = ctypes.CDLL("libcuda.so.1")
raw = Raw(driver, ITEMS * 4)
GRID = ((ITEMS + 1023) // 1024,)


def step():
    multiply_add[GRID](first, raw, ITEMS, BLOCK=1024)
    multiply_add[GRID](raw, second, ITEMS, BLOCK=1024)
    torch.cuda.synchronize()


for _ in range(3):
    step()
turns.converse(step, lambda: torch.cuda.memory_reserved() + ITEMS * 4, lambda: [second.double().sum().item()])
