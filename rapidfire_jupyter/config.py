"""What a run trains: hyperparameters as the user gave them, checked in the cell that gives them.

`RFModelConfig` puts the arguments for PEFT's and TRL's classes (`recorded.py`) together with a
model, and any value may be a choice. `RunConfig` is one config without choices.
"""

import difflib
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rapidfire_jupyter import mixture as mixtures
from rapidfire_jupyter.arguments import (
    GONE,
    RENAMED,
    Argument,
    alternatives,
    closest,
    optimizer_name,
)
from rapidfire_jupyter.choices import short
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.recorded import (
    TRAINING_ARGS,
    WRAPPERS,
    Recorded,
    RFConfig,
    RFDPOConfig,
    RFLoraConfig,
    RFSFTConfig,
    as_recorded,
    has_choices,
    place_of,
    unknown,
    wrapper_of,
)
from rapidfire_jupyter.rewards import check_rewards
from rapidfire_jupyter.trainer_types import (
    TrainerType,
    config_class_of,
    trainer_beside,
    trainer_type_of,
)

_FUNCTION = Callable[..., Any] | None  # Any: user functions of every shape

MODEL_ARGUMENTS: dict[str, Argument] = {
    "model_name": Argument(str),
    "tokenizer": Argument(Any),
    "tokenizer_kwargs": Argument(dict | None),
    "chat_template": Argument(str | None),
    "formatting_func": Argument(_FUNCTION),
    "compute_metrics": Argument(_FUNCTION),
    "peft_config": Argument(Any),
    "training_args": Argument(
        functools.reduce(operator.or_, (*TRAINING_ARGS.values(), RFConfig, type(None)))
    ),
    "model_type": Argument(str, "causal_lm"),
    "model_kwargs": Argument(dict | None),
    "ref_model_name": Argument(str | None),
    "ref_model_type": Argument(str | None),
    "ref_model_kwargs": Argument(dict | None),
    "reward_funcs": Argument(Any),
    "reward_timeout": Argument(float | None),
    "generation_config": Argument(Any),
    "callbacks": Argument(Any),
    "data_collator": Argument(_FUNCTION),
    "seed": Argument(int | None),
    "name": Argument(str | None),
    "mixture": Argument(dict | None),
    "trainer_kwargs": Argument(dict | None),
}


class RFModelConfig(Recorded):
    """A model, its adapter and its training arguments; every value may be a List or Range.

    Args:
        model_name: Hub id, local folder or GGUF file.
        chat_template: "chatml", or a Jinja template as text, that the runs' tokenizers get in place
            of what they have. None leaves them as they are.
        formatting_func: Gives, for a row, its text or a dict of columns; or for a batch of rows (a
            dict of lists) a list of texts or a dict of lists. It wins over every layout.
        peft_config: RFLoraConfig, any `peft.PeftConfig`, or None to train all weights.
        training_args: RFSFTConfig, RFDPOConfig, ... for the trainer; RFConfig or a real config
            object for a class of another; None takes TRL's defaults.
        reward_funcs: A function, a sequence classifier or its name, or a list of them.
        reward_timeout: Seconds that a reward function may take for a batch; None for any time.
        seed: Of this config's runs; `List([1, 2, 3])` makes replicates. None takes run_fit's.
        name: Shown beside the run's id.
        mixture: Tasks and their weights; set by run_fit where train_dataset is a `mix`.
        trainer_kwargs: Further arguments of the TRL trainer; they may also be given as keywords.
    """

    target = ("rapidfire_jupyter", "RFModelConfig")

    def __init__(
        self,
        model_name: object,
        *,
        tokenizer: object = None,
        tokenizer_kwargs: object = None,
        chat_template: object = None,
        formatting_func: object = None,
        compute_metrics: object = None,
        peft_config: object = None,
        training_args: object = None,
        model_type: object = "causal_lm",
        model_kwargs: object = None,
        ref_model_name: object = None,
        ref_model_type: object = None,
        ref_model_kwargs: object = None,
        reward_funcs: object = None,
        reward_timeout: object = None,
        generation_config: object = None,
        callbacks: object = None,
        data_collator: object = None,
        seed: object = None,
        name: object = None,
        mixture: object = None,
        trainer_kwargs: Mapping[str, object] | None = None,
        **more_trainer_kwargs: object,
    ) -> None:
        for word, value in {**(trainer_kwargs or {}), **more_trainer_kwargs}.items():
            near = difflib.get_close_matches(word, MODEL_ARGUMENTS, n=1, cutoff=0.85)
            elsewhere = any(word in c.arguments() for c in WRAPPERS)
            if near or elsewhere or word in RENAMED or word in GONE:
                raise ConfigError(unknown(RFModelConfig, word, value))
        given = {
            "model_name": model_name,
            "tokenizer": tokenizer,
            "tokenizer_kwargs": tokenizer_kwargs,
            "chat_template": chat_template,
            "formatting_func": formatting_func,
            "compute_metrics": compute_metrics,
            "peft_config": peft_config,
            "training_args": as_recorded(training_args),
            "model_type": None
            if isinstance(model_type, str) and model_type == "causal_lm"
            else model_type,
            "model_kwargs": model_kwargs,
            "ref_model_name": ref_model_name,
            "ref_model_type": ref_model_type,
            "ref_model_kwargs": ref_model_kwargs,
            "reward_funcs": reward_funcs,
            "reward_timeout": reward_timeout,
            "generation_config": generation_config,
            "callbacks": callbacks,
            "data_collator": data_collator,
            "seed": seed,
            "name": name,
            "mixture": mixture,
            "trainer_kwargs": {**(trainer_kwargs or {}), **more_trainer_kwargs} or None,
        }
        super().__init__(**{k: v for k, v in given.items() if v is not None or k == "model_name"})
        for one in alternatives(peft_config):
            if not (one is None or isinstance(one, RFLoraConfig) or is_peft_config(one)):
                raise ConfigError(
                    "RFModelConfig: peft_config must be RFLoraConfig, a peft.PeftConfig or None, "
                    f"got {short(one)}; write peft_config=RFLoraConfig(...), several in a List"
                )

    @classmethod
    def arguments(cls) -> Mapping[str, Argument]:
        """Every argument this config takes by name."""
        return MODEL_ARGUMENTS

    def build(self, trainer_type: object = None, **extra: object) -> "RunConfig":
        """Make the config of one run; `extra` replaces arguments.

        Args:
            trainer_type: "SFT", "DPO", ..., or a trainer class; None takes the one that
                training_args is for.
            extra: As for `copy`.
        """
        model = self.copy(**extra)
        if has_choices(model):
            raise ConfigError(f"{short(model)} still has choices; expand it with RFGridSearch")
        kind = check_trainer_type(model, trainer_type)
        if model.training_args is None:
            model = model.copy(training_args=_default_args(kind))
        trainer = trainer_type_of(kind)
        check_rewards(model, trainer)
        peft = model.peft_config
        if trainer.rows == "Reward" and isinstance(peft, RFLoraConfig) and not peft.task_type:
            # PEFT trains and saves the new head only of what it knows to be a classifier.
            model = model.copy(peft_config=peft.copy(task_type="SEQ_CLS"))
        if isinstance(model.training_args, RFSFTConfig):
            _check_rdrop(model)
        _check_token_budget(model)
        if model.mixture is not None:
            model = model.copy(mixture=mixtures.checked(model.mixture))
        return RunConfig(kind, model)


