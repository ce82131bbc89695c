# SPDX-License-Identifier: Apache-2.0
"""No memory of a GPU, as programs of PyTorch catch it.

Where PyTorch is loaded by the time of the error, the exception is of gpupool's class and a torch.OutOfMemoryError. Its text begins as
PyTorch's own, because loops that try again with less look for that. A process that gets such an exception pickled, and has not loaded
PyTorch, makes one of gpupool's class alone.
"""
import sys

_classes = {}  # by class of gpupool, and of PyTorch


def _torchs_class():
    """PyTorch's exception, or None. Versions before 2.5 have it in torch.cuda alone."""
    torch = sys.modules.get("torch")
    for module in (torch, getattr(torch, "cuda", None)):
        found = getattr(module, "OutOfMemoryError", None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return None


def _reduce(error):
    kind = type(error).__bases__[0]
    return _remake, (kind, error.args), error.__dict__ or None


def _remake(kind, args):
    """An exception of a class of gpupool, and of PyTorch's where it is loaded."""
    torchs = _torchs_class()
    if torchs is None:
        return kind(*args)
    if (kind, torchs) not in _classes:
        _classes[kind, torchs] = type(kind.__name__, (kind, torchs),
                                      {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce__": _reduce})
    return _classes[kind, torchs](*args)


def no_device_memory(kind, text):
    """The exception of a call that found no memory in a device pool. kind: gpupool's class for it."""
    return _remake(kind, (f"CUDA out of memory. {text}",))
