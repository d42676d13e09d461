"""Arguments that TRL's trainers refuse together, told in the cell and not by the run.

Only what depends on the arguments alone; a trainer class given as an object decides for itself.

Any: configs of arguments.
"""

from collections.abc import Callable, Iterator
from typing import Any

from rapidfire_jupyter.choices import short
from rapidfire_jupyter.config import RFModelConfig, RunConfig
from rapidfire_jupyter.errors import ConfigError

_SORTING = ("aot", "aot_unpaired")
# DPO's losses for which TRL has other divergences than the reverse KL.
_DIVERGING = ("discopop", "exo_pair", "hinge", "ipo", "robust", "sft", "sigmoid", "sigmoid_norm")


def check_together(config: RunConfig) -> None:
    """Refuse arguments of a run that its trainer would refuse.

    Raises:
        ConfigError: With the rule, the value and the fix.
    """
    kind, model = config.trainer, config.model
    checks = _CHECKS.get(kind.rows or "", ()) if kind.cls is None else ()
    for found in checks:
        text = next(found(model.training_args, model), "")
        if text:
            raise ConfigError(text)


def _sft(args: Any, model: RFModelConfig) -> Iterator[str]:
    packs = args.packing and args.packing_strategy in ("bfd", "bfd_split")
    if args.padding_free and not args.packing and args.max_length is not None:
        yield (
            f"padding_free=True cuts no row, got max_length={args.max_length}; set "
            "max_length=None, or packing=True"
        )
    if (args.padding_free or packs) and model.data_collator is not None:
        asked = "padding_free=True" if args.padding_free else "packing=True"
        yield f"{asked} has its own data_collator, got another; drop one"
    if args.loss_type == "dft" and "compute_loss_func" in (model.trainer_kwargs or {}):
        yield "loss_type='dft' and compute_loss_func are two losses; drop one"
    checkpointing = args.gradient_checkpointing_kwargs or {}
    if checkpointing.get("selective"):
        asked = "gradient_checkpointing_kwargs={'selective': True}"
        if not args.gradient_checkpointing:
            yield f"{asked} needs gradient_checkpointing=True, got False; set it, or leave it out"
        if checkpointing.get("use_reentrant"):
            yield f"{asked} needs 'use_reentrant': False, got True; leave 'use_reentrant' out"


def _dpo(args: Any, model: RFModelConfig) -> Iterator[str]:
    losses = [args.loss_type] if isinstance(args.loss_type, str) else args.loss_type or []
    if "exo_pair" in losses and args.label_smoothing == 0:
        yield (
            f"loss_type='exo_pair' needs label_smoothing > 0, got {args.label_smoothing}; set "
            "label_smoothing=1e-3"
        )
    sorting = next((loss for loss in losses if loss in _SORTING), "")
    if args.use_weighting and sorting:
        yield (
            f"use_weighting=True weighs each pair, got loss_type={sorting!r}, which sorts a "
            "batch; drop one"
        )
    divergence = getattr(args.f_divergence_type, "value", args.f_divergence_type)
    other = next((loss for loss in losses if loss not in _DIVERGING), "")
    if divergence != "reverse_kl" and other:
        yield (
            f"f_divergence_type={divergence!r} is for the losses {', '.join(_DIVERGING)}, "
            f"got loss_type={other!r}; leave f_divergence_type out"
        )


def _kto(args: Any, model: RFModelConfig) -> Iterator[str]:
    if args.loss_type == "apo_zero_unpaired":  # the one without a KL term
        return
    asked = f"loss_type={args.loss_type!r} compares each row of a batch with the next (its KL term)"
    if args.per_device_train_batch_size < 2:
        yield (
            f"{asked}: per_device_train_batch_size must be >= 2, got "
            f"{args.per_device_train_batch_size}; set 2, or loss_type='apo_zero_unpaired'"
        )
    if (order := args.train_sampling_strategy) != "sequential":
        yield (
            f"{asked}: train_sampling_strategy must be 'sequential', got {order!r}; leave it out, "
            "or set loss_type='apo_zero_unpaired'"
        )


def _reference(args: Any, model: RFModelConfig) -> Iterator[str]:
    if not args.sync_ref_model:
        return
    if model.peft_config is not None:
        yield (
            "sync_ref_model=True moves a reference model of its own, got "
            f"peft_config={short(model.peft_config)}, whose reference is its base; leave "
            "sync_ref_model out, or train all weights (peft_config=None)"
        )
    if getattr(args, "precompute_ref_log_probs", False):
        yield (
            "sync_ref_model=True moves the reference that precompute_ref_log_probs=True asks once; "
            "drop one"
        )
    if hasattr(args, "num_generations") and args.beta == 0:
        yield (
            f"sync_ref_model=True needs a reference, got beta={args.beta}, which uses none; set "
            "beta=0.04, or leave sync_ref_model out"
        )


_CHECKS: dict[str, tuple[Callable[[Any, RFModelConfig], Iterator[str]], ...]] = {
    "SFT": (_sft,),
    "DPO": (_dpo, _reference),
    "KTO": (_kto, _reference),
    "GRPO": (_reference,),
    "RLOO": (_reference,),
}
