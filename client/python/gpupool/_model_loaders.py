# SPDX-License-Identifier: Apache-2.0
"""Models whose tensors lie under a name: what gpupool.vllm and gpupool.sglang have in common.

The first process loads a model from disk, as its framework does, and calls the framework's processing of weights. share() then moves the
tensors of the model into few buffers and publishes them. Later processes make a model without weights, and put() gives it the tensors of the
name. So what is published is final: no process writes to it any more.

A tensor of a model has one of three kinds: a parameter, a buffer (persistent or not), or an attribute of a module that is a plain tensor.
Processes share the parameters, and what lies in the same storages. Each has a copy of all else, such as the workspaces of kernels, because a
program may write to it.
"""
import contextlib
import hashlib
import json
import os
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

import gpupool
import gpupool.torch
from gpupool import _torch_memory as memory
from gpupool import _torch_names, names
from gpupool._torch_set import round_up

PARTS = 24  # buffers that the tensors of a device are moved into: one part at a time is there twice
PART_BYTES_MIN = 64 << 20


# --- what makes weights different ---


def checkpoint(path: str, commit: str | None) -> str | None:
    """The identity of a model's files. A folder: names, sizes and times of its files; otherwise the commit of a repository. None: unknown."""
    if not os.path.isdir(path):
        return None if commit is None else f"{path}@{commit}"
    with os.scandir(path) as entries:
        files = sorted((entry.name, entry.stat()) for entry in entries if entry.is_file())
    told = [[name, status.st_size, status.st_mtime_ns, status.st_ctime_ns] for name, status in files]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def name_of(framework: str, key: dict[str, Any]) -> str:
    """The name of weights whose configuration is key. Other configurations have other names."""
    return f"{framework}/" + hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:40]


# --- the tensors of a model ---


def _plain(tensor):
    """A tensor of no subclass, over the same memory."""
    return tensor.detach().as_subclass(torch.Tensor)


def _attributes(module):
    """Plain tensors that are attributes of a module, and not registered."""
    return ((name, value) for name, value in list(vars(module).items()) if isinstance(value, torch.Tensor))


def tensors_of(model: torch.nn.Module, has_attributes: bool) -> dict[str, torch.Tensor]:
    """The tensors of a model, by their kinds and names. Tied ones have all their names. has_attributes: those of the third kind, too."""
    found = {}
    for kind, listed in (("parameter", model.named_parameters(remove_duplicate=False)), ("buffer", model.named_buffers(remove_duplicate=False))):
        found.update((f"{kind} {name}", tensor) for name, tensor in listed)
    for path, module in model.named_modules() if has_attributes else ():
        found.update((f"attribute {path}.{name}", tensor) for name, tensor in _attributes(module))
    return found


def _acquire(device, n_bytes):
    return gpupool.torch._acquire_in(gpupool.torch._pool_of(device), n_bytes, None)


def _is_dense(tensor):
    """Whether the contents of a tensor lie in one memory, which a name can have."""
    return (tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_quantized and tensor.device.type in ("cpu", "cuda")
            and not is_traceable_wrapper_subclass(tensor))


def _storage_of(tensor):
    return tensor.untyped_storage()._cdata


def _storages_of_parameters(tensors):
    return {_storage_of(tensor) for key, tensor in tensors.items() if key.startswith("parameter ") and tensor.numel()}


