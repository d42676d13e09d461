"""What is known of PEFT's methods: which rewrite the base, and what TRL's trainers leave out.

Any: PEFT configs, which share no type.
"""

import importlib.util
from typing import Any

import torch

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.errors import ConfigError

# LoRA initialisations that write into the weights they target (PEFT's own names).
_REWRITING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")

# Initialisations that need a pass over data first, and PEFT's function that makes it.
_OF_DATA = {
    "eva": "initialize_lora_eva_weights",
    "corda": "preprocess_corda",
    "lora_ga": "preprocess_loraga",
}

_PROMPTS = ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING")
_NEEDS_TASKS = "it needs task_ids with each batch, which TRL's trainers do not give"
_NOT_BY_TRL = {
    "CPT": "its loss needs logits, which TRL's trainers do not make; use PromptTuningConfig",
    "ADAPTION_PROMPT": "TRL's loss does not reach through it; use PrefixTuningConfig",
    "MULTITASK_PROMPT_TUNING": f"{_NEEDS_TASKS}; use PromptTuningConfig",
    "POLY": f"{_NEEDS_TASKS}; use RFLoraConfig",
}


def rewrites_base(peft_config: Any) -> bool:
    """Whether making the adapter writes into the weights that it targets."""
    return (
        _init_of(peft_config).startswith(_REWRITING_INITS)
        or getattr(peft_config, "kasa_config", None) is not None
    )


def follows_weights(peft_config: Any) -> bool:
    """Whether an adapter begins with values that its rank and the weights it targets decide.

    Other ranks or modules would begin elsewhere. MiCA's do not rewrite the base, but stay as they
    are.
    """
    return rewrites_base(peft_config) or _init_of(peft_config) == "mica"


def loads_alone(peft_config: Any) -> bool:
    """Whether a saved adapter can be loaded by PEFT as it is.

    PiSSA by a randomised SVD takes from the base what its draws say, and PEFT draws anew.
    """
    return not _init_of(peft_config).startswith("pissa_niter")


def refuse_untrainable(config: RunConfig, peft_config: Any, loaded_by_name: bool) -> None:
    """Refuse an adapter that would fail in its first step, or would not be what was asked for.

    Args:
        loaded_by_name: There is no create_model_fn that could have prepared the base.

    Raises:
        ConfigError: Says why, and what to use.
    """
    kind = _kind_of(peft_config)
    if config.trainer.cls is None and kind in _NOT_BY_TRL:
        raise ConfigError(f"peft_config={type(peft_config).__name__}: {_NOT_BY_TRL[kind]}")
    if config.trainer.name == "Distillation" and kind in _PROMPTS:
        raise ConfigError(
            f"peft_config={type(peft_config).__name__}: TRL's distillation asks the model below "
            "the adapter, where prompts are not; use RFLoraConfig"
        )
    init = _init_of(peft_config)
    if init == "eva":
        raise ConfigError(
            "init_lora_weights='eva' needs data, which TRL does not give it: it would train plain "
            "LoRA; in create_model_fn call get_peft_model and initialize_lora_eva_weights, return "
            "that model, and leave peft_config out"
        )
    if init == "loftq":
        _check_loftq()
    if init in _OF_DATA and loaded_by_name:
        raise ConfigError(
            f"init_lora_weights={init!r} needs a pass over data first; call {_OF_DATA[init]} in a "
            "create_model_fn, or use init_lora_weights='pissa', which needs none"
        )


def _check_loftq() -> None:
    instead = "use init_lora_weights='pissa', which needs none"
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            "init_lora_weights='loftq' needs a package that is not installed: pip install "
            f"bitsandbytes (extra qlora), and a CUDA or XPU GPU; or {instead}"
        )
    if not (torch.cuda.is_available() or torch.xpu.is_available()):
        raise ConfigError(
            "init_lora_weights='loftq': PEFT quantises the weights on a CUDA or XPU GPU, found "
            f"none; {instead}"
        )


def refuse_on_base(config: RunConfig, peft_config: Any, model: Any) -> None:
    """Refuse an adapter that fails on this base.

    Raises:
        ConfigError: TRL's loss would read a tied head that PEFT wraps for the sake of trained
            tokens, and fail.
    """
    tokens = getattr(peft_config, "trainable_token_indices", None) or (
        _kind_of(peft_config) == "TRAINABLE_TOKENS"
    )
    head = model.get_output_embeddings() if tokens and config.trainer.rows != "Reward" else None
    if head is not None and config.trainer.cls is None:
        embeddings = model.get_input_embeddings()
        if head.weight is embeddings.weight:
            name = next(n for n, m in model.named_modules() if m is embeddings).rpartition(".")[2]
            raise ConfigError(
                "trained tokens (trainable_token_indices) need a base whose head and embeddings "
                f"are not tied, for TRL's loss; use target_modules=[..., {name!r}], or "
                f"modules_to_save=[{name!r}] with ensure_weight_tying=True"
            )


def notes(config: RunConfig, peft_config: Any) -> tuple[str, ...]:
    """What to tell of an adapter before it trains."""
    if _kind_of(peft_config) == "ADALORA" and not _allocates_ranks(config):
        return (
            f"AdaLoRA: TRL never calls update_and_allocate, so all ranks stay "
            f"{peft_config.init_r}; give a callback that calls "
            "model.base_model.update_and_allocate(state.global_step + 1) in on_optimizer_step",
        )
    return ()


def keeps_importances(config: RunConfig, peft_config: Any) -> bool:
    """Whether AdaLoRA gathers how important each rank is, which no checkpoint holds."""
    return _kind_of(peft_config) == "ADALORA" and _allocates_ranks(config)


def _allocates_ranks(config: RunConfig) -> bool:
    """Whether a callback of the user's acts where AdaLoRA's ranks are to be allocated."""
    from transformers import TrainerCallback

    plain = TrainerCallback.on_optimizer_step
    given = (c if isinstance(c, type) else type(c) for c in config.model.callbacks or [])
    return any(getattr(cls, "on_optimizer_step", plain) is not plain for cls in given)


def _kind_of(peft_config: Any) -> str:
    kind = getattr(peft_config, "peft_type", None)
    return str(getattr(kind, "value", kind))


def _init_of(peft_config: Any) -> str:
    init = getattr(peft_config, "init_lora_weights", None)
    return init.lower() if isinstance(init, str) else ""
