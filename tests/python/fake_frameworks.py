# SPDX-License-Identifier: Apache-2.0
"""Parts of vLLM 0.33.0 and SGLang 0.5.23 that gpupool.vllm and gpupool.sglang use, with their names and signatures, and a small model.

A checkpoint is a folder with the file weights.pt. reads counts how often one was read in this process.
"""
import contextlib
import dataclasses
import os
import sys
import types
from abc import ABC, abstractmethod

import torch

reads = 0
_is_processed = False


# --- the model ---


class QuantMethod:
    """Stores a weight transposed and negated. Its output shows whether that was done once."""

    supports_pre_processed_weights = True

    def process_weights_after_loading(self, layer):
        if _is_processed:
            layer.kernel, layer.derived, layer.workspace = "rebuilt", layer.weight.data * 2, torch.zeros(4)
            return
        layer.weight = torch.nn.Parameter(-layer.weight.data.t().contiguous(), requires_grad=False)
        layer.derived, layer.workspace = layer.weight.data * 2, torch.zeros(4)
        layer.kernel = "built"
        del layer.placeholder


class LayerWeight(torch.nn.Parameter):
    """A subclass with attributes, as both frameworks have them."""


class Layer(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = LayerWeight(torch.empty(n, n + 1), requires_grad=False)
        self.weight.weight_loader = "loader"
        self.placeholder = torch.nn.Parameter(torch.empty(3), requires_grad=False)
        self.quant_method = QuantMethod()


class Model(torch.nn.Module):
    def __init__(self, n=40):
        super().__init__()
        self.embed = torch.nn.Embedding(n, n)
        self.head = torch.nn.Linear(n, n, bias=False)
        self.head.weight = self.embed.weight
        self.layer = Layer(n)
        self.register_buffer("rope", torch.arange(n, dtype=torch.float32), persistent=False)
        self.register_buffer("scale", torch.empty(()))

    def load_weights(self, weights):
        own = dict(self.named_parameters()) | dict(self.named_buffers())
        for name, tensor in weights:
            own[name].data.copy_(tensor)


def write_checkpoint(folder, value):
    torch.save({"embed.weight": torch.full((40, 40), value), "layer.weight": torch.arange(40.0 * 41).reshape(40, 41) + value,
                "layer.placeholder": torch.ones(3), "scale": torch.tensor(value)}, folder / "weights.pt")


def read_checkpoint(folder):
    global reads
    reads += 1
    yield from torch.load(os.path.join(folder, "weights.pt")).items()


def process(model):
    for module in model.modules():
        if hasattr(module, "quant_method"):
            module.quant_method.process_weights_after_loading(module)


@contextlib.contextmanager
def set_default_torch_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(before)


@contextlib.contextmanager
def weights_already_processed():
    global _is_processed
    _is_processed = True
    yield
    _is_processed = False


def _module(name, **members):
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(members)
    parent, _, leaf = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], leaf, module)


def config(**members):
    return types.SimpleNamespace(**members)


# --- vLLM ---


@dataclasses.dataclass
class LoadConfig:
    load_format: object = "auto"
    model_loader_extra_config: dict = dataclasses.field(default_factory=dict)
    device: str | None = None


class UnsupportedQuantForIPCError(Exception):
    pass


def check_ipc_quant_support(model):
    for module in model.modules():
        if hasattr(module, "quant_method") and not module.quant_method.supports_pre_processed_weights:
            raise UnsupportedQuantForIPCError


@dataclasses.dataclass(frozen=True)
class WeightCacheKey:
    checkpoint: str
    dtype: str
    quantization: str | None
    revision: str | None
    tp_size: int
    tp_rank: int

    @classmethod
    def from_model_config(cls, model_config, tp_size, tp_rank, *, cache_config, pp_size=1, pp_rank=0, is_draft=False, dp_size=1, dp_rank=0,
                          enable_expert_parallel=False, expert_placement_strategy="linear", kernel_config=None):
        return cls(model_config.model, str(model_config.dtype), model_config.quantization, model_config.revision, tp_size, tp_rank)


tp = [1, 0]


