"""An op as the `%rapidfire` line that does the same: what a click leaves to copy."""

import json
import re
from collections.abc import Mapping
from typing import Any

_VERBS = {"pause_all": "pause", "resume_all": "resume-all"}
_WORDS = frozenset(["true", "false", "null", "none", "yes", "no", "on", "off", "y", "n", "nan"])


def magic_line(kind: str, run: int | None, args: Mapping[str, Any], experiment: str = "") -> str:
    """The line of an op. Any: hyperparameter values that JSON holds.

    Args:
        kind: One of `ops.KINDS`.
        run: Its run; None for ops on the whole experiment.
        args: As an `Order` has them.
        experiment: Its name, where several could be meant.
    """
    words = ["%rapidfire", _VERBS.get(kind, kind)]
    if run is not None:
        words.append(str(run))
    if kind == "boost":
        words.append(f"{args.get('weight', 2.0):g}")
    if kind == "policy":
        words += [str(args["name"]), str(args["mode"])]
    inner = {"clone": "changes", "mix": "weights", "policy": "settings"}.get(kind)
    pairs = (args.get(inner) or {}) if inner else args if kind == "resume" else {}
    words += [f"{name}={written(value)}" for name, value in pairs.items()]
    if kind == "clone" and args.get("warm"):
        words.append("--warm")
    if experiment:
        words += ["--exp", _text(experiment)]
    return " ".join(words)


def written(value: Any) -> str:  # Any: what JSON holds
    """A value as it is written in a line."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(str(k))}: {written(v)}" for k, v in value.items()) + "}"
    return json.dumps(value)


def _text(text: str) -> str:
    """A text without quotes if it reads as one, else in the quotes that a line can hold."""
    if re.fullmatch(r"[A-Za-z_][\w./-]*", text) and text.lower() not in _WORDS:
        return text
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    plain = char.isprintable() and char not in "\"'\\"
    return char if plain else f"\\U{ord(char):08x}"
