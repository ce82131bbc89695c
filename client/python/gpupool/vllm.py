# SPDX-License-Identifier: Apache-2.0
"""Weights of vLLM that later processes have by a name, without reading the disk.

    import gpupool.vllm
    gpupool.vllm.register()
    llm = vllm.LLM(model, load_format="gpupool")

register() makes the load format known. It has to run in each process of vLLM: the wheel names it as a plug-in (vllm.general_plugins), which
vLLM calls. The module is written for the interface of vLLM 0.33.0.

Parameters and buffers are published as they are after process_weights_after_loading(). In later processes the model is made on the device
"meta", gets them, and vLLM runs that function in its mode for weights that are processed already.

Not shared, and loaded from disk by each process: drafts of speculative decoding, models with EPLB or with a quantisation that has no such
mode, and models whose files have no identity.

Keys of model_loader_extra_config: "timeout" (seconds to wait for a process that loads, None), and "load_format" (of the disk, "auto").
"""
import dataclasses

__all__ = ["LOAD_FORMAT", "register"]

LOAD_FORMAT = "gpupool"


def _key(vllm_config, model_config):
    """All that makes the tensors of this process different from those of others."""
    import torch
    from vllm.distributed import get_dp_group, get_pp_group, get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
    from vllm.model_executor.model_loader.weight_cache.protocol import WeightCacheKey

    parallel, dp, pp = vllm_config.parallel_config, get_dp_group(), get_pp_group()
    key = WeightCacheKey.from_model_config(
        model_config, cache_config=vllm_config.cache_config, tp_size=get_tensor_model_parallel_world_size(),
        tp_rank=get_tensor_model_parallel_rank(), pp_size=pp.world_size, pp_rank=pp.rank_in_group, dp_size=dp.world_size,
        dp_rank=dp.rank_in_group, is_draft=False, enable_expert_parallel=parallel.enable_expert_parallel,
        expert_placement_strategy=parallel.expert_placement_strategy, kernel_config=vllm_config.kernel_config)
    told = dataclasses.asdict(key)
    told.update(checkpoint=model_config.model, device=_uuid(torch))  # of files: the identity, which may change under a name
    return told


def _name(vllm_config, model_config, prefix):
    """The name of a model. It is made before the model: the processing of weights may change the configuration."""
    from gpupool import _model_loaders
    return _model_loaders.name_of("vllm", {**_key(vllm_config, model_config), "prefix": prefix})


def _is_for_all(vllm_config, model_config):
    """Whether a model is one that processes can share, as far as its configuration tells."""
    speculative = vllm_config.speculative_config
    is_draft = speculative is not None and model_config is speculative.draft_model_config
    return not is_draft and not vllm_config.parallel_config.enable_eplb


def _uuid(torch):
    import gpupool
    return gpupool.device_pool(torch.cuda.current_device()).uuid if torch.cuda.is_available() else "cpu"


def _materialize(model, device):
    """Memory for what is left on "meta": placeholders that the processing of weights has dropped where the tensors were made."""
    import torch
    for module in model.modules():
        for leaf, tensor in list(module._parameters.items()):
            if tensor is not None and tensor.device.type == "meta":
                module._parameters[leaf] = torch.nn.Parameter(torch.empty_like(tensor, device=device), requires_grad=False)
        for leaf, tensor in list(module._buffers.items()):
            if tensor is not None and tensor.device.type == "meta":
                module._buffers[leaf] = torch.empty_like(tensor, device=device)


def _make_class():
    """The class. load_model() imports the rest: vLLM calls plug-ins also in processes that load no model so."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class PoolModelLoader(BaseModelLoader):
        def __init__(self, load_config):
            super().__init__(load_config)
            extra = dict(load_config.model_loader_extra_config or {})
            self.timeout, disk = extra.pop("timeout", None), extra.pop("load_format", "auto")
            if extra:
                raise ValueError(f"model_loader_extra_config of load_format={LOAD_FORMAT!r} has unknown keys: {sorted(extra)}")
            self.disk_config = dataclasses.replace(load_config, load_format=disk, model_loader_extra_config={})

        def _disk_loader(self):
            from vllm.model_executor.model_loader import get_model_loader
            return get_model_loader(self.disk_config)

        def download_model(self, model_config):
            self._disk_loader().download_model(model_config)

        def get_external_weight_memory(self, vllm_config):
            """Bytes of the weights that lie in the pool already. vLLM asks before it measures how much memory is free."""
            from gpupool import names
            if not _is_for_all(vllm_config, vllm_config.model_config):
                return 0
            name = _name(vllm_config, vllm_config.model_config, "")
            return sum(one.bytes for one in names.names() if one.name == name)

        def load_weights(self, model, model_config):
            """Weights for a model that is there are read from disk, into memory of its own."""
            self._disk_loader().load_weights(model, model_config)

        def load_model(self, vllm_config, model_config, prefix=""):
            import torch
            from vllm.model_executor.model_loader.utils import process_weights_after_loading
            from vllm.model_executor.model_loader.weight_cache.protocol import UnsupportedQuantForIPCError, check_ipc_quant_support
            from vllm.model_executor.utils import weights_already_processed
            from vllm.utils.torch_utils import set_default_torch_dtype

            from gpupool import _model_loaders

            def from_disk():
                model = self._disk_loader().load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
                try:
                    check_ipc_quant_support(model)
                except UnsupportedQuantForIPCError:
                    return model, False
                return model, True

            def take(found):
                target = torch.device(self.load_config.device or vllm_config.device_config.device)
                with set_default_torch_dtype(model_config.dtype):
                    with torch.device("meta"):
                        model = self.create_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
                    _model_loaders.put(model, found)
                    with weights_already_processed():
                        process_weights_after_loading(model, model_config, target)
                    _materialize(model, target)
                return model.eval()

            def identity():
                return _model_loaders.checkpoint(model_config.model, getattr(model_config.hf_config, "_commit_hash", None))

            if not _is_for_all(vllm_config, model_config) or identity() is None:
                return from_disk()[0]
            name = _name(vllm_config, model_config, prefix)
            return _model_loaders.share(name, identity, from_disk, take, self.timeout, has_attributes=False)

    return PoolModelLoader


def register() -> None:
    """Has vLLM know load_format="gpupool" in this process. A further call changes nothing."""
    from vllm.model_executor import model_loader

    if LOAD_FORMAT not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
        model_loader.register_model_loader(LOAD_FORMAT)(_make_class())