def install_vllm():
    class BaseModelLoader(ABC):
        def __init__(self, load_config):
            self.load_config = load_config

        def get_external_weight_memory(self, vllm_config):
            return 0

        @abstractmethod
        def download_model(self, model_config):
            raise NotImplementedError

        @abstractmethod
        def load_weights(self, model, model_config):
            raise NotImplementedError

        def create_model(self, vllm_config, model_config, prefix=""):
            return Model()

        def load_model(self, vllm_config, model_config, prefix=""):
            with set_default_torch_dtype(model_config.dtype):
                with torch.device(vllm_config.device_config.device):
                    model = self.create_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
                self.load_weights(model, model_config)
                process(model)
            return model.eval()

    class DefaultModelLoader(BaseModelLoader):
        def download_model(self, model_config):
            pass

        def load_weights(self, model, model_config):
            model.load_weights(read_checkpoint(model_config.model))

    formats = {"auto": DefaultModelLoader}

    def register_model_loader(load_format):
        def wrapper(loader):
            assert issubclass(loader, BaseModelLoader)
            formats[load_format] = loader
            return loader
        return wrapper

    def get_model_loader(load_config):
        return formats[load_config.load_format](load_config)

    group = config(world_size=1, rank_in_group=0)
    _module("vllm")
    _module("vllm.distributed", get_dp_group=lambda: group, get_pp_group=lambda: group, get_tensor_model_parallel_rank=lambda: tp[1],
            get_tensor_model_parallel_world_size=lambda: tp[0])
    _module("vllm.utils")
    _module("vllm.utils.torch_utils", set_default_torch_dtype=set_default_torch_dtype)
    _module("vllm.model_executor")
    _module("vllm.model_executor.utils", weights_already_processed=weights_already_processed)
    loader = "vllm.model_executor.model_loader"
    _module(loader, _LOAD_FORMAT_TO_MODEL_LOADER=formats, register_model_loader=register_model_loader, get_model_loader=get_model_loader)
    _module(loader + ".base_loader", BaseModelLoader=BaseModelLoader)
    _module(loader + ".utils", process_weights_after_loading=lambda model, model_config, target_device: process(model))
    _module(loader + ".weight_cache")
    _module(loader + ".weight_cache.protocol", WeightCacheKey=WeightCacheKey, check_ipc_quant_support=check_ipc_quant_support,
            UnsupportedQuantForIPCError=UnsupportedQuantForIPCError)


def load_vllm(path, **options):
    """The model of a checkpoint, by gpupool's loader. memory: a list, which gets what lay in the pool before."""
    import gpupool.vllm
    from vllm.model_executor.model_loader import get_model_loader

    model_config = config(model=str(path), revision=None, dtype=torch.float32, quantization=options.pop("quantization", None),
                          hf_config=config(_commit_hash=options.pop("commit", None)))
    parallel = config(enable_expert_parallel=False, expert_placement_strategy="linear", enable_eplb=options.pop("enable_eplb", False))
    memory = options.pop("memory", [])
    vllm_config = config(model_config=model_config, device_config=config(device="cpu"), parallel_config=parallel,
                         cache_config=None, kernel_config=None,
                         speculative_config=config(draft_model_config=model_config) if options.pop("is_draft", False) else None)
    gpupool.vllm.register()
    loader = get_model_loader(LoadConfig("gpupool", options))
    memory.append(loader.get_external_weight_memory(vllm_config))
    return loader.load_model(vllm_config=vllm_config, model_config=model_config)


# --- SGLang ---


def install_sglang():
    class DefaultModelLoader:
        def __init__(self, load_config):
            self.load_config = load_config

        def load_model(self, *, model_config, device_config):
            with set_default_torch_dtype(model_config.dtype):
                with torch.device(device_config.device):
                    model = _initialize_model(model_config, self.load_config, None)
                model.load_weights(read_checkpoint(model_config.model_path))
                self.postprocess_weights(model, torch.device(device_config.device))
            return model.eval()

        @staticmethod
        def postprocess_weights(model, target_device):
            process(model)

    class PreshardedModelLoader(DefaultModelLoader):
        @staticmethod
        def _rebind_parameter_aliases(model):
            model.is_rebound = True

    def _initialize_model(model_config, load_config, quant_config=None):
        return Model()

    _module("sglang", __version__="0.5.23")
    _module("sglang.srt")
    _module("sglang.srt.configs")
    _module("sglang.srt.configs.load_config", LoadFormat=config(AUTO="auto"))
    _module("sglang.srt.runtime_context", get_parallel=lambda: config(tp_size=tp[0], tp_rank=tp[1]))
    _module("sglang.srt.model_loader")
    _module("sglang.srt.model_loader.utils", set_default_torch_dtype=set_default_torch_dtype)
    _module("sglang.srt.model_loader.loader", DefaultModelLoader=DefaultModelLoader, PreshardedModelLoader=PreshardedModelLoader,
            _initialize_model=_initialize_model, _get_quantization_config=lambda model_config, load_config: None)


def load_sglang(path, **options):
    import gpupool.sglang

    model_config = config(model_path=str(path), revision=None, dtype=torch.float32, quantization=options.pop("quantization", None),
                          is_draft_model=options.pop("is_draft", False), modelopt_quant=None,
                          hf_config=config(_commit_hash=options.pop("commit", None)))
    loader = gpupool.sglang.model_loader()(LoadConfig(gpupool.sglang.model_loader(), options))
    return loader.load_model(model_config=model_config, device_config=config(device="cpu"))
