"""What a run trains: hyperparameters as the user gave them, checked in the cell that gives them.

`RFLoraConfig`, `RFSFTConfig`, `RFDPOConfig` and `RFGRPOConfig` keep the arguments for PEFT's and
TRL's classes, `RFModelConfig` puts them together with a model, and any value may be a `List` or a
`Range` of choices. `RunConfig` is one config without choices; the functions below it write it down,
compare it and change it. Choices are expanded in `search`. PEFT and TRL are imported when the first
argument is checked, and their objects are only made by `build`.
"""

import copy
import dataclasses
import difflib
import enum
import functools
import hashlib
import importlib
import inspect
import json
import math
import numbers
import os
import re
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn, TypeVar

from rapidfire_jupyter.errors import ConfigError

# ------------------------------------------------------------------------------------------ choices


@dataclass(frozen=True, init=False)
class List:
    """Values to compare: a search makes at least one run of each."""

    values: tuple[object, ...]

    def __init__(self, values: Iterable[object]) -> None:
        if isinstance(values, (str, bytes, Mapping, set, frozenset)) or not isinstance(
            values, Iterable
        ):
            raise ConfigError(
                f"List needs values in an order, got {_short(values)}; write List([...])"
            )
        owned = tuple(_own(value) for value in values)
        if not owned:
            raise ConfigError("List must hold at least one value, got none; write List([a, b])")
        object.__setattr__(self, "values", owned)

    def __repr__(self) -> str:
        return f"List([{', '.join(map(_short, self.values))}])"


@dataclass(frozen=True)
class Range:
    """Numbers from `start` to `end`, both included.

    Args:
        start: Lower end.
        end: Upper end, greater than `start`.
        dtype: "int" if only whole numbers are wanted; None means "int" if all numbers are ints.
        log: Draw evenly over the logarithm; not together with `step`.
        step: Only start, start + step, ... up to `end`; a grid needs it.
    """

    start: float
    end: float
    dtype: Literal["int", "float"] | None = None
    log: bool = False
    step: float | None = None

    def __post_init__(self) -> None:
        given = [self.start, self.end] + ([] if self.step is None else [self.step])
        for number in given:
            if not _is_number(number) or not math.isfinite(number):
                raise ConfigError(
                    f"Range takes finite numbers, got {number!r}; write Range(1e-5, 1e-3)"
                )
        if not self.start < self.end:
            raise ConfigError(
                f"Range needs start < end, got start={self.start}, end={self.end}; swap them"
            )
        if self.dtype not in (None, "int", "float"):
            raise ConfigError(f"Range dtype must be 'int', 'float' or None, got {self.dtype!r}")
        if self.dtype == "int" and any(number != int(number) for number in given):
            raise ConfigError(
                f"Range of dtype 'int' needs whole numbers, got {given}; use dtype='float'"
            )
        if self.log and self.step is not None:
            raise ConfigError(
                f"Range takes log or step, got log=True and step={self.step}; drop one"
            )
        if self.log and self.start <= 0:
            raise ConfigError(f"Range with log=True needs start > 0, got {self.start}")
        if self.step is not None and self.step <= 0:
            raise ConfigError(f"Range step must be > 0, got {self.step}")
        whole = all(isinstance(number, numbers.Integral) for number in given)
        dtype = self.dtype or ("int" if whole else "float")
        object.__setattr__(self, "dtype", dtype)
        for name in ("start", "end", "step"):
            number = getattr(self, name)
            if number is not None:
                object.__setattr__(self, name, int(number) if dtype == "int" else float(number))


# -------------------------------------------------------------------- what is known about arguments

