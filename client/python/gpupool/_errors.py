# SPDX-License-Identifier: Apache-2.0
"""No memory of a GPU, as programs of PyTorch catch it.

Where PyTorch is loaded by the time of the error, the exception is of gpupool's class and a torch.OutOfMemoryError. Its text begins as
PyTorch's own, because loops that try again with less look for that. A process that gets such an exception pickled, and has not loaded
PyTorch, makes one of gpupool's class alone. The class is pickled so, too: a DataLoader's worker sends it in the place of the exception.
"""
import copyreg
import sys

_classes = {}  # by class of gpupool, and of PyTorch


class _Joined(type):
    """The class of these classes. A pickle of one names gpupool's class, and the receiver joins it with its own PyTorch's."""


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


def _join(kind):
    """The class of gpupool, which is PyTorch's as well where that is loaded."""
    torchs = _torchs_class()
    if torchs is None:
        return kind
    if (kind, torchs) not in _classes:
        _classes[kind, torchs] = _Joined(kind.__name__, (kind, torchs),
                                         {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce__": _reduce})
    return _classes[kind, torchs]


def _remake(kind, args):
    """An exception of a class of gpupool, and of PyTorch's where it is loaded."""
    return _join(kind)(*args)


def _reduce_class(joined):
    return _join, (joined.__bases__[0],)


copyreg.pickle(_Joined, _reduce_class)


def no_device_memory(kind, text):
    """The exception of a call that found no memory in a device pool. kind: gpupool's class for it."""
    return _remake(kind, (f"CUDA out of memory. {text}",))
