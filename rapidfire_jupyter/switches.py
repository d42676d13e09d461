"""Which policies are at work: those of `run_fit`, as people switched them. Plain data.

A switch is an op like others: it is in the event log, so a later kernel finds policies as they were
left. It holds until `run_fit` is given other policies than before.
"""

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, get_args

from rapidfire_jupyter.arguments import closest
from rapidfire_jupyter.breeding import CloneBest
from rapidfire_jupyter.decisions import Decision
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.oversight import POLICIES, Oversight, check_stored, made
from rapidfire_jupyter.policies import Phases, Policy
from rapidfire_jupyter.state import State

Mode = Literal["on", "dry-run", "off"]
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class Switch:
    """One policy that there is.

    Attributes:
        key: Its name in ops, with underscores.
        policy: With the settings that hold; None if it needs a setting first, see `missing`.
        mode: "on" acts, "dry-run" only tells, "off" does nothing.
        given: Whether `run_fit` was given it.
    """

    key: str
    policy: Policy | None
    mode: Mode
    given: bool
    missing: str = ""


def key_of(name: object) -> str:
    """A policy's name as ops have it: "clone best" as "clone_best"."""
    return re.sub(r"[\s-]+", "_", str(name).strip().lower())


def facts(overseen: Oversight) -> dict[str, Any]:
    """What the log says of the policies that `run_fit` was given. Any: JSON values."""
    names = {key_of(policy.name): in_words(policy) for policy in overseen.policies}
    return {"policies": names, "dry_run": overseen.dry_run}


def in_words(policy: Policy) -> str:
    """A policy as it is written: `Halving(eta=2)`; what is as by default is left out."""
    if isinstance(policy, Phases):
        return f"phases: {', '.join(phase.name for phase in policy.phases)}"
    given = [
        f"{one.name}={getattr(policy, one.name)!r}"
        for one in fields(policy)
        if one.name != "name" and getattr(policy, one.name) != _default(one)
    ]
    return f"{type(policy).__name__}({', '.join(given)})"


def all_of(overseen: Oversight, state: State) -> list[Switch]:
    """The policies that `run_fit` was given, and all others that there are, with their modes."""
    usual: Mode = "dry-run" if overseen.dry_run else "on"
    given = {key_of(policy.name): policy for policy in overseen.policies}
    found = []
    for key in dict.fromkeys((*given, *POLICIES)):
        switched = state.switched.get(key, {})
        settings = switched.get("settings") or {}
        mode = switched.get("mode", usual if key in given else "off")
        try:
            policy = with_settings(given.get(key), key, settings)
        except ConfigError as error:
            found.append(Switch(key, None, "off", False, str(error)))
        else:
            found.append(Switch(key, policy, mode, key in given))
    return found


def at_work(overseen: Oversight, state: State, mode: Mode) -> tuple[Policy, ...]:
    """The policies in a mode, in order."""
    found = (one.policy for one in all_of(overseen, state) if one.mode == mode)
    return tuple(policy for policy in found if policy is not None)


def with_settings(given: Policy | None, key: str, settings: Mapping[str, Any]) -> Policy:
    """A policy with some of its settings changed; one with defaults if `run_fit` gave none.

    Any: plain values.

    Raises:
        ConfigError: There is no such policy or setting, or a value does not fit.
    """
    if given is None:
        if key not in POLICIES:
            near = closest(key, POLICIES) or f"; {', '.join(POLICIES)}"
            raise ConfigError(f"there is no policy {key!r}{near}")
        policy: Policy = made(POLICIES[key], settings)
        return policy
    if not settings:
        return given
    if isinstance(given, Phases):
        raise ConfigError("phases have no settings to change; give run_fit other ones")
    own = {one.name: getattr(given, one.name) for one in fields(given)}
    changed: Policy = made(type(given), {**own, **settings})
    return changed


def check(overseen: Oversight, name: str, mode: object, settings: Mapping[str, Any]) -> str:
    """The key of a policy that can be switched so.

    Any: plain values.

    Raises:
        ConfigError: It cannot.
    """
    if mode not in MODES:
        raise ConfigError(f"a policy is {', '.join(map(repr, MODES[:2]))} or 'off', got {mode!r}")
    if "name" in settings:
        raise ConfigError("a policy keeps its name; leave name out")
    key = key_of(name)
    given = {key_of(policy.name): policy for policy in overseen.policies}
    policy = with_settings(given.get(key), key, settings)
    if isinstance(policy, CloneBest):
        check_stored(policy)
    return key


def owns(policy: Policy, decision: Decision) -> bool:
    """Whether a decision is one of this policy's; rules of a phase have names of their own."""
    if not isinstance(policy, Phases):
        return decision.policy == policy.name
    firsts = (policy.name, *(phase.name for phase in policy.phases))
    return any(decision.policy.startswith(f"{first}: ") for first in firsts)


@dataclass(frozen=True)
class Setting:
    """One setting of a policy: plain values only.

    Attributes:
        kind: "int", "float", "bool", "text", "list", or "fixed" for what is set in a cell.
        about: Its documentation.
    """

    name: str
    kind: str
    value: Any  # Any: a plain value
    about: str


def settings_of(cls: type, policy: Policy | None) -> list[Setting]:
    """The settings of a kind of policy, in order, with those of one policy or the defaults."""
    if cls is Phases or not is_dataclass(cls):
        return []
    helps = _helps(cls)
    found = []
    for one in fields(cls):
        value = getattr(policy, one.name) if policy is not None else _default(one)
        if one.name != "name":
            told = helps.get(one.name, "")
            found.append(Setting(one.name, _kind(str(one.type), value), value, told))
    return found


def _kind(hint: str, value: object) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, tuple):
        return "list"
    if isinstance(value, Mapping):
        return "fixed"
    if isinstance(value, float) or "float" in hint:
        return "float"
    return "int" if isinstance(value, int) else "text"


def about(cls: type) -> str:
    """What a kind of policy does, in its documentation's first line."""
    first = (inspect.getdoc(cls) or "").partition("\n")[0].removeprefix("Settings of ")
    return f"{first[:1].upper()}{first[1:].rstrip('.')}"


def _helps(cls: type) -> dict[str, str]:
    """What each attribute is, from the docstring."""
    _, _, part = (inspect.getdoc(cls) or "").partition("Attributes:\n")
    found = re.findall(r"^    (\w+): (.+(?:\n        .+)*)", part, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in found}


def _default(field: Any) -> Any:  # Any: a dataclass field, its default
    return field.default_factory() if callable(field.default_factory) else field.default
