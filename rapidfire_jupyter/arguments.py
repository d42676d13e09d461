"""What is known about the arguments of PEFT's and TRL's classes, and the check of one value.

The tables say what moved, what is impossible and what the engine owns; types, defaults and texts
are read from the installed classes when the first argument is checked.
"""

import dataclasses
import difflib
import enum
import functools
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rapidfire_jupyter.choices import Linked, List, Range, is_number, short
from rapidfire_jupyter.errors import ConfigError

# What numbers must obey: the rule in words, the rule, and the arguments it is for.
# Any: a rule is asked about ints and floats alike.
_RULES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        ">= 1",
        lambda v: v >= 1,
        "r gradient_accumulation_steps per_device_train_batch_size per_device_eval_batch_size "
        "max_length max_completion_length num_iterations steps_per_generation "
        "generation_batch_size eval_accumulation_steps torch_empty_cache_steps "
        "max_tokens_per_batch min_tokens_per_batch",
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
        "label_smoothing_factor neftune_noise_alpha dataloader_num_workers rdrop_alpha",
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
    "LoraConfig.init_lora_weights": Literal["lora_ga"],
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
    "peft": ("peft_config",),
    "lora": ("peft_config",),
    "lora_config": ("peft_config",),
    "adapter": ("peft_config",),
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

_IN_BITS = (
    'give RFModelConfig(model_kwargs={"quantization_config": BitsAndBytesConfig('
    "load_in_4bit=True)}) and an adapter (QLoRA); this needs bitsandbytes"
)

_IN_HOST_MEMORY = (
    "activations are kept in the precision of training; gradient_checkpointing=True makes most of "
    "them anew, and activation_offloading=True keeps them in host memory (on a GPU)"
)
_NOTHING_IS_SENT = 'gradients are not sent anywhere on one device; optim="adamw_8bit" saves memory'

# Names that are gone, and what does the same today.
GONE: dict[str, str] = {
    "max_prompt_length": "TRL no longer cuts prompts; max_length (DPO: prompt and answer together) "
    "does, or drop long prompts from the data set",
    "quantization_config": _IN_BITS,
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
    "fp8": "training here is in float32, bf16 or fp16; use bf16=True, or a base in 4 bits",
    "mixed_precision": "use bf16=True or fp16=True",
    "int8": _IN_BITS,
    "load_in_8bit": _IN_BITS,
    "load_in_4bit": _IN_BITS,
    "int8_activations": _IN_HOST_MEMORY,
    "quantize_activations": _IN_HOST_MEMORY,
    "gradient_compression": _NOTHING_IS_SENT,
    "onebit_adam": _NOTHING_IS_SENT,
    "powersgd": _NOTHING_IS_SENT,
    "num_gpus": "leave it out; runs take turns on one device",
    "train_dataset": "give it to run_fit",
    "eval_dataset": "give it to run_fit",
}

# Why other trainers lack an argument that some have, and what they have instead.
_NOT_IN_PARTS = (
    "of other trainers it is not known that a batch in parts has the same loss; use a smaller "
    "per_device_train_batch_size and more gradient_accumulation_steps"
)
ONLY_THERE: dict[str, str] = {
    "max_tokens_per_batch": _NOT_IN_PARTS,
    "min_tokens_per_batch": _NOT_IN_PARTS,
}

SECRETS = frozenset({"hub_token", "token", "use_auth_token", "api_key"})  # never written or shown


@dataclass(frozen=True)
class Argument:
    """One argument of a wrapped class. `choices` are the texts it takes, if it names them."""

    hint: Any  # Any: a type expression
    default: object = None
    choices: tuple[str, ...] = ()


