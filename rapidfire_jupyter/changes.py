"""From one run's config to another: some values changed, all others kept."""

from collections.abc import Mapping
from typing import Any

from rapidfire_jupyter.arguments import GONE, RENAMED, Argument, accepts, closest, from_text
from rapidfire_jupyter.choices import short
from rapidfire_jupyter.config import MODEL_ARGUMENTS, RFModelConfig, RunConfig
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.recorded import WRAPPERS, Recorded, has_choices, unknown

# Training arguments that a warm clone cannot be given another value of.
COLD_ARGUMENTS = (
    "seed",
    "data_seed",
    "optim",
    "optim_args",
    "packing",
    "fp16",
    "optim_target_modules",
)


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
        path = path_of(config.model, key)
        if path in paths:
            raise ConfigError(f"{'.'.join(path)} is changed twice in {list(changes)}; give it once")
        if has_choices(value):
            raise ConfigError(
                f"{key} of one run takes one value, got {short(value)}; make a clone each"
            )
        paths[path] = value
    kind = paths.pop(("trainer_type",), config.trainer_type)
    fields = dict(config.model.given)
    for path in sorted(paths, key=len):  # whole fields first, so that parts change the new ones
        name, value = path[0], paths[path]
        if len(path) == 2:
            value = _with_inner(name, fields.get(name), path[1], value)
        elif isinstance(value, str) and not accepts(MODEL_ARGUMENTS[name].hint, value):
            value = from_text(MODEL_ARGUMENTS[name].hint, value)
        fields[name] = value
    modified = RFModelConfig(**fields).build(trainer_type=kind)
    if (modified.model.mixture or {}).get("tasks") != (config.model.mixture or {}).get("tasks"):
        raise ConfigError("the tasks of a mixture are run_fit's; change mixture.weights only")
    return modified


def trains_longer(config: RunConfig, changed: RunConfig, step: int) -> bool:
    """Whether a config trains past the end of the one that has finished at `step`."""
    before, after = config.model.training_args, changed.model.training_args
    steps = getattr(after, "max_steps", None) or -1
    if steps > 0:
        return bool(steps > step)
    if (getattr(before, "max_steps", None) or -1) > 0:
        return True  # from steps to epochs: how many steps those are is known when it is prepared
    default = 3.0
    return bool(
        (getattr(after, "num_train_epochs", None) or default)
        > (getattr(before, "num_train_epochs", None) or default)
    )


def path_of(model: RFModelConfig, key: str) -> tuple[str, ...]:
    """The field that a name in `changes` means, and the argument inside it.

    Raises:
        ConfigError: The name is unknown or ambiguous.
    """
    if key == "trainer_type" or key in MODEL_ARGUMENTS:
        return (key,)
    name, dot, inner = key.partition(".")
    if dot and name in MODEL_ARGUMENTS:
        return (name, inner)
    insides = {name: _inner_names(model, name) for name in MODEL_ARGUMENTS}
    owners = [name for name, names in insides.items() if key in names]
    if len(owners) == 1:
        return (owners[0], key)
    if owners:
        choices = " or ".join(f"{owner}.{key}" for owner in owners)
        raise ConfigError(f"{key!r} is ambiguous; write {choices}")
    if key in RENAMED or key in GONE or any(key in cls.arguments() for cls in WRAPPERS):
        args = model.training_args
        raise ConfigError(unknown(type(args) if args is not None else RFModelConfig, key))
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
        if isinstance(value, str) and not accepts(argument.hint, value):
            value = from_text(argument.hint, value)
        return current.copy(**{inner: value})
    if current is None and (name.endswith("_kwargs") or name == "generation_config"):
        current = {}
    if isinstance(current, Mapping):
        old = current.get(inner)
        if isinstance(value, str) and isinstance(old, (bool, int, float)):
            kind, words = (bool, "True or False") if isinstance(old, bool) else (float, "a number")
            value = from_text(kind, value)
            if isinstance(value, str):
                raise ConfigError(f"{name}.{inner} is {old!r}, got {value!r}; give {words}")
        return {**current, inner: value}
    raise ConfigError(
        f"{name} is {short(current)} and has no part {inner!r}; change {name} as a whole"
    )
