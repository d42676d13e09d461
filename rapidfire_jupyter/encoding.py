"""Config values as JSON holds them: written, read back, and compared.

Any: hyperparameter values, which may be any object, and what JSON holds.
"""

import dataclasses
import enum
import functools
import hashlib
import importlib
import inspect
import json
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rapidfire_jupyter.arguments import SECRETS
from rapidfire_jupyter.choices import plain
from rapidfire_jupyter.config import RFModelConfig, RunConfig, flatten
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.recorded import WRAPPERS, Recorded, RFConfig

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


def same_key(
    config: RunConfig, leaving_out: frozenset[str] = frozenset()
) -> tuple[str, tuple[int, ...]]:
    """Equal for two configs that train the same; valid while both configs are alive.

    Objects that show only a summary of themselves (a model, a tensor) count as the same only if
    they are one object.

    Args:
        leaving_out: Dotted names, as `flatten` gives them, that may differ.
    """
    walk = _Walk()
    compared = {name: v for name, v in flatten(config).items() if name not in leaving_out}
    text = json.dumps(_encode(compared, walk, (), True), sort_keys=True)
    return text, tuple(map(id, walk.opaque))


def digest(value: object) -> tuple[str, list[object]]:
    """A digest of what a value holds and does, the same for equal ones.

    Returns:
        The digest; and the objects that it takes in only a summary of, to be compared by identity.
    """
    walk = _Walk()
    return _digest(_encode(value, walk, (), False)), walk.opaque


def globals_of(function: Any) -> dict[str, Any]:  # Any: a function, and whatever it reads
    """The globals that a function reads and what it closes over, by name; none of what is none."""
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= set(constant.co_names)
    used = {n: function.__globals__[n] for n in sorted(names) if n in function.__globals__}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            used[name] = cell.cell_contents
        except ValueError:  # a cell that is not filled yet
            continue
    return used


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
        what = name_of(value) or "a secret"
        raise ConfigError(f"{key} was {what}, which cannot be stored; give it again")
    return {name: decode(one, f"{key}.{name}") for name, one in value.items()}


def name_of(value: Mapping[str, Any]) -> str:
    """The dotted name of what `encode` could only describe; "" for what is a value itself."""
    return str(value.get("callable") or value.get("object") or "")


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
    value = plain(value.value if isinstance(value, enum.Enum) else value)
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
    if isinstance(value, RFConfig):  # its class is not found again by name
        return {"object": type(value).__name__, "fields": inner(dict(value.given))}
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