def refuse_unknown(owner: str, given: Mapping[str, object], known: Sequence[str]) -> None:
    """Refuse arguments that a function or class does not take, with where they belong."""
    for name, value in given.items():
        place = place_of(name, value)
        if name in MODEL_ARGUMENTS:
            place = f"RFModelConfig(..., {name}={short(value)})"
        hint = f"; write {place}" if place else closest(name, known) or f"; {', '.join(known)}"
        raise ConfigError(f"{owner} has no argument {name!r}{hint}")


def is_peft_config(value: object) -> bool:
    """Whether a value is a `peft.PeftConfig` or an RFConfig of one, without importing peft."""
    cls = value.target_class() if isinstance(value, RFConfig) else type(value)
    return any(c.__name__ == "PeftConfig" and c.__module__.startswith("peft.") for c in cls.__mro__)


def known_trainer_type(value: object) -> "str | type":
    """A trainer type as we write it: the name of one that is known by name, else its class."""
    kind = trainer_type_of(value)
    return kind.cls or kind.name


def check_trainer_type(model: RFModelConfig, trainer_type: object) -> "str | type":
    """The trainer type of a config, for which all its training_args must be."""
    kind = None if trainer_type is None else known_trainer_type(trainer_type)
    for args in alternatives(model.training_args):
        if not isinstance(args, Recorded):
            continue
        mine = _trainer_of(args)
        kind = kind or mine
        if kind is None:
            raise ConfigError(
                f"no trainer is known for training_args={type(args).__name__}(...); give "
                "RFGridSearch(..., trainer_type=TheTrainer)"
            )
        wanted = _args_class(kind)
        if wanted is None or type(args) is wanted or _fits(args, wanted):
            continue
        name = trainer_type_of(kind).name
        other = mine if isinstance(mine, str) else getattr(mine, "__name__", "")
        hint = f"use trainer_type={other!r}, or " if other else "give "
        raise ConfigError(
            f"trainer_type={name!r} takes {wanted.__name__}, got training_args="
            f"{type(args).__name__}(...); {hint}{wanted.__name__}(...)"
        )
    return kind or "SFT"


