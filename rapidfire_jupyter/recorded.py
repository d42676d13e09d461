"""Arguments for PEFT's and TRL's classes: exactly those given, checked, never changed.

`RFLoraConfig`, `RFSFTConfig` and their like are for one class each, `RFConfig` for any other. Any
value may be a choice. PEFT's and TRL's objects are only made by `build`.
"""

import copy
import dataclasses
import functools
import importlib
import inspect
import types
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn, TypeVar

from rapidfire_jupyter.arguments import (
    GONE,
    ONLY_THERE,
    OURS,
    RENAMED,
    SECRETS,
    Argument,
    alternatives,
    arguments,
    check,
    closest,
)
from rapidfire_jupyter.choices import Linked, List, Range, own, short
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
        return arguments(cls.target_class())

    @classmethod
    def target_class(cls) -> Any:  # Any: a class of PEFT or TRL
        """The class of PEFT or TRL whose arguments these are; imports it."""
        module, name = cls.target
        return getattr(importlib.import_module(module), name)

    @property
    def given(self) -> Mapping[str, Any]:  # Any: hyperparameter values
        """The arguments given, in their order; a copy."""
        return types.MappingProxyType(own(self._given))

    def copy(self: _R, **changes: object) -> _R:
        """The same config with some arguments changed."""
        return type(self)(**{**self._given, **_checked(type(self), changes)})

    def build(self, **extra: object) -> Any:  # Any: an object of the target class
        """Make the real PEFT or TRL object; `extra` replaces arguments.

        The strategy "chunk" is the engine's own and becomes "no", and arguments of ours are left
        out. A TRL config resets accelerate's process-wide state when it is made, so the engine
        makes them in the run's thread.
        """
        if has_choices(self):
            raise ConfigError(f"{short(self)} still has choices; expand it with RFGridSearch")
        given = copy.deepcopy({**self._given, **extra})
        for name in ("eval_strategy", "save_strategy"):
            if given.get(name) == "chunk":
                given[name] = "no"
        cls = self.target_class()
        theirs = {key: one for key, one in given.items() if key not in OURS.get(cls.__name__, {})}
        return cls(**theirs)

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
    """Arguments of `trl.SFTConfig`, and three of ours; each may be a List or Range.

    `rdrop_alpha` > 0 trains with R-Drop: two passes per step under different dropout, and their
    divergence times alpha on top of the loss. It doubles a step's time and its activations.

    `max_tokens_per_batch` computes a batch in parts of rows of like length, each of at most so many
    tokens with its padding: the same step in less memory, and quicker where lengths differ. Give
    all rows of a step as `per_device_train_batch_size` then. It may be generous: where memory does
    not suffice, the run begins with as many as fit, but never with fewer than
    `min_tokens_per_batch`.
    """

    target = ("trl", "SFTConfig")


class RFDPOConfig(Recorded):
    """Arguments of `trl.DPOConfig`, and budgets of tokens; each may be a List or Range.

    They are as in `RFSFTConfig`; a pair stays together and counts as two rows.
    """

    target = ("trl", "DPOConfig")


class RFGRPOConfig(Recorded):
    """Arguments of `trl.GRPOConfig`, and budgets of tokens; each may be a List or Range.

    They are as in `RFSFTConfig`, for what is learned from: a row is a prompt and its completion.
    What is sampled at a time stays as it is.
    """

    target = ("trl", "GRPOConfig")


class RFRLOOConfig(Recorded):
    """Arguments of `trl.RLOOConfig`, and budgets of tokens as in `RFGRPOConfig`.

    Each may be a List or Range.
    """

    target = ("trl", "RLOOConfig")


class RFKTOConfig(Recorded):
    """Arguments of `trl.KTOConfig`, and budgets of tokens as in `RFSFTConfig`.

    Each may be a List or Range.
    """

    target = ("trl", "KTOConfig")


class RFRewardConfig(Recorded):
    """Arguments of `trl.RewardConfig`, and budgets of tokens; each may be a List or Range.

    They are as in `RFSFTConfig`; a pair stays together and counts as two rows.
    """

    target = ("trl", "RewardConfig")


class RFDistillationConfig(Recorded):
    """Arguments of `trl.DistillationConfig`; each may be a List or Range."""

    target = ("trl", "DistillationConfig")


class RFConfig(Recorded):
    """Arguments of any other config class of TRL or PEFT; each may be a List or Range.

    Such as `RFConfig(ORPOConfig, beta=List([0.1, 0.2]))` or `RFConfig(VeraConfig, r=64)`. Each
    target class has a subclass of its own, so that configs of two classes are never equal.
    """

    def __new__(cls, config_class: Any = None, /, **given: object) -> Any:  # Any: see below
        """Take the class whose arguments follow. Any: a config class of TRL or PEFT.

        For a class that has a wrapper by name, such as SFTConfig, that wrapper is given.
        """
        if cls is RFConfig:
            if not (isinstance(config_class, type) and dataclasses.is_dataclass(config_class)):
                raise ConfigError(
                    "RFConfig takes a config class and its arguments, got "
                    f"{short(config_class)}; write RFConfig(ORPOConfig, beta=0.1)"
                )
            wrapper = wrapper_of(config_class)
            if not issubclass(wrapper, cls):  # Python initialises instances of the class asked for
                return wrapper(**given)
            return super().__new__(wrapper)
        return super().__new__(cls)

    def __init__(self, config_class: Any = None, /, **given: object) -> None:
        super().__init__(**given)

    def __reduce__(self) -> tuple[Any, ...]:  # Any: pickle's own contract
        return _restore_other, (self.target_class(), self._given)


