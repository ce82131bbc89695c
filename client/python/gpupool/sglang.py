# SPDX-License-Identifier: Apache-2.0
"""Weights of SGLang that later processes have by a name, without reading the disk.

    import gpupool.sglang
    load_config = LoadConfig(load_format=gpupool.sglang.model_loader())

model_loader() returns a class, which SGLang's get_model_loader() takes in the place of the text of a format. The module is written for the
interface of SGLang 0.5.23.

The tensors are published as they are after SGLang's processing of weights. SGLang has no mode for weights that are processed already. So in
later processes the model is made with weights of undefined contents, these are processed, and then their tensors are replaced, as SGLang's own
loader of presharded checkpoints does it. For that time the process has memory for the weights of its own, too. Not shared: models of ModelOpt,
drafts, and models whose files have no identity.

A key of model_loader_extra_config: "timeout", seconds to wait for a process that loads (None). The other keys go to SGLang.
"""
import dataclasses
import functools

__all__ = ["model_loader"]

_KEY = ("tp_size", "tp_rank", "pp_size", "pp_rank", "dp_size", "moe_ep_size", "moe_ep_rank", "moe_dp_size", "moe_dense_tp_size",
        "enable_dp_lm_head")


def _key(model_config, parallel):
    """All that makes the tensors of this process different from those of others."""
    import sglang
    import torch

    import gpupool

    config = model_config.hf_config
    told = {name: getattr(parallel, name, None) for name in _KEY}
    told.update(model=model_config.model_path, revision=model_config.revision, dtype=str(model_config.dtype),
                quantization=model_config.quantization, config=config.to_dict() if hasattr(config, "to_dict") else vars(config),
                sglang=sglang.__version__,
                device=gpupool.device_pool(torch.cuda.current_device()).uuid if torch.cuda.is_available() else "cpu")
    return told


@functools.cache
def model_loader() -> type:
    """The class for LoadConfig.load_format. Imports SGLang."""
    import torch
    from sglang.srt.configs.load_config import LoadFormat
    from sglang.srt.model_loader import loader
    from sglang.srt.model_loader.utils import set_default_torch_dtype
    from sglang.srt.runtime_context import get_parallel

    from gpupool import _model_loaders

    class PoolModelLoader(loader.DefaultModelLoader):
        def __init__(self, load_config):
            extra = dict(load_config.model_loader_extra_config or {})
            self.timeout = extra.pop("timeout", None)
            super().__init__(dataclasses.replace(load_config, load_format=LoadFormat.AUTO, model_loader_extra_config=extra))

        def _make_model(self, model_config, target):
            quant_config = loader._get_quantization_config(model_config, self.load_config)
            with set_default_torch_dtype(model_config.dtype):
                with target:
                    model = loader._initialize_model(model_config, self.load_config, quant_config)
                self.postprocess_weights(model, target)
            return model

        def load_model(self, *, model_config, device_config):
            def from_disk():
                return loader.DefaultModelLoader.load_model(self, model_config=model_config, device_config=device_config), True

            def take(found):
                model = self._make_model(model_config, torch.device(device_config.device))
                _model_loaders.put(model, found)
                lacking = _model_loaders.missing(model, found)
                if lacking:
                    raise ValueError(f"the name {found.name!r} has no tensors for {lacking[:3]} and others of the model: unpublish it")
                loader.PreshardedModelLoader._rebind_parameter_aliases(model)
                return model.eval()

            def identity():
                return _model_loaders.checkpoint(model_config.model_path, getattr(model_config.hf_config, "_commit_hash", None))

            if getattr(model_config, "modelopt_quant", None) or getattr(model_config, "is_draft_model", False) or identity() is None:
                return from_disk()[0]
            name = _model_loaders.name_of("sglang", _key(model_config, get_parallel()))
            return _model_loaders.share(name, identity, from_disk, take, self.timeout, has_attributes=True)

    return PoolModelLoader
