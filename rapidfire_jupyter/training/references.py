"""What the base says of a batch, computed once for all runs that meet the same one.

DPO and KTO ask the base as their reference at each step; an evaluation before a LoRA run's first
step (`eval_on_start`) asks it too, since an adapter whose B is zero adds nothing. Runs that share
base and data meet the same batches, so the first to come computes and the others take what it
found: the same numbers, since it is the same computation. The batch itself is the key, so nothing
has to be known of orders or batch sizes.

Any: TRL trainers and their batches.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.training import mixed
from rapidfire_jupyter.training.context import rng_state, stream_moved
from rapidfire_jupyter.training.frozen import base_is_reference
from rapidfire_jupyter.training.models import Base, private_names

MOST_BYTES = 256 << 20  # of what is kept: a few numbers for each token of a batch


class References:
    """What bases said, by what decides it and by batch. Used by one thread at a time."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], Any] = {}
        self._size_bytes = 0
        self.reused = 0

    def serve(self, trainer: Any, config: RunConfig, base: Base, peft_config: Any) -> None:
        """Let a trainer take what others computed, where it asks the shared base.

        TRL asks the reference by a forward of the frozen model, or of the model whose adapter is
        switched off meanwhile. SFT asks the base when it evaluates with an adapter that is as it
        began. That forward is wrapped; every other one goes through as it is.
        """
        if config.trainer.name == "SFT":
            self._serve_untrained(trainer, config, base)
            return
        if not _may_share(config, base, peft_config):
            return
        asked = trainer.model if trainer.ref_model is None else trainer.ref_model
        layer = None if trainer.ref_model is not None else _adapter_layer(asked)
        if layer is None and trainer.ref_model is None:
            return
        fixed = (
            base.name,
            str(config.model.ref_model_name),
            str(config.model.ref_model_kwargs),
            trainer.args.disable_dropout,
        )
        self._wrap(
            asked,
            trainer.args,
            fixed,
            ("log_probs",),
            lambda: layer is None or layer.disable_adapters,
        )

    def _serve_untrained(self, trainer: Any, config: RunConfig, base: Base) -> None:
        """Let evaluations of SFT take what others computed, while their LoRA adds nothing."""
        adapter = mixed.adapter(trainer.model, base)
        if config.trainer.cls is not None or adapter is None or trainer.args.torch_compile:
            return
        model, fixed = trainer.model, (base.name, "SFT")
        used = ("log_probs", "entropy", "is_top1", "label_mask", "aux_loss")
        self._wrap(
            model, trainer.args, fixed, used, lambda: not model.training and adapter.adds_nothing()
        )

    def _wrap(
        self,
        asked: Any,
        args: Any,
        fixed: tuple[Any, ...],
        used: tuple[str, ...],
        is_base: Callable[[], bool],
    ) -> None:
        """Put a forward that remembers before a model's own.

        Args:
            fixed: What decides the answers besides the batch.
            used: Fields of the answers that TRL reads.
            is_base: Whether a forward would be the base's now.
        """
        original, device = asked.forward, args.device.type
        fixed = (*fixed, args.torch_compile, args.use_liger_kernel)

        def forward(*given: Any, **inputs: Any) -> Any:
            unlike = given or torch.is_grad_enabled() or "fused_lm_head" not in inputs
            if unlike or not is_base():
                return original(*given, **inputs)
            precision = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
            key = (*fixed, asked.training, str(precision), _digest(inputs))
            if key in self._kept:
                self.reused += 1
                return self._kept[key]
            before = rng_state()
            output = original(**inputs)
            if not stream_moved(before):  # else dropout made it this run's own
                self._keep(
                    key, type(output)(**{name: output[name] for name in used if name in output})
                )
            return output

        asked.forward = forward

    def clear(self) -> None:
        """Let go of all of them."""
        self._kept.clear()
        self._size_bytes = 0

    def _keep(self, key: tuple[Any, ...], output: Any) -> None:
        self._kept[key] = output
        self._size_bytes += _size_bytes(output)
        while self._size_bytes > MOST_BYTES:
            self._size_bytes -= _size_bytes(self._kept.pop(next(iter(self._kept))))


def _size_bytes(output: Any) -> int:
    return sum(int(value.nbytes) for value in output.values())


def _adapter_layer(model: Any) -> Any:
    """A layer that says whether the adapter is switched off; None for prompts and the like."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return next((m for m in model.modules() if isinstance(m, BaseTunerLayer)), None)


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