@functools.cache
def wrapper_of(config_class: Any) -> type[Recorded]:  # Any: a config class of TRL or PEFT
    """What keeps arguments for a class: one of ours, else its own subclass of RFConfig."""
    ours = next((c for c in WRAPPERS if c.target_class() is config_class), None)
    return ours or type(
        f"RF{config_class.__name__}",
        (RFConfig,),
        {
            "__doc__": f"Arguments of `{config_class.__module__}.{config_class.__qualname__}`.",
            "target": (config_class.__module__, config_class.__qualname__),
            "target_class": classmethod(lambda cls: config_class),
        },
    )


def _restore_other(config_class: Any, given: dict[str, Any]) -> RFConfig:  # Any: as it was given
    return RFConfig(config_class, **given)


TRAINING_ARGS: dict[str, type[Recorded]] = {
    "SFT": RFSFTConfig,
    "DPO": RFDPOConfig,
    "GRPO": RFGRPOConfig,
    "RLOO": RFRLOOConfig,
    "KTO": RFKTOConfig,
    "Reward": RFRewardConfig,
    "Distillation": RFDistillationConfig,
    "MTL": RFSFTConfig,
}
WRAPPERS: tuple[type[Recorded], ...] = (RFLoraConfig, *dict.fromkeys(TRAINING_ARGS.values()))


def as_recorded(value: Any) -> Any:  # Any: hyperparameter values, real config objects
    """Real TRL config objects as what was given to make them; any other value as it is.

    What was given is what differs from an object that was made with nothing but an output folder.

    Raises:
        ConfigError: The object cannot be made again from that.
    """
    if isinstance(value, List):
        return List([as_recorded(one) for one in value.values])
    if not any(c.__name__ == "TrainingArguments" for c in type(value).__mro__):
        return value
    cls: Any = type(value)
    names = [f.name for f in dataclasses.fields(cls) if f.init and f.name != "output_dir"]
    place = {"output_dir": value.output_dir, "use_cpu": value.use_cpu}
    plain = cls(**place)
    given = {n: getattr(value, n) for n in names if getattr(value, n) != getattr(plain, n)}
    if {"steps_per_generation", "generation_batch_size"} <= set(given):
        del given["generation_batch_size"]  # each is worked out from the other
    again = cls(**place, **given)
    lost = [n for n in names if getattr(value, n) != getattr(again, n)]
    if lost:
        raise ConfigError(
            f"training_args={cls.__name__}(...) cannot be read back ({lost[0]}); write "
            f"RFConfig({cls.__name__}, ...) with the same arguments"
        )
    return wrapper_of(cls)(**given)


def has_choices(value: object) -> bool:
    """Whether a List, Range or Linked is anywhere in a value."""
    if isinstance(value, (List, Range, Linked)):
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


def place_of(name: str, value: object = ...) -> str:
    """Where an argument of PEFT or TRL is written, as Python; "" for what is none."""
    for now in (name, *RENAMED.get(name, ())):
        owners = [c for c in WRAPPERS if now in c.arguments()]
        if owners:
            field = "peft_config" if owners[0] is RFLoraConfig else "training_args"
            shown = "..." if value is ... or name in SECRETS else short(value)
            other = ", or that of another trainer" if len(owners) > 1 else ""
            return f"{field}={owners[0].__name__}({now}={shown}){other}"
    return ""


def unknown(cls: type[Recorded], name: str, value: object = ...) -> str:
    """One line on an argument that a class does not have: where it went, or what is near."""
    text = f"{cls.__name__} has no argument {name!r}"
    known = cls.arguments()
    for now in RENAMED.get(name, ()):
        if now in known:
            return f"{text}; it is called {now!r} now"
    if name in GONE:
        return f"{text}; {GONE[name]}"
    if cls not in WRAPPERS and not issubclass(cls, RFConfig) and (place := place_of(name, value)):
        return f"{text}; write {place}"
    for now in (name, *RENAMED.get(name, ())):
        others = [c for c in Recorded.__subclasses__() if c is not RFConfig]
        owners = [c.__name__ for c in others if now in c.arguments()]
        if owners:
            why = f": {ONLY_THERE[now]}" if now in ONLY_THERE else ""
            return f"{text}; {now!r} is an argument of {', '.join(owners)}{why}"
    return text + (closest(name, known) or f"; see help({'.'.join(cls.target)})")
