"""Frozen models beside those that train: teachers, references, reward models; each loaded once.

Any: models, and the keyword arguments of trainers, which share no type.
"""

import copy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.rewards import reward_list
from rapidfire_jupyter.training import rewards
from rapidfire_jupyter.training.models import Base, default_create_model
from rapidfire_jupyter.training.prepared import Same

_LOADING = ("GRPOTrainer", "RLOOTrainer")  # their modules load references by name


class FrozenModels:
    """The frozen models of an experiment. Called in run threads, one at a time."""

    def __init__(self, on_load: Callable[[str, Any], None] = lambda name, model: None) -> None:
        """`on_load(name, model)` is called with each model that was loaded, on the device."""
        self._kept: dict[tuple[Any, ...], Any] = {}
        self._on_load = on_load

    def get(self, key: tuple[Any, ...], load: Callable[[], Any]) -> Any:
        """A module tree of its own over the weights of the model of that key."""
        if key not in self._kept:
            self._kept[key] = _frozen(load())
            self._on_load(f"frozen-{len(self._kept)}", self._kept[key])
        return sharing(self._kept[key])

    def clear(self) -> None:
        """Let go of all of them."""
        self._kept.clear()


def sharing(model: Any) -> Any:
    """A copy of a frozen model's module tree, in evaluation mode, over the same tensors."""
    memo: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, memo).eval()


def frozen_keywords(
    config: RunConfig, args: Any, base: Base, takes: Iterable[str], frozen: FrozenModels
) -> dict[str, Any]:
    """What a trainer is given of frozen models and reward functions.

    Args:
        args: The run's TRL config object; what it says of loading a teacher is done here.
        takes: The names of the trainer's arguments.
    """
    given = config.model.trainer_kwargs or {}
    keywords: dict[str, Any] = {}
    if "teacher_model" in takes and given.get("teacher_model") is not None:
        keywords["teacher_model"] = _teacher(config, args, given["teacher_model"], frozen)
    if "ref_model" in takes:
        reference = _reference(config, args, base, given.get("ref_model"), frozen)
        if reference is not None:
            keywords["ref_model"] = reference
    if "reward_funcs" in takes and config.model.reward_funcs is not None:
        timeout = config.model.reward_timeout
        keywords["reward_funcs"] = [
            _reward_model(one, args, frozen)
            if isinstance(one, str | nn.Module)
            else rewards.checked(one, timeout)
            for one in reward_list(config.model)
        ]
    return keywords


@contextmanager
def references_loaded_once(
    config: RunConfig, args: Any, base: Base, frozen: FrozenModels
) -> Iterator[None]:
    """While a trainer is built: GRPO and RLOO get the reference they would load from `frozen`.

    With beta > 0 and all weights trained, they load the model's name anew, each run its own copy.
    The reference lies on the base's storage where that was loaded by the same name in the same way.
    """
    loader = "create_model_from_path"
    sources = (sys.modules[c.__module__] for c in _ancestors(config) if c.__name__ in _LOADING)
    modules = [module for module in sources if hasattr(module, loader)]
    _check_named(config, args, base, bool(modules))
    apart = any(getattr(args, n, False) for n in ("sync_ref_model", "cast_lm_head_to_fp32"))
    if config.model.peft_config is not None or not modules or apart:  # apart: it is written into
        yield
        return
    module, thread = modules[0], threading.get_ident()
    original = getattr(module, loader)

    def load(model_id: str, *given: Any, **options: Any) -> Any:
        if threading.get_ident() != thread:  # a user's own trainer, in a cell
            return original(model_id, *given, **options)
        if _loaded_by_name(config, base, model_id):
            return sharing(base.model)
        key = ("ref", model_id, repr(encode(options)))
        return frozen.get(key, lambda: original(model_id, *given, **options))

    setattr(module, loader, load)
    try:
        yield
    finally:
        setattr(module, loader, original)


def _check_named(config: RunConfig, args: Any, base: Base, loads: bool) -> None:
    """Refuse a model without a name where its trainer loads the reference by that.

    Raises:
        ConfigError: Says what works.
    """
    adapted = config.model.peft_config is not None or hasattr(base.model, "peft_config")
    named = getattr(base.model.config, "_name_or_path", "")
    beta: Any = getattr(args, "beta", None)
    if loads and beta and not adapted and not named:
        raise ConfigError(
            f"beta={beta} needs a reference, which TRL's {config.trainer.name} loads by the "
            "model's name where all weights are trained, and this model has none: save_pretrained "
            "it to a folder and load that, or use beta=0.0, or an adapter"
        )