# What numbers must obey: the rule in words, the rule, and the arguments it is for.
# Any: a rule is asked about ints and floats alike.
_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        ">= 1",
        lambda v: v >= 1,
        "r gradient_accumulation_steps per_device_train_batch_size per_device_eval_batch_size "
        "max_length max_completion_length num_iterations steps_per_generation "
        "generation_batch_size eval_accumulation_steps torch_empty_cache_steps",
    ),
    (
        "> 0",
        lambda v: v > 0,
        "lora_alpha learning_rate num_train_epochs temperature repetition_penalty",
    ),
    (
        ">= 0",
        lambda v: v >= 0,
        "weight_decay max_grad_norm warmup_steps beta adam_epsilon eval_delay label_smoothing "
        "label_smoothing_factor neftune_noise_alpha dataloader_num_workers",
    ),
    (">= 0 and < 1", lambda v: 0 <= v < 1, "lora_dropout adam_beta1 adam_beta2 warmup_ratio"),
    (
        "> 0, and whole from 1 on",
        lambda v: v > 0 and (v < 1 or v == int(v)),
        "logging_steps eval_steps save_steps",
    ),
    (">= 0 and < 2**32", lambda v: 0 <= v < 2**32, "seed data_seed"),
    ("-1 (no limit) or >= 1", lambda v: v == -1 or v >= 1, "max_steps"),
    (">= 2", lambda v: v >= 2, "num_generations"),
    ("> 0 and <= 1", lambda v: 0 < v <= 1, "top_p"),
)
BOUNDS = {name: (text, holds) for text, holds, names in _RULES for name in names.split()}

# Taken over by the engine: any value that asks for something is refused, with the way to get it.
OWNED: dict[str, str] = {
    "output_dir": "run_fit puts checkpoints under the experiment folder; leave it out",
    "resume_from_checkpoint": "run the same cells again and every run goes on; leave it out",
    "auto_find_batch_size": "lower per_device_train_batch_size, raise gradient_accumulation_steps",
    "enable_jit_checkpoint": "every chunk ends with a checkpoint already; leave it out",
    "deepspeed": "runs share one process; leave it out",
    "fsdp": "runs share one process; leave it out",
    "fsdp_config": "runs share one process; leave it out",
    "push_to_hub": "push after training with run.load_model().push_to_hub(...)",
}

# Types accepted beside the declared one, because the library or the engine takes more than it says.
WIDER: dict[str, Any] = {  # Any: type expressions
    "report_to": Any,
    "accelerator_config": Any,
    "eval_strategy": Literal["chunk"],
    "save_strategy": Literal["chunk"],
    "LoraConfig.lora_alpha": float,
    "DPOConfig.loss_type": str | list[str],
    "GRPOConfig.scale_rewards": bool,
}

# Old or everyday names, and the arguments they are called now (the first one the class has).
RENAMED: dict[str, tuple[str, ...]] = {
    "max_seq_length": ("max_length", "max_completion_length"),
    "max_seq_len": ("max_length", "max_completion_length"),
    "max_target_length": ("max_length", "max_completion_length"),
    "max_new_tokens": ("max_completion_length",),
    "evaluation_strategy": ("eval_strategy",),
    "no_cuda": ("use_cpu",),
    "use_liger": ("use_liger_kernel",),
    "use_liger_loss": ("use_liger_kernel",),
    "per_gpu_train_batch_size": ("per_device_train_batch_size",),
    "per_gpu_eval_batch_size": ("per_device_eval_batch_size",),
    "batch_size": ("per_device_train_batch_size",),
    "lr": ("learning_rate",),
    "lr_scheduler": ("lr_scheduler_type",),
    "epochs": ("num_train_epochs",),
    "num_epochs": ("num_train_epochs",),
    "push_to_hub_model_id": ("hub_model_id",),
    "push_to_hub_token": ("hub_token",),
    "vllm_max_model_len": ("vllm_max_model_length",),
    "vllm_guided_decoding_regex": ("vllm_structured_outputs_regex",),
    "rank": ("r",),
    "lora_r": ("r",),
    "lora_rank": ("r",),
    "alpha": ("lora_alpha",),
    "dropout": ("lora_dropout",),
    "lora_target_modules": ("target_modules",),
    "tokenizer_name": ("tokenizer",),
    "processing_class": ("tokenizer",),
    "args": ("training_args",),
    "model": ("model_name",),
    "ref_model": ("ref_model_name",),
}