def _check_rdrop(model: RFModelConfig) -> None:
    """Refuse R-Drop where it would compare equal passes, or is another loss than was asked for."""
    args = model.training_args
    if not args.rdrop_alpha:
        return
    asked = f"rdrop_alpha={args.rdrop_alpha}"
    if getattr(model.peft_config, "lora_dropout", None) == 0:
        raise ConfigError(
            f"{asked} compares two passes under dropout, got lora_dropout=0; set lora_dropout=0.1"
        )
    if args.loss_type == "dft" or args.label_smoothing_factor:
        other = "loss_type='dft'" if args.loss_type == "dft" else "label_smoothing_factor"
        raise ConfigError(f"{asked} is on top of TRL's plain loss, got {other} too; drop one")
    if "compute_loss_func" in (model.trainer_kwargs or {}):
        raise ConfigError(f"{asked} and compute_loss_func are two losses; drop one")


# Losses of DPO that are no mean over pairs.
_OF_BATCHES = {
    "sft": "is a mean over tokens",
    "aot": "sorts a batch",
    "aot_unpaired": "sorts a batch",
}
# Arguments of GRPO that look at a whole micro-batch, and their values where they do not.
_OF_MICRO_BATCHES = {
    "top_entropy_quantile": (1.0, "ranks the tokens of a micro-batch"),
    "entropy_coef": (0.0, "is on a mean over the tokens of a micro-batch"),
    "use_adaptive_entropy": (False, "looks at the entropy of whole micro-batches"),
}


def _check_token_budget(model: RFModelConfig) -> None:
    """Refuse a token budget where batches are no padded rows, or parts are not the same loss."""
    args = model.training_args
    most = getattr(args, "max_tokens_per_batch", None)
    least = getattr(args, "min_tokens_per_batch", None)
    without = most is None and "max_tokens_per_batch" in args.given  # one of a List: no budget
    if least is not None and not without and (most is None or least > most):
        raise ConfigError(
            "min_tokens_per_batch must be at most max_tokens_per_batch, which memory may lower to "
            f"it, got {least} and {most}; " + ("give both" if most is None else "swap them")
        )
    if most is None:
        return
    asked = f"max_tokens_per_batch={most}"
    for name in ("packing", "padding_free"):
        if getattr(args, name, False):
            raise ConfigError(
                f"{asked} cuts batches of padded rows, got {name}=True, which leaves no padding; "
                "drop one"
            )
    optim = optimizer_name(args.optim)
    if "lomo" in optim or "layerwise" in optim:
        raise ConfigError(
            f"{asked} adds up gradients of parts, got optim={optim!r}, which keeps none; drop one"
        )
    for name, (plain, why) in _OF_MICRO_BATCHES.items():
        if (value := getattr(args, name, plain)) != plain:
            raise ConfigError(
                f"{asked} needs a loss that is the sum of its parts', got {name}={value}, which "
                f"{why}; drop one"
            )
    if not isinstance(args, RFDPOConfig):
        return
    for loss in [args.loss_type] if isinstance(args.loss_type, str) else args.loss_type or []:
        if loss in _OF_BATCHES:
            raise ConfigError(
                f"{asked} needs a loss that is a mean over pairs, got loss_type={loss!r}, which "
                f"{_OF_BATCHES[loss]}; drop one"
            )


def _trainer_of(args: Recorded) -> "str | type | None":
    """The trainer that training arguments are for: a name, or the class beside their own."""
    for name, wrapper in TRAINING_ARGS.items():
        if type(args) is wrapper:
            return name
    return trainer_beside(args.target_class())


def _args_class(kind: "str | type") -> type[Recorded] | None:
    """The wrapper that a trainer takes; None if its config class is not known."""
    if isinstance(kind, str):
        return TRAINING_ARGS[kind]
    found = config_class_of(trainer_type_of(kind))
    return None if found is None else wrapper_of(found)


def _fits(args: Recorded, wanted: type[Recorded]) -> bool:
    return issubclass(args.target_class(), wanted.target_class())


def _default_args(kind: "str | type") -> Recorded:
    wanted = _args_class(kind)
    if wanted is None:
        raise ConfigError(
            f"no config class is known for {trainer_type_of(kind).name}; give "
            "training_args=RFConfig(TheConfig, ...)"
        )
    return wanted()


@dataclass(frozen=True)
class RunConfig:
    """What one run trains: a model config without choices, and the trainer it is for."""

    trainer_type: "str | type"
    model: RFModelConfig

    @property
    def trainer(self) -> TrainerType:
        """The facts of its trainer."""
        return trainer_type_of(self.trainer_type)


def flatten(config: RunConfig) -> dict[str, object]:
    """Every value that was given, under dotted names such as "training_args.learning_rate"."""
    flat: dict[str, object] = {"trainer_type": config.trainer_type}
    for name, value in config.model.given.items():
        inner = value.given if isinstance(value, Recorded) else value
        if isinstance(inner, Mapping) and inner:
            flat.update({f"{name}.{key}": one for key, one in inner.items()})
        else:
            flat[name] = value
    return flat


def differences(
    before: Mapping[str, object], after: Mapping[str, object]
) -> dict[str, tuple[object, object]]:
    """The names whose values differ in two encoded flat configs; None stands for "not given"."""
    names = [*before, *(name for name in after if name not in before)]
    pairs = {name: (before.get(name), after.get(name)) for name in names}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}
