"""The clone form: a typed field for each hyperparameter, and the check of what was filled in.

Any: hyperparameter values, as JSON holds them.
"""

import dataclasses
import enum
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

from rapidfire_jupyter import mixture
from rapidfire_jupyter.arguments import BOUNDS, OWNED, SECRETS, Argument, accepts
from rapidfire_jupyter.changes import modify, trains_longer
from rapidfire_jupyter.config import MODEL_ARGUMENTS, RunConfig, differences, flatten
from rapidfire_jupyter.conflicts import check_together
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.recorded import Recorded
from rapidfire_jupyter.state import Run
from rapidfire_jupyter.ui.lines import magic_line
from rapidfire_jupyter.ui.wire import Field, Number

Kind = Literal["int", "float", "bool", "choice", "text", "list", "fixed"]
Refusal = Callable[[int, RunConfig], str]

_IN_CELL = "change it in a cell: exp.clone(...)"
_GROUPS = (("training_args", "Training"), ("peft_config", "Adapter"))


def fields(config: RunConfig) -> list[Field]:
    """A field for each hyperparameter that a clone may change; what the engine owns has none."""
    found = []
    for part, group in _GROUPS:
        inner = getattr(config.model, part)
        if isinstance(inner, Recorded):
            helps = _helps(inner.target_class())
            for name, argument in inner.arguments().items():
                if name in OWNED or name in SECRETS:
                    continue
                value, given = getattr(inner, name), name in inner.given
                found.append(
                    _field(f"{part}.{name}", group, argument, value, given, helps.get(name, ""))
                )
        elif inner is not None:
            found.append(_field(part, group, Argument(Any), inner, True, ""))
    for name, argument in MODEL_ARGUMENTS.items():
        if name in dict(_GROUPS) or name == "name":
            continue
        given = name in config.model.given
        value = config.model.given.get(name, argument.default)
        if name == "mixture" and value is not None:
            now = mixture.now(value["weights"])
            found.append(_field(mixture.WEIGHTS, "Model", Argument(list), now, True, ""))
        elif isinstance(value, Mapping):
            for key, one in value.items():
                found.append(
                    _field(f"{name}.{key}", "Model", Argument(_hint_of(one)), one, True, "")
                )
        else:
            found.append(_field(name, "Model", argument, value, given, ""))
    return sorted(found, key=lambda field: not field["given"])


def _field(path: str, group: str, argument: Argument, value: Any, given: bool, about: str) -> Field:
    kind, choices = field_kind(argument, value)
    label = path.rpartition(".")[2]
    least, most = bounds(label)
    note = _IN_CELL if kind == "fixed" else about
    return {
        "path": path,
        "label": label,
        "group": group,
        "kind": kind,
        "value": _encoded(value),
        "choices": choices,
        "least": least if kind in ("int", "float") else None,
        "most": most if kind in ("int", "float") else None,
        "given": given,
        "note": note,
    }


def _encoded(value: Any) -> Any:
    try:
        return encode(value)
    except ConfigError:
        return str(value)


def _hint_of(value: Any) -> Any:  # Any: a type expression
    return type(value) if isinstance(value, bool | int | float | str) else Any


def field_kind(argument: Argument, value: Any) -> tuple[Kind, list[Any] | None]:
    """How a value is edited, and the values to choose from if they are named."""
    hint = argument.hint
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    arms = [a for a in (typing.get_args(hint) if union else (hint,)) if a is not type(None)]
    texts = list(argument.choices)
    for arm in arms:
        if typing.get_origin(arm) is Literal:
            texts += typing.get_args(arm)
        elif isinstance(arm, type) and issubclass(arm, enum.Enum):
            texts += [member.value for member in arm]
    none: list[Any] = [None] if accepts(hint, None) else []
    kinds = {typing.get_origin(arm) or arm for arm in arms}
    if isinstance(value, Mapping) or not isinstance(
        _encoded(value), str | int | float | list | None
    ):
        return "fixed", None
    if isinstance(value, list | tuple | set):
        flat = all(isinstance(one, str | int | float) for one in value)
        return ("list", None) if flat else ("fixed", None)
    # A number may be meant beside named texts: the field then takes either, as text.
    if texts and not kinds & {int, float}:
        return "choice", none + [t for t in dict.fromkeys(texts) if "[" not in str(t)]
    if kinds == {bool}:
        return ("choice", [None, True, False]) if none else ("bool", None)
    for number, kind in ((float, "float"), (int, "int")):
        if number in kinds and not kinds - {int, float}:
            return typing.cast(Kind, kind), None
    if kinds & {str, int, float, bool} or isinstance(value, str | int | float):
        return "text", None
    return "fixed", None


def bounds(name: str) -> tuple[Number, Number]:
    """The least and the greatest number that an argument takes, as far as a rule says so."""
    rule = BOUNDS[name][0] if name in BOUNDS else ""
    if rule.startswith("-1"):
        return -1.0, None
    low = re.search(r">=? (\d+)", rule)
    high = re.search(r"<=? (2\*\*32|\d+)", rule)
    most = None if high is None else 2.0**32 - 1 if high[1] == "2**32" else float(high[1])
    return (float(low[1]) if low else None), most


def _helps(cls: Any) -> dict[str, str]:
    """The first sentence of each argument's documentation, where its class has it."""
    return {
        field.name: re.split(r"(?<=[a-z)`])\. ", " ".join(str(text).split()))[0][:200]
        for field in dataclasses.fields(cls)
        if (text := field.metadata.get("help"))
    }


def no_warm_start(run: Run) -> str:
    """Why nothing can start warm from a run yet; "" if it can."""
    if run.step == 0 and run.checkpoint_step is None:
        return f"run {run.id} has no trained step yet"
    return ""


def nothing_left(run: Run, config: RunConfig, new: RunConfig) -> str:
    """Why a warm clone of a finished run would train nothing; "" if it would train."""
    if run.status != "completed":
        return ""
    if trains_longer(config, new, run.step):
        return ""
    name = "max_steps" if new.model.training_args.max_steps > 0 else "num_train_epochs"
    return (
        "nothing is left to train: the parent has finished its schedule; "
        f"raise {name} (or start cold)"
    )


def check(
    run: Run, config: RunConfig, changes: Mapping[str, Any], refusal: Refusal
) -> dict[str, Any]:
    """What a clone with these changes would be, or what is wrong with them, field by field.

    Returns:
        `errors` by path ("" for all together), `warm` (why it cannot be warm, or "") and `changed`
        (old and new value by path).
    """
    errors: dict[str, str] = {}
    for path, value in changes.items():
        try:
            modify(config, {path: value})
        except ConfigError as error:
            errors[path] = str(error)
    if errors:
        return {"errors": errors, "warm": no_warm_start(run), "changed": {}}
    try:
        new = modify(config, changes)
        check_together(new)
    except ConfigError as error:
        return {"errors": {"": str(error)}, "warm": no_warm_start(run), "changed": {}}
    pairs = differences(_flat(config), _flat(new))
    changed = {path: [old, now] for path, (old, now) in pairs.items()}
    warm = no_warm_start(run) or refusal(run.id, new) or nothing_left(run, config, new)
    return {"errors": {}, "warm": warm, "changed": changed}


def _flat(config: RunConfig) -> dict[str, Any]:
    return {name: encode(value) for name, value in flatten(config).items()}


def line(run: int, changes: Mapping[str, Any], warm: bool, experiment: str) -> str:
    """The magic that makes this clone."""
    return magic_line("clone", run, {"changes": changes, "warm": warm}, experiment)