def _parts(tensors):
    """The storages of parameters in parts of a device each: lists of (storage, all tensors over it)."""
    chosen, users, by_device = _storages_of_parameters(tensors), {}, {}
    for tensor in tensors.values():
        if tensor.numel() and _storage_of(tensor) in chosen and memory.keeper_of(tensor) is None:
            users.setdefault(_storage_of(tensor), (tensor.untyped_storage(), []))[1].append(tensor)
    for storage, of_storage in users.values():
        by_device.setdefault(storage.device, []).append((storage, of_storage))
    for device, storages in by_device.items():
        limit, part, n_bytes = max(PART_BYTES_MIN, sum(storage.nbytes() for storage, _ in storages) // PARTS), [], 0
        for storage, of_storage in storages:
            part.append((storage, of_storage))
            n_bytes += round_up(storage.nbytes())
            if n_bytes >= limit:
                yield device, part, n_bytes
                part, n_bytes = [], 0
        if part:
            yield device, part, n_bytes


def _move(tensors):
    """Moves parameters into memory of the pools. Each one stays the object that it is."""
    for device, part, n_bytes in _parts(tensors):
        keeper, offset = memory.keep(_acquire(device, n_bytes)), 0
        while part:
            storage, of_storage = part.pop()
            target = memory.over(keeper, storage.nbytes(), torch.uint8, offset)
            target.copy_(memory.typed(storage, torch.uint8, (storage.nbytes(),), (1,)))
            for tensor in of_storage:
                tensor.data = memory.typed(target.untyped_storage(), tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())
            offset += round_up(target.numel())
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _publish(name, tensors, source):
    with torch.no_grad():
        _move(tensors)
    client = gpupool.default_client()
    gathered = _torch_names.gather({key: _plain(tensor) for key, tensor in tensors.items()},
                                   lambda buffer: buffer.pool.client is client, _acquire)
    gathered.directory = gathered.directory._replace(source=source)
    _torch_names.publish(name, gathered, gpupool.torch._writer_of, lambda pool, n_bytes: gpupool.torch._acquire_in(pool, n_bytes, None), keep=True,
                         waits=True)


def _put_one(module, kind, leaf, tensor):
    """Gives a tensor to a module. A parameter or buffer on the device of the tensor stays the object that it is. Returns what is registered."""
    old = {"parameter": module._parameters, "buffer": module._buffers}.get(kind, {}).get(leaf)
    if kind == "attribute":
        setattr(module, leaf, tensor)
        return tensor
    if old is not None and old.device.type == tensor.device.type:
        old.data = tensor
        return old
    if kind == "buffer":
        module._buffers[leaf] = tensor
        return tensor
    made = torch.nn.Parameter(tensor, requires_grad=False)
    if old is not None:
        vars(made).update(vars(old))
    module._parameters[leaf] = made
    return made


def put(model: torch.nn.Module, found: dict[str, torch.Tensor]) -> None:
    """Gives a model the tensors of a name. Raises ValueError for a tensor of a module that the model has not."""
    modules, made, shared = dict(model.named_modules(remove_duplicate=False)), {}, _storages_of_parameters(found)
    for key, tensor in found.items():
        kind, _, name = key.partition(" ")
        path, _, leaf = name.rpartition(".")
        if path not in modules:
            raise ValueError(f"the name has the tensor {name!r}, and the model has no module {path!r}")
        if tensor.numel() and _storage_of(tensor) not in shared:
            tensor = tensor.clone()
        place = (kind, _storage_of(tensor), tensor.storage_offset(), tensor.dtype, tensor.shape, tensor.stride())
        registry = modules[path]._parameters if kind == "parameter" else None
        if registry is not None and tensor.numel() and place in made:
            registry[leaf] = made[place]  # tied: one object
        else:
            made[place] = _put_one(modules[path], kind, leaf, tensor)


def missing(model: torch.nn.Module, found: dict[str, torch.Tensor]) -> list[str]:
    """Parameters and buffers with elements that a model has and a name has not."""
    return [key for key, tensor in tensors_of(model, False).items() if tensor.numel() and key not in found]


# --- sharing ---


def share(name: str, identity: Callable[[], str], build: Callable[[], tuple[torch.nn.Module, bool]],
          take: Callable[[dict[str, torch.Tensor]], torch.nn.Module], timeout: float | None, has_attributes: bool) -> torch.nn.Module:
    """The model of a name. One process makes it: build() returns the model, and whether its tensors may be published. The others wait for it,
    timeout seconds, and take(tensors) makes theirs. Tensors of another identity are made anew. If they cannot be published, for which there
    is a warning, the builder has the model all the same, and the next process builds. has_attributes: attributes are published, too."""
    client = gpupool.default_client()
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if end is None else max(0, end - time.monotonic())
        opened = names.open_or_build(name, stream=_torch_names._reader(client), timeout=left, client=client)
        if opened is None:
            return _build(name, identity(), build, client, has_attributes)
        found = _torch_names.tensors_of(opened)
        if found.source == identity():
            return take(found)
        generation = found.generation
        del opened, found  # before another process loads the new weights
        with contextlib.suppress(gpupool.NoNameError):  # another process has seen it, too
            names.unpublish(name, generation=generation, client=client)


def _try_to_publish(name, model, source, has_attributes):
    """Whether the tensors of a model were published. Otherwise there is a warning."""
    tensors = tensors_of(model, has_attributes)
    odd = [key for key, tensor in tensors.items() if not _is_dense(tensor)]
    try:
        if odd:
            raise ValueError(f"the {odd[0]} has its contents not in one memory of a GPU or the host")
        _publish(name, tensors, source)
    except (gpupool.Error, ValueError) as error:
        warnings.warn(f"the weights are not shared: {error}", RuntimeWarning, stacklevel=2)
        return False
    return True


def _build(name, source, build, client, has_attributes):
    is_published = False
    try:
        model, may_publish = build()
        is_published = may_publish and _try_to_publish(name, model, source, has_attributes)
        return model
    finally:
        if not is_published:
            with contextlib.suppress(gpupool.Error):  # the daemon is gone, say
                names.abandon(name, client=client)