# Names that are gone, and what does the same today.
GONE: dict[str, str] = {
    "max_prompt_length": "TRL no longer cuts prompts; max_length (DPO: prompt and answer together) "
    "does, or drop long prompts from the data set",
    "tokenizer": "give RFModelConfig(tokenizer=...); TRL calls it processing_class",
    "processing_class": "give RFModelConfig(tokenizer=...)",
    "group_by_length": 'use train_sampling_strategy="group_by_length"',
    "adafactor": 'use optim="adafactor"',
    "rpo_alpha": 'use loss_type=["sigmoid", "sft"] with loss_weights=[1.0, alpha]',
    "logging_dir": "leave it out; metrics are kept in the experiment folder",
    "overwrite_output_dir": "leave it out; run_fit keeps checkpoints in the experiment folder",
    "save_safetensors": "leave it out; checkpoints are always safetensors",
    "use_mps_device": "leave it out; MPS is used where there is one",
    "fp16_backend": "leave it out; bf16 and fp16 are enough",
    "half_precision_backend": "leave it out; bf16 and fp16 are enough",
    "include_inputs_for_metrics": 'use include_for_metrics=["inputs"]',
    "split_batches": 'use accelerator_config={"split_batches": True}',
    "dispatch_batches": 'use accelerator_config={"dispatch_batches": True}',
    "num_gpus": "leave it out; runs take turns on one device",
    "train_dataset": "give it to run_fit",
    "eval_dataset": "give it to run_fit",
}

SECRETS = frozenset({"hub_token", "token", "use_auth_token", "api_key"})  # never written or shown


@dataclass(frozen=True)
class Argument:
    """One argument of a wrapped class. `choices` are the texts it takes, if it names them."""

    hint: Any  # Any: a type expression
    default: object = None
    choices: tuple[str, ...] = ()


@functools.cache
def arguments(module: str, name: str) -> dict[str, Argument]:
    """Every argument of a dataclass of PEFT or TRL, by name. Imports the module."""
    cls = getattr(importlib.import_module(module), name)
    hints = typing.get_type_hints(cls)
    found = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        wider = WIDER.get(field.name, WIDER.get(f"{name}.{field.name}"))
        hint = hints[field.name] if wider is None else hints[field.name] | wider
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found[field.name] = Argument(hint, default, tuple(field.metadata.get("choices") or ()))
    return found


