"""Log-probabilities of a frozen reference, computed once for all runs that meet the same batch.

DPO and KTO ask the reference at each step. Runs that share base and data meet the same batches, so
the first to come computes and the others take what it found: the same numbers, since it is the same
computation. The batch itself is the key, so nothing has to be known of orders or batch sizes.

Any: TRL trainers and their batches.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.training.frozen import base_is_reference
from rapidfire_jupyter.training.models import Base, private_names

MOST_BYTES = 256 << 20  # of what is kept: a number for each token of a batch


class References:
    """What references said, by what decides it and by batch. Used by one thread at a time."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], Any] = {}
        self._size_bytes = 0
        self.reused = 0

    def serve(self, trainer: Any, config: RunConfig, base: Base, peft_config: Any) -> None:
        """Let a trainer take what others computed, where its reference is the shared base.

        TRL asks the reference by a forward of the frozen model, or of the model whose adapter is
        switched off meanwhile. That forward is wrapped; every other one goes through as it is.
        """
        if not _may_share(config, base, peft_config):
            return
        asked = trainer.model if trainer.ref_model is None else trainer.ref_model
        layer = None if trainer.ref_model is not None else _adapter_layer(asked)
        if layer is None and trainer.ref_model is None:
            return
        original, args, device = asked.forward, trainer.args, trainer.args.device.type
        fixed = (
            base.name,
            str(config.model.ref_model_name),
            str(config.model.ref_model_kwargs),
            args.disable_dropout,
            args.torch_compile,
            args.use_liger_kernel,
        )

        def forward(*given: Any, **inputs: Any) -> Any:
            reference = layer is None or layer.disable_adapters
            if given or torch.is_grad_enabled() or not reference or "fused_lm_head" not in inputs:
                return original(*given, **inputs)
            precision = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
            key = (*fixed, asked.training, str(precision), _digest(inputs))
            if key in self._kept:
                self.reused += 1
                return self._kept[key]
            before = _streams()
            output = original(**inputs)
            if all(map(torch.equal, before, _streams())):  # else dropout made it this run's own
                self._keep(key, type(output)(log_probs=output.log_probs))
            return output

        asked.forward = forward

    def clear(self) -> None:
        """Let go of all of them."""
        self._kept.clear()
        self._size_bytes = 0

    def _keep(self, key: tuple[Any, ...], output: Any) -> None:
        self._kept[key] = output
        self._size_bytes += output.log_probs.nbytes
        while self._size_bytes > MOST_BYTES:
            oldest = self._kept.pop(next(iter(self._kept)))
            self._size_bytes -= oldest.log_probs.nbytes


def _adapter_layer(model: Any) -> Any:
    """A layer that says whether the adapter is switched off; None for prompts and the like."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return next((m for m in model.modules() if isinstance(m, BaseTunerLayer)), None)


def _streams() -> list[torch.Tensor]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *cuda]


def _may_share(config: RunConfig, base: Base, peft_config: Any) -> bool:
    args = config.model.training_args
    if config.trainer.cls is not None or config.trainer.name not in ("DPO", "KTO"):
        return False
    if getattr(args, "sync_ref_model", False) or "ref_model" in (config.model.trainer_kwargs or {}):
        return False
    if hasattr(base.model, "peft_config"):
        return False  # the reference is the adapter that the model came with
    if config.model.ref_model_name is not None:
        return True
    if getattr(args, "neftune_noise_alpha", None) and peft_config is not None:
        return False  # the noise reaches the reference, which is the same model
    if peft_config is None:
        return base_is_reference(config)
    return not private_names(base, peft_config)  # else the base under the adapter is the run's own


def _digest(inputs: Mapping[str, Any]) -> bytes:
    """What a model is called with, tensors and flags alike."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(inputs):
        value = inputs[name]
        if torch.is_tensor(value):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        else:
            digest.update(f"{name} {value!r}".encode())
    return digest.digest()