# Training arguments that are ours; TRL's config objects never see them.
_BY_TOKENS = {
    "max_tokens_per_batch": Argument(int | None),
    "min_tokens_per_batch": Argument(int | None),
}
OURS: dict[str, dict[str, Argument]] = {
    "SFTConfig": {"rdrop_alpha": Argument(float, 0.0), **_BY_TOKENS},
    **dict.fromkeys(
        ("DPOConfig", "RewardConfig", "GRPOConfig", "RLOOConfig", "KTOConfig"), _BY_TOKENS
    ),
}


def optimizer_name(optim: object) -> str:
    """An optimizer's name, as `optim` has it: a text, TRL's enum, or None."""
    return str(getattr(optim, "value", optim or ""))


@functools.cache
def arguments(cls: Any) -> dict[str, Argument]:  # Any: a dataclass
    """Every argument of a dataclass of PEFT or TRL, and ours, by name."""
    name, hints = cls.__name__, typing.get_type_hints(cls)
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
    return {**found, **OURS.get(name, {})}


def closest(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'a' or 'b'?"` for the names most like a word, or an empty text."""
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""


def check(owner: str, name: str, argument: Argument, value: object) -> None:
    """Refuse one value (no choices left in it at the top) that an argument cannot take."""
    if not accepts(argument.hint, value) or (
        isinstance(value, str) and argument.choices and value not in argument.choices
    ):
        rule = _describe(argument)
        fix = _fix(name, argument, value)
        raise ConfigError(
            f"{owner}: {name} must be {rule}, got {short(value)} ({type(value).__name__}); {fix}"
        )
    if any(not math.isfinite(number) for number in _numbers(value)):
        raise ConfigError(f"{owner}: {name} must be finite, got {short(value)}; give a real number")
    if name in BOUNDS and is_number(value) and not BOUNDS[name][1](value):
        hint = "" if argument.default is None else f"; the default is {argument.default!r}"
        raise ConfigError(f"{owner}: {name} must be {BOUNDS[name][0]}, got {short(value)}{hint}")
    if name in OWNED and value:
        raise ConfigError(f"{owner}: {name} cannot be set, got {short(value)}; {OWNED[name]}")


def accepts(hint: Any, value: object) -> bool:  # Any: a type expression
    """Whether a value fits a declared type; True where the type cannot be decided here."""
    if isinstance(value, (List, Range, Linked)):
        return all(accepts(hint, one) for one in alternatives(value))
    arms = _arms(hint)
    if len(arms) > 1:
        return any(accepts(arm, value) for arm in arms)
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
        return is_number(value) and (hint is float or isinstance(value, int))
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
            accepts(item, one) for item in items for one in value
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


_NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    dict: "a dict",
}


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
    if isinstance(value, float) and value.is_integer() and accepts(argument.hint, int(value)):
        return f"write {name}={int(value)}"
    if isinstance(value, (list, tuple)):
        return f"to compare several values write {name}=List([...])"
    if isinstance(value, str):
        plain = from_text(argument.hint, value)
        if plain is not value:
            return f"write {name}={plain!r} without quotes"
        near = closest(value, _texts(argument))
        if near:
            return near.removeprefix("; ")
    if argument.default is not None:
        return f"write for example {name}={argument.default!r}"
    return "leave it out" if accepts(argument.hint, None) else f"give {name}=..."


def from_text(hint: Any, text: str) -> object:  # Any: a type expression
    """The number or truth value that a text stands for where `hint` takes one; else the text."""
    words = {"true": True, "false": False, "none": None}
    word = text.strip().lower()
    if word in words and accepts(hint, words[word]):
        return words[word]
    for parse in (int, float):
        try:
            number = parse(text)
        except ValueError:
            continue
        if accepts(hint, number):
            return number
    return text


def alternatives(value: object) -> Iterator[object]:
    """Every value a choice can take; the two ends for a Range, none for what is not known yet."""
    if isinstance(value, List):
        for one in value.values:
            yield from alternatives(one)
    elif isinstance(value, Range):
        yield from (value.start, value.end)
    elif not isinstance(value, Linked):
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