def closest(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'a' or 'b'?"` for the names most like a word, or an empty text."""
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


# ---------------------------------------------------------------------------- checking one argument


def _check(owner: str, name: str, argument: Argument, value: object) -> None:
    """Refuse one value (no choices left in it at the top) that an argument cannot take."""
    if not _accepts(argument.hint, value) or (
        isinstance(value, str) and argument.choices and value not in argument.choices
    ):
        rule = _describe(argument)
        fix = _fix(name, argument, value)
        raise ConfigError(
            f"{owner}: {name} must be {rule}, got {_short(value)} ({type(value).__name__}); {fix}"
        )
    if any(not math.isfinite(number) for number in _numbers(value)):
        raise ConfigError(
            f"{owner}: {name} must be finite, got {_short(value)}; give a real number"
        )
    if name in BOUNDS and _is_number(value) and not BOUNDS[name][1](value):
        hint = "" if argument.default is None else f"; the default is {argument.default!r}"
        raise ConfigError(f"{owner}: {name} must be {BOUNDS[name][0]}, got {_short(value)}{hint}")
    if name in OWNED and value:
        raise ConfigError(f"{owner}: {name} cannot be set, got {_short(value)}; {OWNED[name]}")


def _accepts(hint: Any, value: object) -> bool:  # Any: a type expression
    """Whether a value fits a declared type; True where the type cannot be decided here."""
    if isinstance(value, (List, Range)):
        return all(_accepts(hint, one) for one in _alternatives(value))
    arms = _arms(hint)
    if len(arms) > 1:
        return any(_accepts(arm, value) for arm in arms)
    hint, origin = arms[0], typing.get_origin(arms[0])
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin is Literal:
        return any(
            type(value) is type(text) and (value == text or _fits_pattern(value, text))
            for text in typing.get_args(hint)
        )
    if hint is float or hint is int:
        return _is_number(value) and (hint is float or isinstance(value, int))
    kind = origin or hint
    if kind is Callable:
        return callable(value)
    if not isinstance(kind, type) or kind is object:
        return True
    if issubclass(kind, enum.Enum):
        return isinstance(value, kind) or value in [member.value for member in kind]
    if issubclass(kind, (list, tuple, set)):
        items = typing.get_args(hint)[:1] if kind is not tuple else ()
        return isinstance(value, (list, tuple, set, frozenset)) and all(
            _accepts(item, one) for item in items for one in value
        )
    return isinstance(value, kind)


def _arms(hint: Any) -> tuple[Any, ...]:  # Any: type expressions
    """Members of a union. Beside an enum, str only stands for the enum's own texts."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return (hint,)
    arms = typing.get_args(hint)
    if any(isinstance(arm, type) and issubclass(arm, enum.Enum) for arm in arms):
        arms = tuple(arm for arm in arms if arm is not str)
    return arms


def _fits_pattern(value: object, text: object) -> bool:
    """PEFT writes 'pissa_niter_[number of iters]' for pissa_niter_4 and the like."""
    if not (isinstance(value, str) and isinstance(text, str) and text.endswith("]")):
        return False
    prefix = text.split("[")[0]
    return value.startswith(prefix) and value[len(prefix) :].isdigit()


_NAMES = {int: "an int", float: "a number", bool: "True or False", str: "a text", dict: "a dict"}


def _describe(argument: Argument) -> str:
    texts = _texts(argument)
    words = [f"one of {', '.join(map(repr, texts))}"] if texts else []
    for arm in _arms(argument.hint):
        kind = typing.get_origin(arm) or arm
        if kind is Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
            continue
        if kind is str and argument.choices:
            continue
        if kind is type(None):
            words.append("None")
        elif kind is Callable:
            words.append("a function")
        else:
            words.append(_NAMES.get(kind, getattr(kind, "__name__", str(kind))))
    return " or ".join(dict.fromkeys(words))


def _texts(argument: Argument) -> list[str]:
    """The texts that an argument is limited to, if it is."""
    texts = list(argument.choices)
    for arm in _arms(argument.hint):
        if typing.get_origin(arm) is Literal:
            texts += [text for text in typing.get_args(arm) if isinstance(text, str)]
        elif isinstance(arm, type) and issubclass(arm, enum.Enum):
            texts += [str(member.value) for member in arm]
    return texts


def _fix(name: str, argument: Argument, value: object) -> str:
    wrappers = [arm.__name__ for arm in _arms(argument.hint) if hasattr(arm, "target")]
    if wrappers:
        twin = f"RF{type(value).__name__}"
        return f"write {name}={twin if twin in wrappers else wrappers[0]}(...)"
    if isinstance(value, (list, tuple)):
        return f"to compare several values write {name}=List([...])"
    if isinstance(value, str):
        plain = _from_text(argument.hint, value)
        if plain is not value:
            return f"write {name}={plain!r} without quotes"
        near = closest(value, _texts(argument))
        if near:
            return near.removeprefix("; ")
    if argument.default is not None:
        return f"write for example {name}={argument.default!r}"
    return "leave it out" if _accepts(argument.hint, None) else f"give {name}=..."


def _from_text(hint: Any, text: str) -> object:  # Any: a type expression
    """The number or truth value that a text stands for where `hint` takes one; else the text."""
    words = {"true": True, "false": False, "none": None}
    word = text.strip().lower()
    if word in words and _accepts(hint, words[word]):
        return words[word]
    for parse in (int, float):
        try:
            number = parse(text)
        except ValueError:
            continue
        if _accepts(hint, number):
            return number
    return text


def _alternatives(value: object) -> Iterator[object]:
    """Every value a choice can take; the two ends for a Range."""
    if isinstance(value, List):
        for one in value.values:
            yield from _alternatives(one)
    elif isinstance(value, Range):
        yield from (value.start, value.end)
    else:
        yield value


def _numbers(value: object) -> Iterator[float]:
    """Every float in a value, inside containers too."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _numbers(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _numbers(one)
    elif isinstance(value, List):
        yield from _numbers(value.values)


def _is_number(value: object) -> bool:
    """Whether a value is a real number; True and False are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _own(value: Any) -> Any:  # Any: whatever a user gives
    """A value with containers of its own and plain numbers; other objects stay what they are."""
    if isinstance(value, dict):
        return {key: _own(one) for key, one in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_own(one) for one in value)
    return _plain(value)


def _plain(value: Any) -> Any:  # Any: whatever a user gives
    """NumPy's numbers as Python's, a path as text, anything else as it is."""
    if isinstance(value, numbers.Real) and not isinstance(value, (bool, enum.Enum)):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _short(value: object) -> str:
    """A value as one line of an error message."""
    text = re.sub(r"\s+", " ", repr(value))
    return text if len(text) <= 80 else f"{text[:77]}..."


# --------------------------------------------------------------------------------- recorded configs


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
        return types.MappingProxyType(_own(self._given))

    def copy(self: _R, **changes: object) -> _R:
        """The same config with some arguments changed."""
        return type(self)(**{**self._given, **_checked(type(self), changes)})

    def build(self, **extra: object) -> Any:  # Any: an object of the target class
        """Make the real PEFT or TRL object; `extra` replaces arguments.

        The strategy "chunk" is the engine's own and becomes "no". A TRL config resets accelerate's
        process-wide state when it is made, so the engine makes them in the run's thread.
        """
        if has_choices(self):
            raise ConfigError(f"{_short(self)} still has choices; expand it with RFGridSearch")
        given = copy.deepcopy({**self._given, **extra})
        for name in ("eval_strategy", "save_strategy"):
            if given.get(name) == "chunk":
                given[name] = "no"
        module, name = self.target
        return getattr(importlib.import_module(module), name)(**given)

    def __getattr__(self, name: str) -> Any:  # Any: hyperparameter values
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._given:
            return _own(self._given[name])
        if name in self.arguments():
            return _own(self.arguments()[name].default)
        raise AttributeError(f"{type(self).__name__} has no argument {name!r}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise ConfigError(f"{type(self).__name__} never changes; use .copy({name}={_short(value)})")

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
    """Arguments of `trl.SFTConfig`; each may be a List or Range."""

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


def _restore(cls: type[Recorded], given: dict[str, Any]) -> Recorded:
    return cls(**given)


def _checked(cls: type[Recorded], given: Mapping[str, object]) -> dict[str, Any]:
    """Arguments under their present names, each value checked. Warns if a name was translated."""
    known = cls.arguments()
    if "warmup_ratio" in given and "warmup_steps" in given:
        raise ConfigError(
            f"{cls.__name__}: warmup_ratio and warmup_steps are one argument now, got both; "
            "give warmup_steps only"
        )
    checked = {}
    for name, value in given.items():
        value = _own(value)
        if name == "warmup_ratio" and "warmup_steps" in known:
            for one in _alternatives(value):
                _check(cls.__name__, name, Argument(float, 0.0), one)
            warnings.warn(
                f"{cls.__name__}: warmup_ratio={value!r} is recorded as warmup_steps={value!r}; "
                "a number below 1 is a share of all steps",
                stacklevel=_callers_level(),
            )
            name = "warmup_steps"
        if name not in known:
            raise ConfigError(_unknown(cls, name))
        for one in _alternatives(value):
            _check(cls.__name__, name, known[name], one)
        checked[name] = value
    return checked


_PACKAGE = f"{__name__.partition('.')[0]}."


def _callers_level() -> int:
    """The stacklevel with which a warning points at the user's line, however deep we are."""
    level, frame = 1, inspect.currentframe()
    while frame and (frame := frame.f_back) and frame.f_globals["__name__"].startswith(_PACKAGE):
        level += 1
    return level


def _unknown(cls: type[Recorded], name: str) -> str:
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


# ------------------------------------------------------------------------------------ model configs

_FUNCTION = Callable[..., Any] | None  # Any: user functions of every shape

MODEL_ARGUMENTS: dict[str, Argument] = {
    "model_name": Argument(str),
    "tokenizer": Argument(Any),
    "tokenizer_kwargs": Argument(dict | None),
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
                raise ConfigError(_unknown(RFModelConfig, word))
        given = {
            "model_name": model_name,
            "tokenizer": tokenizer,
            "tokenizer_kwargs": tokenizer_kwargs,
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
        for one in _alternatives(peft_config):
            if not (one is None or isinstance(one, RFLoraConfig) or is_peft_config(one)):
                raise ConfigError(
                    "RFModelConfig: peft_config must be RFLoraConfig, a peft.PeftConfig or None, "
                    f"got {_short(one)}; write peft_config=RFLoraConfig(...), several in a List"
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
            raise ConfigError(f"{_short(model)} still has choices; expand it with RFGridSearch")
        kind = check_trainer_type(model, trainer_type)
        if model.training_args is None:
            model = model.copy(training_args=TRAINING_ARGS[kind]())
        sources = {"environment_factory", "rollout_func"} & set(model.trainer_kwargs or {})
        if kind == "GRPO" and model.reward_funcs is None and not sources:
            raise ConfigError(
                "GRPO needs a reward, got reward_funcs=None; give RFModelConfig(reward_funcs=[...])"
            )
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
    for args in _alternatives(model.training_args):
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


# --------------------------------------------------------------------------------- one run's config


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


def modify(config: RunConfig, changes: Mapping[str, object]) -> RunConfig:
    """A new config with some values changed and all others, callables too, as they were.

    Args:
        config: Stays as it is.
        changes: By dotted name ("training_args.learning_rate"), by short name where only one field
            has it ("learning_rate"), or whole ("peft_config"). Numbers may be texts ("3e-4").

    Raises:
        ConfigError: A name is unknown or ambiguous, or a value does not fit.
    """
    paths: dict[tuple[str, ...], object] = {}
    for key, value in changes.items():
        path = _path(config, key)
        if path in paths:
            raise ConfigError(f"{'.'.join(path)} is changed twice in {list(changes)}; give it once")
        if has_choices(value):
            raise ConfigError(
                f"{key} of one run takes one value, got {_short(value)}; make a clone each"
            )
        paths[path] = value
    kind = paths.pop(("trainer_type",), config.trainer_type)
    fields = dict(config.model.given)
    for path in sorted(paths, key=len):  # whole fields first, so that parts change the new ones
        name, value = path[0], paths[path]
        if len(path) == 2:
            value = _with_inner(name, fields.get(name), path[1], value)
        elif isinstance(value, str) and not _accepts(MODEL_ARGUMENTS[name].hint, value):
            value = _from_text(MODEL_ARGUMENTS[name].hint, value)
        fields[name] = value
    return RFModelConfig(**fields).build(trainer_type=kind)


def _path(config: RunConfig, key: str) -> tuple[str, ...]:
    """The field that a name in `changes` means, and the argument inside it."""
    if key == "trainer_type" or key in MODEL_ARGUMENTS:
        return (key,)
    name, dot, inner = key.partition(".")
    if dot and name in MODEL_ARGUMENTS:
        return (name, inner)
    insides = {name: _inner_names(config.model, name) for name in MODEL_ARGUMENTS}
    owners = [name for name, names in insides.items() if key in names]
    if len(owners) == 1:
        return (owners[0], key)
    if owners:
        choices = " or ".join(f"{owner}.{key}" for owner in owners)
        raise ConfigError(f"{key!r} is ambiguous; write {choices}")
    if key in RENAMED or key in GONE or any(key in cls.arguments() for cls in WRAPPERS):
        args = config.model.training_args
        raise ConfigError(_unknown(type(args) if args is not None else RFModelConfig, key))
    known = [
        *MODEL_ARGUMENTS,
        *(f"{name}.{one}" if dot else one for name in insides for one in insides[name]),
    ]
    raise ConfigError(
        f"a config has no field {key!r}" + (closest(key, known) or "; see flatten(config)")
    )


def _inner_names(model: RFModelConfig, name: str) -> list[str]:
    value = getattr(model, name)
    if isinstance(value, Recorded):
        extra = ["warmup_ratio"] if "warmup_steps" in value.arguments() else []
        return [*value.arguments(), *extra]
    return [key for key in value if isinstance(key, str)] if isinstance(value, Mapping) else []


def _with_inner(name: str, current: object, inner: str, value: object) -> object:
    """The value of a field with one of its arguments or keys changed."""
    if isinstance(current, Recorded):
        argument = current.arguments().get(
            inner, Argument(float if inner == "warmup_ratio" else Any)
        )
        if isinstance(value, str) and not _accepts(argument.hint, value):
            value = _from_text(argument.hint, value)
        return current.copy(**{inner: value})
    if current is None and (name.endswith("_kwargs") or name == "generation_config"):
        current = {}
    if isinstance(current, Mapping):
        old = current.get(inner)
        if isinstance(value, str) and isinstance(old, (bool, int, float)):
            kind, words = (bool, "True or False") if isinstance(old, bool) else (float, "a number")
            value = _from_text(kind, value)
            if isinstance(value, str):
                raise ConfigError(f"{name}.{inner} is {old!r}, got {value!r}; give {words}")
        return {**current, inner: value}
    raise ConfigError(
        f"{name} is {_short(current)} and has no part {inner!r}; change {name} as a whole"
    )


# ------------------------------------------------------------------------------ writing values down

_MARKS = frozenset({"callable", "object", "config", "pairs", "secret"})
_FUNCTIONS = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    type,
    functools.partial,
)


def encode(value: object) -> Any:  # Any: what JSON holds
    """A value as JSON holds it, the same for equal values.

    Functions become their name and a digest of what they do, other objects their type and content:
    enough to see that one changed, not to make it again. Secrets become a digest.

    Raises:
        ConfigError: A number is NaN or infinite.
    """
    return _encode(value, _Walk(), (), True)


def same_key(config: RunConfig) -> tuple[str, tuple[int, ...]]:
    """Equal for two configs that train the same; valid while both configs are alive.

    Objects that show only a summary of themselves (a model, a tensor) count as the same only if
    they are one object.
    """
    walk = _Walk()
    text = json.dumps(_encode(flatten(config), walk, (), True), sort_keys=True)
    return text, tuple(map(id, walk.opaque))


def decode(value: Any, key: str = "value") -> Any:  # Any: what JSON holds
    """The value that `encode` wrote down; tuples and sets come back as lists.

    Raises:
        ConfigError: It was a function or an object, which must be given again.
    """
    if isinstance(value, list):
        return [decode(one, key) for one in value]
    if isinstance(value, str) and re.fullmatch(r"torch\.[a-z]+\d+(_\w+)?", value):
        return getattr(importlib.import_module("torch"), value.removeprefix("torch."))
    if not isinstance(value, dict):
        return value
    if "config" in value:
        classes = {cls.__name__: cls for cls in (*WRAPPERS, RFModelConfig)}
        return classes[value["config"]](**decode(value["given"], key))
    if "pairs" in value:
        return {decode(k, key): decode(v, key) for k, v in value["pairs"]}
    lost = _MARKS & set(value)
    if lost:
        what = value.get("callable") or value.get("object") or "a secret"
        raise ConfigError(f"{key} was {what}, which cannot be stored; give it again")
    return {name: decode(one, f"{key}.{name}") for name, one in value.items()}


@dataclass(frozen=True)
class _Walk:
    """Objects met while one value is encoded.

    Attributes:
        seen: Every object by its id, with its number; a second meeting is written as that number.
        opaque: Those of which only a summary could be written.
    """

    seen: dict[int, tuple[int, object]] = dataclasses.field(default_factory=dict)
    opaque: list[object] = dataclasses.field(default_factory=list)


def _encode(value: Any, walk: _Walk, above: tuple[int, ...], strict: bool) -> Any:
    """`strict` refuses NaN; it is off inside functions and objects, whose state is their own."""
    value = _plain(value.value if isinstance(value, enum.Enum) else value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if strict and not math.isfinite(value):
            raise ConfigError(f"a config holds finite numbers, got {value}; give a real number")
        return value if math.isfinite(value) else str(value)
    if id(value) in above:
        return {"object": "itself"}

    def inner(part: object, strict: bool = strict) -> Any:  # Any: what JSON holds
        return _encode(part, walk, (*above, id(value)), strict)

    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, Recorded):
        return {"config": type(value).__name__, "given": inner(dict(value.given))}
    if isinstance(value, Mapping):
        return _encode_mapping(value, inner)
    if isinstance(value, (list, tuple)):
        return [inner(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted((inner(one) for one in value), key=json.dumps)
    if kind == "torch.dtype":
        return str(value)
    if isinstance(value, _FUNCTIONS):
        parts = _behaviour(value, functools.partial(inner, strict=False))
        name = getattr(value, "__qualname__", None)
        return {
            "callable": f"{value.__module__}.{name}" if name else kind,
            "source": _digest(parts),
        }
    if id(value) in walk.seen:
        return {"object": kind, "number": walk.seen[id(value)][0]}
    walk.seen[id(value)] = (len(walk.seen), value)
    return {"object": kind, **_content(value, walk, functools.partial(inner, strict=False))}


def _encode_mapping(value: Mapping[Any, Any], inner: Callable[[object], Any]) -> dict[str, Any]:
    if any(not isinstance(key, str) or key in _MARKS for key in value):
        return {"pairs": [[inner(key), inner(one)] for key, one in value.items()]}
    return {
        key: {"secret": _digest(one)} if isinstance(one, str) and _is_secret(key) else inner(one)
        for key, one in value.items()
    }


def _is_secret(name: str) -> bool:
    return name.rpartition(".")[2] in SECRETS


def _behaviour(function: Any, inner: Callable[[object], Any]) -> list[Any]:
    """What a callable does, in parts that JSON holds: its source, defaults and closure."""
    if isinstance(function, functools.partial):
        return [inner(function.func), inner(function.args), inner(function.keywords)]
    if isinstance(function, types.MethodType):
        return [inner(function.__func__), inner(function.__self__)]
    if not isinstance(function, types.FunctionType):
        return [_source(function) if isinstance(function, type) else ""]
    # Several lambdas may stand in one line of source, so a lambda is told by its bytecode.
    text = "" if function.__name__ == "<lambda>" else _source(function.__code__)
    parts = [
        text or _bytecode(function.__code__),
        inner(function.__defaults__),
        inner(function.__kwdefaults__),
    ]
    for cell in function.__closure__ or ():
        try:
            parts.append(inner(cell.cell_contents))
        except ValueError:  # a cell that is not filled yet
            parts.append("empty")
    return parts


def _source(thing: Any) -> str:  # Any: a class or a code object
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""


def _bytecode(code: types.CodeType) -> list[Any]:
    constants = [
        _bytecode(one)
        if isinstance(one, types.CodeType)
        else sorted(map(repr, one))
        if isinstance(one, frozenset)
        else repr(one)
        for one in code.co_consts
    ]
    return [code.co_code.hex(), constants, list(code.co_names), list(code.co_varnames)]


def _content(value: Any, walk: _Walk, inner: Callable[[object], Any]) -> dict[str, Any]:
    """What tells an object from others of its type: its fields, or the text it shows of itself."""
    hugging_face = type(value).__module__.split(".")[0] in ("peft", "transformers", "trl")
    if hugging_face and callable(getattr(value, "to_dict", None)):
        return {"fields": inner(value.to_dict())}
    # What an object with __call__ does is in its class.
    source = {"source": _digest(_source(type(value)))} if callable(value) else {}
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {"fields": inner({name: getattr(value, name) for name in names}), **source}
    shows: object = type(value).__repr__
    if shows is object.__repr__ and hasattr(value, "__dict__"):
        return {"fields": inner(vars(value)), **source}
    walk.opaque.append(value)
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    return {"repr": text if len(text) <= 200 else f"{text[:100]}... {_digest(text)}"}


def _digest(parts: Any) -> str:  # Any: what JSON holds
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
