"""Values, functions and objects of a config as Python source, for a script that has the same.

Functions and classes of a module are imported; those of a notebook are written out, with the
globals they use. Objects are imported if a module holds them, else made again from their fields.
What can be neither becomes a call of `fill_in`, which says what to put there when it is reached.

Any: hyperparameter values, functions and objects of users.
"""

import dataclasses
import enum
import functools
import inspect
import math
import sys
import textwrap
import types
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import torch

from rapidfire_jupyter.arguments import SECRETS
from rapidfire_jupyter.encoding import globals_of

_FILL_IN = '''
def fill_in(what):
    """Put what is said here in place of the call."""
    raise NotImplementedError(f"this script cannot hold {what}; put it where fill_in stands")
'''

_WITH_FIELDS = '''
def with_fields(cls, **fields):
    """An object of a class as it was when its run began."""
    made = cls.__new__(cls)
    vars(made).update(fields)
    return made
'''


_CONTAINERS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("set([", "])"),
    frozenset: ("frozenset([", "])"),
}


class _CannotWriteError(Exception):
    """There is no source for it; the text says what it is."""


class Writer:
    """Collects what a script must import and define."""

    def __init__(self, folder: Path) -> None:
        """`folder` takes the files that the script reads: tokenizers."""
        self._folder = folder
        self.imports: list[str] = []
        self.sources: list[str] = []
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []  # what `_names` knows by id
        self._texts: dict[str, str] = {}  # what each name of the script stands for
        self._above: list[int] = []

    def need(self, line: str) -> None:
        """Import something at the script's top."""
        if line not in self.imports:
            self.imports.append(line)

    def name_of(self, thing: Any) -> str:
        """Make a function or class usable in the script, and give its name."""
        try:
            return self._name_of(thing)
        except _CannotWriteError as error:
            return self._fill_in(str(error))

    def value(self, value: Any, what: str = "") -> str:
        """Python source of a value.

        Args:
            what: The argument it is for, to name it where there is no source.
        """
        try:
            return self._entry(what, value)
        except _CannotWriteError as error:
            return self._fill_in(f"{what}: {error}" if what else str(error))

    def callback(self, callback: Any) -> str:
        """A callback as a trainer gets it: of a class, a factory, or an object."""
        if isinstance(callback, type):
            return f"{self.name_of(callback)}()"
        if callable(callback) and not hasattr(callback, "on_train_begin"):
            return f"{self.value(callback, 'callbacks')}()"
        state = getattr(callback, "state", None)
        if callable(state) and not self._imported(callback):
            args = state().get("args", {})
            inner = ", ".join(f"{k}={self.value(v)}" for k, v in args.items())
            return f"{self.name_of(type(callback))}({inner})"
        return self.value(callback, "callbacks")

    # ---- functions and classes ----

    def _name_of(self, thing: Any) -> str:
        if id(thing) in self._names:
            return self._names[id(thing)]
        name = getattr(thing, "__name__", type(thing).__name__)
        module = str(getattr(thing, "__module__", None) or "__main__")
        whole = f"{module}.{getattr(thing, '__qualname__', name)}"
        if module.startswith("trl.trainer."):
            module = "trl"
        if module != "__main__" and "<locals>" not in whole:
            self._define(name, f"from {module} import {name}", whole)
            self.need(f"from {module} import {name}")
        elif not name.isidentifier():
            raise _CannotWriteError(f"the function {whole}")
        else:
            self._write_out(thing, name, whole)
        self._remember(thing, name)
        return name

    def _write_out(self, thing: Any, name: str, whole: str) -> None:
        """Define a function or class in the script, after what it uses."""
        try:
            source = textwrap.dedent(inspect.getsource(thing))
        except (OSError, TypeError) as error:
            raise _CannotWriteError(f"{whole}, whose source is not known") from error
        self._define(name, source, whole)
        self._remember(thing, name)
        try:
            self._write_used(thing, name)
        except _CannotWriteError:
            del self._names[id(thing)]
            raise
        self.sources.append(source)

    def _write_used(self, thing: Any, name: str) -> None:
        for used, one in _used_by(thing).items():
            if one is thing:
                continue
            if isinstance(one, types.ModuleType):
                self._define(used, f"import {one.__name__}", one.__name__)
                self.need(f"import {one.__name__} as {used}")
                continue
            text = self.value(one, f"{used} of {name}")
            if text != used:
                self._define(used, text, f"{used} of {name}")
                self.sources.append(f"{used} = {text}")

    def _define(self, name: str, text: str, whole: str) -> None:
        """Take a name of the script; refuse one that already stands for something else."""
        if self._texts.setdefault(name, text) != text:
            raise _CannotWriteError(f"{whole}, beside another one that is called {name}")

    def _remember(self, thing: Any, name: str) -> None:
        self._names[id(thing)] = name
        self._kept.append(thing)

    # ---- values and objects ----

    def _value(self, value: Any) -> str:
        if isinstance(value, enum.Enum):
            return self._value(value.value)
        if isinstance(value, torch.dtype):
            return str(value)
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if value is None or isinstance(value, bool | bytes):
            return repr(value)
        if isinstance(value, str):
            return repr(str(value))
        if isinstance(value, int | float):  # numpy's numbers too
            return repr(int(value) if isinstance(value, int) else float(value))
        if id(value) in self._above:
            raise _CannotWriteError("an object that holds itself")
        self._above.append(id(value))
        try:
            return self._whole(value)
        finally:
            self._above.pop()

    def _whole(self, value: Any) -> str:
        """Source of what may hold other values."""
        if id(value) in self._names:
            return self._names[id(value)]
        if isinstance(value, Mapping):
            pairs = (f"{self._value(k)}: {self._entry(k, v)}" for k, v in value.items())
            return "{" + ", ".join(pairs) + "}"
        if type(value) in _CONTAINERS:
            inner = "".join(f"{self._value(one)}, " for one in value)
            start, end = _CONTAINERS[type(value)]
            return f"{start}{inner if len(value) == 1 else inner.removesuffix(', ')}{end}"
        if isinstance(value, functools.partial):
            self.need("import functools")
            parts = [value.func, *value.args]
            inner = ", ".join(map(self._value, parts)) + self._arguments(value.keywords, ", ")
            return f"functools.partial({inner})"
        if isinstance(value, types.MethodType):
            return f"{self._value(value.__self__)}.{value.__name__}"
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType | type):
            return self._name_of(value)
        if isinstance(value, PurePath):
            self.need("from pathlib import Path")
            return f"Path({str(value)!r})"
        return self._imported(value) or self._made_again(value)

    def _entry(self, key: Any, value: Any) -> str:
        if key in SECRETS and isinstance(value, str):
            self.need("import os")
            return 'os.environ.get("HF_TOKEN")'
        return self._value(value)

    def _arguments(self, given: Mapping[str, Any], before: str = "") -> str:
        inner = ", ".join(f"{name}={self._entry(name, one)}" for name, one in given.items())
        return before + inner if inner else ""

    def _imported(self, value: Any) -> str:
        """The name of an object that a module holds, imported; else an empty text."""
        mine = getattr(type(value), "__module__", "")
        loaded = list(sys.modules.items())
        loaded.sort(key=lambda pair: pair[0] != mine)  # its class's module first
        for name, module in loaded:
            if name == "__main__" or not isinstance(module, types.ModuleType):
                continue
            found = next((n for n, v in list(vars(module).items()) if v is value), None)
            if found is not None:
                self._define(found, f"from {name} import {found}", f"{name}.{found}")
                self.need(f"from {name} import {found}")
                return found
        return ""

    def _made_again(self, value: Any) -> str:
        """Source that makes an equal object.

        Raises:
            _CannotWriteError: It holds more than values: weights, files, a lock.
        """
        cls = type(value)
        kind = f"a {cls.__module__}.{cls.__qualname__}"
        if _is_tokenizer(value):
            return self._tokenizer(value)
        if isinstance(value, torch.nn.Module | torch.Tensor):
            raise _CannotWriteError(kind)
        if dataclasses.is_dataclass(value):
            given = _differing_fields(value)
            if given is not None:
                return f"{self._name_of(cls)}({self._arguments(given)})"
        if callable(getattr(value, "to_dict", None)) and callable(getattr(cls, "from_dict", None)):
            return f"{self._name_of(cls)}.from_dict({self._value(value.to_dict())})"
        if cls.__module__ == "builtins" or not hasattr(value, "__dict__") or _has_slots(cls):
            raise _CannotWriteError(kind)
        try:
            fields = self._arguments(vars(value), ", ")
        except _CannotWriteError as error:
            raise _CannotWriteError(f"{kind}, which holds {error}") from error
        if _WITH_FIELDS not in self.sources:
            self.sources.insert(0, _WITH_FIELDS)
        return f"with_fields({self._name_of(cls)}{fields})"

    def _tokenizer(self, value: Any) -> str:
        target = self._folder / f"tokenizer-{len(self._kept)}"
        value.save_pretrained(str(target))
        self.need("from transformers import AutoTokenizer")
        self._remember(value, f"AutoTokenizer.from_pretrained({str(target)!r})")
        return self._names[id(value)]

    def _fill_in(self, what: str) -> str:
        if _FILL_IN not in self.sources:
            self.sources.insert(0, _FILL_IN)
        return f"fill_in({what!r})"


