"""What a run trains: hyperparameters as the user gave them, checked in the cell that gives them.

`RFLoraConfig`, `RFSFTConfig`, `RFDPOConfig` and `RFGRPOConfig` keep the arguments for PEFT's and
TRL's classes, `RFModelConfig` puts them together with a model, and any value may be a choice.
`RunConfig` is one config without choices. PEFT's and TRL's objects are only made by `build`.
"""

import copy
import difflib
import importlib
import inspect
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, TypeVar

from rapidfire_jupyter.arguments import (
    GONE,
    OURS,
    RENAMED,
    SECRETS,
    Argument,
    alternatives,
    arguments,
    check,
    closest,
)
from rapidfire_jupyter.choices import List, Range, own, short
from rapidfire_jupyter.errors import ConfigError

_R = TypeVar("_R", bound="Recorded")


class Recorded:
    """Arguments for one class of PEFT or TRL: exactly those given, checked, and never changed.

    Reading an attribute gives the value given, or the class's own default.
    """

    target: ClassVar[tuple[str, str]]
    _given: dict[str, Any]  # Any: hyperparameter values

    def __init__(self, **given: object) -> None:
        object.__setattr__(self, "_given", _checked(type(self), given))

    @classmethod
    def arguments(cls) -> Mapping[str, Argument]:
        """Every argument this config takes."""
        return arguments(*cls.target)

    @property
    def given(self) -> Mapping[str, Any]:  # Any: hyperparameter values
        """The arguments given, in their order; a copy."""
        return types.MappingProxyType(own(self._given))

    def copy(self: _R, **changes: object) -> _R:
        """The same config with some arguments changed."""
        return type(self)(**{**self._given, **_checked(type(self), changes)})

    def build(self, **extra: object) -> Any:  # Any: an object of the target class
        """Make the real PEFT or TRL object; `extra` replaces arguments.

        The strategy "chunk" is the engine's own and becomes "no", and rdrop_alpha is left out: it
        is an argument of a trainer. A TRL config resets accelerate's
        process-wide state when it is made, so the engine makes them in the run's thread.
        """
        if has_choices(self):
            raise ConfigError(f"{short(self)} still has choices; expand it with RFGridSearch")
        given = copy.deepcopy({**self._given, **extra})
        for name in ("eval_strategy", "save_strategy"):
            if given.get(name) == "chunk":
                given[name] = "no"
        module, name = self.target
        theirs = {key: value for key, value in given.items() if key not in OURS.get(name, {})}
        return getattr(importlib.import_module(module), name)(**theirs)

    def __getattr__(self, name: str) -> Any:  # Any: hyperparameter values
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._given:
            return own(self._given[name])
        if name in self.arguments():
            return own(self.arguments()[name].default)
        raise AttributeError(f"{type(self).__name__} has no argument {name!r}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ConfigError(f"{type(self).__name__} never changes; use .copy({name}={short(value)})")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._given == other._given

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in _masked(self._given).items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def __reduce__(self) -> tuple[Any, ...]:  # Any: pickle's own contract
        return _restore, (type(self), self._given)


class RFLoraConfig(Recorded):
    """Arguments of `peft.LoraConfig`; each may be a List or Range."""

    target = ("peft", "LoraConfig")


class RFSFTConfig(Recorded):
    """Arguments of `trl.SFTConfig`, and `rdrop_alpha`; each may be a List or Range.

    `rdrop_alpha` > 0 trains with R-Drop: two passes per step under different dropout, and their
    divergence times alpha on top of the loss. It doubles a step's time and its activations.
    """

    target = ("trl", "SFTConfig")


class RFDPOConfig(Recorded):
    """Arguments of `trl.DPOConfig`; each may be a List or Range."""

    target = ("trl", "DPOConfig")


class RFGRPOConfig(Recorded):
    """Arguments of `trl.GRPOConfig`; each may be a List or Range."""

    target = ("trl", "GRPOConfig")


WRAPPERS = (RFLoraConfig, RFSFTConfig, RFDPOConfig, RFGRPOConfig)
TRAINING_ARGS = {"SFT": RFSFTConfig, "DPO": RFDPOConfig, "GRPO": RFGRPOConfig}


def has_choices(value: object) -> bool:
    """Whether a List or Range is anywhere in a value."""
    if isinstance(value, (List, Range)):
        return True
    if isinstance(value, Recorded):
        return has_choices(value.given)
    if isinstance(value, Mapping):
        return any(map(has_choices, value.values()))
    return isinstance(value, (list, tuple)) and any(map(has_choices, value))


def _masked(value: Any) -> Any:  # Any: hyperparameter values
    """A value whose secrets are replaced by stars."""
    if isinstance(value, dict):
        return {k: "***" if k in SECRETS and one else _masked(one) for k, one in value.items()}
    return value


def _restore(cls: type[Recorded], given: dict[str, Any]) -> Recorded:  # Any: as it was given
    return cls(**given)


def _checked(cls: type[Recorded], given: Mapping[str, object]) -> dict[str, Any]:
    """Arguments under their present names, each value checked. Warns if a name was translated.

    Any: hyperparameter values.
    """
    known = cls.arguments()
    if "warmup_ratio" in given and "warmup_steps" in given:
        raise ConfigError(
            f"{cls.__name__}: warmup_ratio and warmup_steps are one argument now, got both; "
            "give warmup_steps only"
        )
    checked = {}
    for name, value in given.items():
        value = own(value)
        if name == "warmup_ratio" and "warmup_steps" in known:
            for one in alternatives(value):
                check(cls.__name__, name, Argument(float, 0.0), one)
            warnings.warn(
                f"{cls.__name__}: warmup_ratio={value!r} is recorded as warmup_steps={value!r}; "
                "a number below 1 is a share of all steps",
                stacklevel=_callers_level(),
            )
            name = "warmup_steps"
        if name not in known:
            raise ConfigError(unknown(cls, name))
        for one in alternatives(value):
            check(cls.__name__, name, known[name], one)
        checked[name] = value
    return checked


_PACKAGE = f"{__name__.partition('.')[0]}."


def _callers_level() -> int:
    """The stacklevel with which a warning points at the user's line, however deep we are."""
    level, frame = 1, inspect.currentframe()
    while frame and (frame := frame.f_back) and frame.f_globals["__name__"].startswith(_PACKAGE):
        level += 1
    return level


def unknown(cls: type[Recorded], name: str) -> str:
    """One line on an argument that a class does not have: where it went, or what is near."""
    text = f"{cls.__name__} has no argument {name!r}"
    known = cls.arguments()
    for now in RENAMED.get(name, ()):
        if now in known:
            return f"{text}; it is called {now!r} now"
    if name in GONE:
        return f"{text}; {GONE[name]}"
    for now in (name, *RENAMED.get(name, ())):
        owners = [c.__name__ for c in (*WRAPPERS, RFModelConfig) if now in c.arguments()]
        if owners:
            return f"{text}; {now!r} is an argument of {', '.join(owners)}"
    return text + (closest(name, known) or f"; see help({'.'.join(cls.target)})")


_FUNCTION = Callable[..., Any] | None  # Any: user functions of every shape

MODEL_ARGUMENTS: dict[str, Argument] = {
    "model_name": Argument(str),
    "tokenizer": Argument(Any),
    "tokenizer_kwargs": Argument(dict | None),
    "chat_template": Argument(str | None),
    "formatting_func": Argument(_FUNCTION),
    "compute_metrics": Argument(_FUNCTION),
    "peft_config": Argument(Any),
    "training_args": Argument(RFSFTConfig | RFDPOConfig | RFGRPOConfig | None),
    "model_type": Argument(str, "causal_lm"),
    "model_kwargs": Argument(dict | None),
    "ref_model_name": Argument(str | None),
    "ref_model_type": Argument(str | None),
    "ref_model_kwargs": Argument(dict | None),
    "reward_funcs": Argument(Any),
    "generation_config": Argument(Any),
    "callbacks": Argument(Any),
    "data_collator": Argument(_FUNCTION),
    "seed": Argument(int | None),
    "name": Argument(str | None),
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
        training_args: RFSFTConfig, RFDPOConfig or RFGRPOConfig; None takes TRL's defaults.
        seed: Of this config's runs; `List([1, 2, 3])` makes replicates. None takes run_fit's.
        name: Shown beside the run's id.
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
        generation_config: object = None,
        callbacks: object = None,
        data_collator: object = None,
        seed: object = None,
        name: object = None,
        trainer_kwargs: Mapping[str, object] | None = None,
        **more_trainer_kwargs: object,
    ) -> None:
        for word in {**(trainer_kwargs or {}), **more_trainer_kwargs}:
            near = difflib.get_close_matches(word, MODEL_ARGUMENTS, n=1, cutoff=0.85)
            elsewhere = any(word in c.arguments() for c in WRAPPERS)
            if near or elsewhere or word in RENAMED or word in GONE:
                raise ConfigError(unknown(RFModelConfig, word))
        given = {
            "model_name": model_name,
            "tokenizer": tokenizer,
            "tokenizer_kwargs": tokenizer_kwargs,
            "chat_template": chat_template,
            "formatting_func": formatting_func,
            "compute_metrics": compute_metrics,
            "peft_config": peft_config,
            "training_args": training_args,
            "model_type": None
            if isinstance(model_type, str) and model_type == "causal_lm"
            else model_type,
            "model_kwargs": model_kwargs,
            "ref_model_name": ref_model_name,
            "ref_model_type": ref_model_type,
            "ref_model_kwargs": ref_model_kwargs,
            "reward_funcs": reward_funcs,
            "generation_config": generation_config,
            "callbacks": callbacks,
            "data_collator": data_collator,
            "seed": seed,
            "name": name,
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
            trainer_type: "SFT", "DPO" or "GRPO"; None takes the one that training_args is for.
            extra: As for `copy`.
        """
        model = self.copy(**extra)
        if has_choices(model):
            raise ConfigError(f"{short(model)} still has choices; expand it with RFGridSearch")
        kind = check_trainer_type(model, trainer_type)
        if model.training_args is None:
            model = model.copy(training_args=TRAINING_ARGS[kind]())
        sources = {"environment_factory", "rollout_func"} & set(model.trainer_kwargs or {})
        if kind == "GRPO" and model.reward_funcs is None and not sources:
            raise ConfigError(
                "GRPO needs a reward, got reward_funcs=None; give RFModelConfig(reward_funcs=[...])"
            )
        if kind == "SFT":
            _check_rdrop(model)
        return RunConfig(kind, model)


def is_peft_config(value: object) -> bool:
    """Whether a value is a `peft.PeftConfig`, found without importing peft."""
    return any(
        c.__name__ == "PeftConfig" and c.__module__.startswith("peft.") for c in type(value).__mro__
    )


def known_trainer_type(value: object) -> str:
    """A trainer type as we write it: upper case."""
    kind = value.upper() if isinstance(value, str) else value
    if kind not in TRAINING_ARGS:
        raise ConfigError(
            f"trainer_type must be one of {', '.join(TRAINING_ARGS)}, got {value!r}"
            + (closest(str(kind), TRAINING_ARGS))
        )
    return str(kind)


def check_trainer_type(model: RFModelConfig, trainer_type: object) -> str:
    """The trainer type of a config, for which all its training_args must be."""
    kind = None if trainer_type is None else known_trainer_type(trainer_type)
    names: dict[type, str] = {cls: name for name, cls in TRAINING_ARGS.items()}
    for args in alternatives(model.training_args):
        if args is None:
            continue
        kind = kind or names[type(args)]
        if type(args) is not TRAINING_ARGS[kind]:
            raise ConfigError(
                f"trainer_type={kind!r} takes {TRAINING_ARGS[kind].__name__}, got training_args="
                f"{type(args).__name__}(...); use trainer_type={names[type(args)]!r}, or "
                f"{TRAINING_ARGS[kind].__name__}(...)"
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


@dataclass(frozen=True)
class RunConfig:
    """What one run trains: a model config without choices, and the trainer it is for."""

    trainer_type: str
    model: RFModelConfig


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
