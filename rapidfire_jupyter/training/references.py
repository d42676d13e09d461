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

MOST = 100_000  # batches kept; each is a few numbers per row
_ASIDE = ("ref_chosen_logps", "ref_rejected_logps", "ref_logps", "ref_KL_logps", "label")


class References:
    """What references said, by what decides it and by batch. Used by one thread at a time."""

    def __init__(self) -> None:
        self.kept: dict[tuple[Any, ...], Any] = {}
        self.reused = 0

    def serve(self, trainer: Any, config: RunConfig, base: Base, peft_config: Any) -> None:
        """Let a trainer take what others computed, where its reference is the shared base."""
        if not _may_share(config, base, peft_config):
            return
        original, args = trainer.compute_ref_log_probs, trainer.args
        fixed = (
            config.trainer.name,
            base.name,
            config.model.ref_model_name,
            repr(config.model.ref_model_kwargs),
            *(getattr(args, name, None) for name in ("disable_dropout", "ld_alpha", "loss_type")),
            *(args.torch_compile, args.use_liger_kernel, trainer.accelerator.mixed_precision),
        )
        fixed = tuple(map(str, fixed))

        def compute_ref_log_probs(model: Any, inputs: Mapping[str, Any]) -> Any:
            key = (*fixed, model.training, _digest(inputs))
            found = self.kept.get(key)
            if found is not None:
                self.reused += 1
                return found
            before = torch.get_rng_state()
            result = original(model, inputs)
            if torch.equal(before, torch.get_rng_state()):  # else dropout made it this run's own
                self.kept[key] = result
                if len(self.kept) > MOST:
                    self.kept.pop(next(iter(self.kept)))
            return result

        trainer.compute_ref_log_probs = compute_ref_log_probs

    def clear(self) -> None:
        """Let go of all of them."""
        self.kept.clear()


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
    if peft_config is None:
        return base_is_reference(config)
    return not private_names(base, peft_config)  # else the base under the adapter is the run's own


def _digest(inputs: Mapping[str, Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(inputs):
        value = inputs[name]
        if name in _ASIDE or not torch.is_tensor(value):
            continue
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.digest()