def _used_by(thing: Any) -> dict[str, Any]:
    """What a function or class names but does not define: globals, and base classes."""
    if not isinstance(thing, type):
        return globals_of(thing)
    used = {base.__name__: base for base in thing.__bases__ if base is not object}
    for part in vars(thing).values():
        used.update(globals_of(part))
    return used


def _differing_fields(value: Any) -> dict[str, Any] | None:
    """The arguments of a dataclass that differ from its defaults; None if they do not make it."""
    given = {}
    for field in dataclasses.fields(value):
        one = getattr(value, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.init and not _same(one, default):
            given[field.name] = one
    try:
        again = type(value)(**given)
        names = {field.name for field in dataclasses.fields(value)}
        for one in (value, again):  # they may keep more than their fields
            names |= set(getattr(one, "__dict__", ()))
        same = all(_same(getattr(value, n), getattr(again, n)) for n in names)
    except Exception:  # whatever its __post_init__ raises
        return None
    return given if same else None


def _same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:  # arrays, and whatever compares in a way of its own
        return False


def _has_slots(cls: type) -> bool:
    return any(vars(one).get("__slots__") for one in cls.__mro__)


def _is_tokenizer(value: Any) -> bool:
    return any(cls.__name__ == "PreTrainedTokenizerBase" for cls in type(value).__mro__)
