"""Who looks after a fit: its policies, its monitors, and whom alerts are told. Plain data.

Policies and monitors are given as objects, or by name as YAML has them: `"halving"`,
`{"threshold": {"limit": 2.0}}`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from rapidfire_jupyter import monitors as watching
from rapidfire_jupyter import policies as deciding
from rapidfire_jupyter.arguments import closest
from rapidfire_jupyter.bandit import BanditBoost
from rapidfire_jupyter.breeding import CloneBest
from rapidfire_jupyter.choices import short
from rapidfire_jupyter.encoding import decode, encode
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.halving import Halving
from rapidfire_jupyter.monitors import DEFAULT, Monitor
from rapidfire_jupyter.policies import Phase, Phases, Policy
from rapidfire_jupyter.screening import Budget, Outliers, SlowLearners, Threshold

Listener = Callable[[dict[str, Any]], object] | str  # Any: JSON values of an alert; or a URL

POLICIES: Mapping[str, type] = {
    "halving": Halving,
    "threshold": Threshold,
    "outliers": Outliers,
    "slow_learners": SlowLearners,
    "clone_best": CloneBest,
    "bandit": BanditBoost,
    "budget": Budget,
}
MONITORS: Mapping[str, type] = {one.kind.replace(" ", "_"): type(one) for one in DEFAULT}


@dataclass(frozen=True)
class Oversight:
    """What looks after a fit.

    Attributes:
        policies: Asked at chunk ends and when nothing is left to train, in order.
        monitors: Look at every run's rows and measures.
        dry_run: Decisions are written down, and nobody asks for their ops.
        listeners: Functions and URLs that are told of alerts.
    """

    policies: tuple[Policy, ...] = ()
    monitors: tuple[Monitor, ...] = DEFAULT
    dry_run: bool = False
    listeners: tuple[Listener, ...] = ()


def overseeing(
    policies: object = None,
    phases: object = None,
    monitors: object = None,
    dry_run: object = False,
    on_alert: object = None,
) -> Oversight:
    """What the arguments of `run_fit` stand for, checked.

    Args:
        policies: Policies, or names of them; one or a list. None for none.
        phases: `Phase`s, one after the other.
        monitors: Monitors, or names of them; None for all, an empty list for none.
        dry_run: Only tell what would be done.
        on_alert: Functions `f(alert)` and URLs; one or a list.

    Raises:
        ConfigError: One of them cannot be used.
    """
    if not isinstance(dry_run, bool):
        raise ConfigError(f"dry_run must be True or False, got {short(dry_run)}")
    asked: list[Any] = [_named("policies", one, POLICIES) for one in _several("policies", policies)]
    if phases is not None:
        asked.append(Phases(tuple(_phase(one) for one in _several("phases", phases))))
    for cloner in _cloners(asked):
        check_stored(cloner)
    found: Sequence[Monitor] = DEFAULT
    if monitors is not None:
        given = _several("monitors", monitors)
        found = [_named("monitors", one, MONITORS) for one in given]
    listeners = tuple(_listener(one) for one in _several("on_alert", on_alert))
    return Oversight(deciding.check(asked), watching.check(found), dry_run, listeners)


def _several(name: str, given: object) -> list[Any]:  # Any: what a user gave
    if given is None:
        return []
    if isinstance(given, list | tuple):
        return list(given)
    if name == "phases":
        raise ConfigError(f"phases takes a list of Phase, got {short(given)}")
    return [given]


def _named(owner: str, given: Any, known: Mapping[str, type]) -> Any:
    """A policy or monitor, from its name, its name with settings, or itself. Any: see there."""
    if isinstance(given, str):
        given = {given: {}}
    if not isinstance(given, Mapping):
        return given
    if len(given) != 1:
        raise ConfigError(
            f"{owner}: one entry is a name with its settings, got {short(given)}; "
            "write - threshold: {limit: 2.0}"
        )
    name, settings = next(iter(given.items()))
    key = str(name).strip().lower().replace(" ", "_").replace("-", "_")
    found = {k.replace("-", "_"): cls for k, cls in known.items()}
    if key not in found:
        near = closest(key, found) or f"; {', '.join(found)}"
        raise ConfigError(f"{owner} has no {name!r}{near}")
    return made(found[key], settings)


def made(cls: type, settings: Any) -> Any:
    """A frozen dataclass of ours from plain values. Any: what YAML holds, its instance.

    Raises:
        ConfigError: It has no such setting, or a value does not fit.
    """
    settings = settings if settings is not None else {}
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"{cls.__name__} takes its settings by name, got {short(settings)}; "
            "write {limit: 2.0}"
        )
    known = {one.name: one for one in fields(cls)}
    given = {}
    for name, value in settings.items():
        if name not in known:
            near = closest(str(name), known) or f"; {', '.join(known)}"
            raise ConfigError(f"{cls.__name__} has no setting {name!r}{near}")
        if "tuple" in str(known[name].type):
            value = tuple(value) if isinstance(value, list | tuple) else (value,)
        given[name] = value
    try:
        return cls(**given)
    except TypeError as error:
        raise ConfigError(f"{cls.__name__}: {error}; got {short(dict(settings))}") from error


def _phase(given: Any) -> Phase:
    """A phase, from itself or from plain values. Any: what a user gave."""
    if isinstance(given, Phase):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"phases takes a list of Phase, got {short(given)}")
    settings = dict(given)
    if "rules" in settings:
        settings["rules"] = [
            _named("rules", one, POLICIES) for one in _several("rules", settings["rules"])
        ]
    if isinstance(settings.get("clone"), Mapping):
        settings["clone"] = made(CloneBest, settings["clone"])
    phase: Phase = made(Phase, settings)
    return phase


def _cloners(policies: Iterable[object]) -> Iterable[CloneBest]:
    for one in policies:
        if isinstance(one, CloneBest):
            yield one
        elif isinstance(one, Phases):
            rules = [rule for phase in one.phases for rule in (*phase.rules, phase.clone)]
            yield from (rule for rule in rules if isinstance(rule, CloneBest))


def check_stored(cloner: CloneBest) -> None:
    """A decision is written down before it is done: its changes must come back from there.

    Raises:
        ConfigError: One would not.
    """
    for name, value in cloner.changes.items():
        try:
            decode(encode(value), name)
        except ConfigError as error:
            why = f"{name} must be a value that can be written down, not code"
            raise ConfigError(f"changes of {cloner.name!r}: {why} ({error})") from error


def _listener(given: Any) -> Listener:  # Any: what a user gave
    if callable(given):
        return given  # type: ignore[no-any-return]
    if isinstance(given, str) and _is_url(given):
        return given
    raise ConfigError(
        f"on_alert takes a function f(alert) or an http(s) URL, or a list of them, got "
        f"{short(given)}; a URL has a host, and other letters than ASCII as %xx"
    )


def _is_url(text: str) -> bool:
    """Whether it is a whole http(s) URL, as one can post to."""
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018 - raises if it is no number
    except ValueError:
        return False
    plain = text.isascii() and text.isprintable() and " " not in text
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname)