def _ancestors(config: RunConfig) -> tuple[Any, ...]:
    import trl

    kind = config.trainer
    named = kind.cls is None and kind.name in ("GRPO", "RLOO")
    cls = getattr(trl, f"{kind.name}Trainer") if named else kind.cls
    return () if cls is None else cls.__mro__


def _loaded_by_name(config: RunConfig, base: Base, model_id: str) -> bool:
    """Whether the base is what loading `model_id` in the base's dtype would give."""
    how = set(config.model.model_kwargs or {})
    return (
        base.create_model is default_create_model
        and config.model.model_name == model_id
        and not model_id.endswith(".gguf")
        and how <= {"dtype", "torch_dtype", "attn_implementation", "trust_remote_code"}
    )


def base_is_reference(config: RunConfig) -> bool:
    """Whether a run that trains all weights takes its base as the reference."""
    model = config.model
    return (
        model.peft_config is None
        and model.ref_model_name is None
        and config.trainer.rows in ("DPO", "KTO")
        and not getattr(model.training_args, "precompute_ref_log_probs", False)
    )


def _teacher(config: RunConfig, args: Any, teacher: Any, frozen: FrozenModels) -> Any:
    """The teacher, loaded as its trainer would; a name that another trainer takes stays a name."""
    if isinstance(teacher, nn.Module):
        return frozen.get(("object", Same(teacher)), lambda: teacher)
    if config.trainer.name not in ("Distillation", "GKD"):
        return teacher
    options = dict(args.teacher_model_init_kwargs or {})
    dtype = options.get("dtype")
    if "dtype" in options or config.trainer.name == "Distillation":
        options["dtype"] = dtype if dtype in ("auto", None) else getattr(torch, dtype)
    revision = getattr(args, "teacher_model_revision", None)
    if revision is not None:
        options.setdefault("revision", revision)
    options.setdefault("trust_remote_code", args.trust_remote_code)
    args.teacher_model_init_kwargs = None  # TRL refuses them for a model that is loaded

    def load() -> Any:
        if config.trainer.name == "GKD":
            from transformers import AutoModelForCausalLM

            return AutoModelForCausalLM.from_pretrained(teacher, **options)
        from trl.trainer.utils import create_model_from_path

        return create_model_from_path(teacher, **options)

    return frozen.get(("teacher", config.trainer.name, teacher, repr(encode(options))), load)


def _reference(config: RunConfig, args: Any, base: Base, given: Any, frozen: FrozenModels) -> Any:
    if given is not None:
        return frozen.get(("object", Same(given)), lambda: given)
    model = config.model
    if model.ref_model_name is not None:
        options = dict(model.ref_model_kwargs or {})

        def load() -> Any:
            from trl.trainer.utils import create_model_from_path

            return create_model_from_path(model.ref_model_name, **options)

        reference = frozen.get(("ref", model.ref_model_name, repr(encode(options))), load)
    elif base_is_reference(config) and not hasattr(base.model, "peft_config"):
        reference = sharing(base.model)
    else:
        return None
    if getattr(args, "sync_ref_model", False):  # it is written into: the weights must be its own
        return copy.deepcopy(reference)
    return reference


def _reward_model(reward: Any, args: Any, frozen: FrozenModels) -> Any:
    if not isinstance(reward, str):
        return frozen.get(("object", Same(reward)), lambda: reward)
    options = {"trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {})}

    def load() -> Any:
        from transformers import AutoModelForSequenceClassification

        return AutoModelForSequenceClassification.from_pretrained(reward, num_labels=1, **options)

    return frozen.get(("reward", reward, repr(encode(options))), load)


def _frozen(model: Any) -> Any:
    """A copy over the same storage with Parameter objects of ours, on the device."""
    own: dict[int, Any] = {
        id(p): p if type(p) is not nn.Parameter else nn.Parameter(p.detach(), requires_grad=False)
        for p in model.parameters()
    }
    made = copy.deepcopy(model, own).eval()
    device = torch.accelerator.current_accelerator()
    return made if device is None else made.to(device)
