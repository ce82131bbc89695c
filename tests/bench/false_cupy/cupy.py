# SPDX-License-Identifier: Apache-2.0
"""The part of CuPy that the workers of ../programs call, without a GPU, for tests of the benchmark itself. Arrays have no memory."""
import types

__version__ = "0.0"
uint8 = None


class _Pool:
    """Keeps what was in use at most, until it is told to give back."""

    def __init__(self):
        self.used = self.total = 0

    def take(self, size):
        self.used += size
        self.total = max(self.total, self.used)

    def used_bytes(self):
        return self.used

    def total_bytes(self):
        return self.total

    def free_all_blocks(self):
        self.total = self.used


_pool = _Pool()


class _Array:
    def __init__(self, size, values=()):
        self.size, self.values = size, values
        _pool.take(size)

    def __del__(self):
        _pool.used -= self.size

    def get(self):
        return types.SimpleNamespace(tobytes=lambda: repr(self.values).encode())


def empty(size, dtype=None):
    del dtype
    return _Array(size)


def asarray(values):
    return _Array(8 * len(values), values)


def get_default_memory_pool():
    return _pool


cuda = types.SimpleNamespace(is_available=lambda: True, Device=lambda: types.SimpleNamespace(synchronize=lambda: None))
