"""RFOptuna: a search that learns from the runs so far which configs to train next.

Optuna only suggests. What was suggested is in the event log as runs, and the study is made anew
from there whenever a run has ended: past runs are asked for and told in the order of the log, then
the sampler draws with a seed that depends on their number. So a kernel that comes later suggests
what the dead one would have.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from random import Random
from typing import Any, Literal

from rapidfire_jupyter.choices import List, Range, short
from rapidfire_jupyter.comparison import Mode, Rows, fraction, lower_is_better, pick_metric
from rapidfire_jupyter.config import MODEL_ARGUMENTS, RFModelConfig, RunConfig
from rapidfire_jupyter.encoding import decode, encode, same_key
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.ops import Op
from rapidfire_jupyter.recorded import Recorded, has_choices
from rapidfire_jupyter.search import Where, check_whole, runs_text, set_up, told_where
from rapidfire_jupyter.space import (
    allows,
    choices_text,
    chosen,
    coordinates,
    parts_of,
    settled,
    walk,
)
from rapidfire_jupyter.state import ACTIVE, Run, State

BY = "search:optuna"
ATTEMPTS = 100  # suggestions in a row that were trained already or that where refuses
_INSTALL = "pip install 'rapidfire-jupyter[optuna]'"
_SAMPLERS = ("tpe", "cmaes", "random")


@told_where
@dataclass(frozen=True)
class RFOptuna:
    """Configs suggested by Optuna, a few at a time: whenever a run ends, the next one begins.

    Runs that a policy or a person stops count with the metric they had (only if there is one
    metric), failed ones not at all. Cold clones made by hand inside the space are learned from too.

    Args:
        configs: An RFModelConfig, or a (nested) list or List of them. Choices must be values that
            can be written down, not functions.
        trainer_type: As for RFGridSearch.
        num_runs: How many configs are trained in all.
        at_once: How many at a time; fewer learn more from each other.
        metric: A logged metric, or several for a front of the best compromises; None takes
            eval_loss, or loss where nothing is evaluated.
        mode: "min" or "max", one for each metric; None goes by their names.
        sampler: "tpe" (tree-structured Parzen estimator), "cmaes" (for Ranges; one metric) or
            "random".
        seed: The same seed, space and results give the same suggestions.
        where: As for RFGridSearch.
    """

    configs: Any  # Any: RFModelConfig or nested lists of it
    trainer_type: str | type | None = "SFT"
    num_runs: int = 20
    at_once: int = 4
    metric: str | Sequence[str] | None = None
    mode: Mode | Sequence[Mode] | None = None
    sampler: Literal["tpe", "cmaes", "random"] = "tpe"
    seed: int = 42
    where: Where = None

    def __post_init__(self) -> None:
        check_whole(self, num_runs=1, at_once=1, seed=0)
        set_up(self)
        _check(self)

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics asked for; empty for the default one."""
        given = (self.metric,) if isinstance(self.metric, str) else self.metric or ()
        return tuple(given)

    def runs(self) -> list[RunConfig]:
        """The configs that are trained first: all that are suggested before there are results."""
        steps: list[Step] = []
        found: list[RunConfig] = []
        for _ in range(min(self.at_once, self.num_runs)):
            config = suggest(self, steps, ("eval_loss",), found)
            if config is None:
                break
            found.append(config)
            steps.append(Asked(len(found), coordinates(self.configs, config.model) or {}))
        if not found:
            raise ConfigError(f"where leaves no config of {ATTEMPTS} suggested ones")
        return found

    def describe(self) -> str:
        """Such as "20 runs suggested by tpe, 4 at a time: training_args.learning_rate in ..."."""
        how = f"suggested by {self.sampler} with seed {self.seed}, {self.at_once} at a time"
        return f"{runs_text(self.num_runs)} {how}{choices_text(self.configs)}"


@dataclass(frozen=True)
class Asked:
    """A run was begun, with these choices."""

    run: int
    choices: Mapping[str, float]


@dataclass(frozen=True)
class Told:
    """A run ended: with `values` of the metrics, or stopped at a fraction of its schedule.

    Attributes:
        values: None if it failed, or has none.
        at: Fraction of its schedule; 1 if it was completed.
    """

    run: int
    values: tuple[float, ...] | None
    at: float = 1.0


Step = Asked | Told


def refill(
    search: RFOptuna,
    state: State,
    configs: Mapping[int, RunConfig],
    rows: Rows,
    events: Iterable[Event],
) -> list[tuple[Op, str]]:
    """The next cold clone that is due, with its reason; empty if none is.

    Args:
        search: What was asked for.
        state: Of the experiment; while it is paused or has ended nothing is due.
        configs: Live configs of its runs.
        rows: Logged rows by run.
        events: The whole log.
    """
    alive = {i: run for i, run in state.runs.items() if run.status != "deleted"}
    active = sum(run.status in ACTIVE for run in alive.values())
    parent = next((i for i in alive if i in configs), None)
    if state.paused or state.ended or active >= search.at_once or parent is None:
        return []
    metrics = search.metrics or (pick_metric(rows),)
    steps = history(search, state, configs, rows, events, metrics)
    asked = [step for step in steps if isinstance(step, Asked)]
    if len(asked) >= search.num_runs:
        return []
    config = suggest(search, steps, metrics, list(configs.values()))
    if config is None:
        return []
    changes = changes_between(configs[parent].model, config.model)
    name = " ".join(f"{k.rpartition('.')[2]}={_short(v)}" for k, v in changes.items())[:120]
    args = {"changes": changes, "warm": False, "again": True, "name": name or None}
    told = sum(isinstance(step, Told) for step in steps)
    reason = f"suggested by {search.sampler} from {told} results, number {len(asked) + 1}"
    return [(Op("clone", parent, args, by=BY), f"{reason} of {search.num_runs}")]


def history(
    search: RFOptuna,
    state: State,
    configs: Mapping[int, RunConfig],
    rows: Rows,
    events: Iterable[Event],
    metrics: Sequence[str],
) -> list[Step]:
    """What was asked and told, in the order of the log; a run that was resumed is told once."""
    begun: list[tuple[int, int]] = []  # place in the log, run
    ended: dict[int, int] = {}  # run -> place in the log
    for place, event in enumerate(events):
        data = event.data
        if event.kind == "fit_started":
            begun, ended = [(place, spec["id"]) for spec in data["runs"]], {}
        elif event.kind in ("run_completed", "run_failed") and event.run is not None:
            ended[event.run] = place
        elif event.kind == "op" and data["outcome"] == "applied":
            if data["kind"] == "clone" and not data["created"]["warm"]:
                begun.append((place, data["created"]["id"]))
            elif data["kind"] in ("stop", "delete") and event.run is not None:
                ended.setdefault(event.run, place)
            elif data["kind"] == "resume" and event.run is not None:
                ended.pop(event.run, None)
    found: list[tuple[int, Step]] = []
    for place, run in begun:
        model = configs[run].model if run in configs else None
        choices = None if model is None else coordinates(search.configs, model)
        if choices is None:
            continue
        found.append((place, Asked(run, choices)))
        known = state.runs[run]
        if run in ended and known.status not in ACTIVE:
            found.append((ended[run], _told(known, rows.get(run, ()), metrics)))
    return [step for _, step in sorted(found, key=lambda pair: pair[0])]


def _told(run: Run, rows: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> Told:
    """Any: numbers."""
    last = [next((row[m] for row in reversed(rows) if m in row), None) for m in metrics]
    values = [float(value) for value in last if value is not None]
    whole = run.status == "completed"
    if len(values) < len(metrics) or not (whole or run.status == "stopped"):
        return Told(run.id, None)
    return Told(run.id, tuple(values), 1.0 if whole else min(fraction(run, run.step), 0.999))


def suggest(
    search: RFOptuna, steps: Sequence[Step], metrics: Sequence[str], known: Sequence[RunConfig]
) -> RunConfig | None:
    """The next config to train; None if 100 suggestions in a row were known or not wanted.

    Raises:
        ConfigError: Optuna is not installed.
    """
    optuna = _optuna()
    modes = [search.mode] * len(metrics) if isinstance(search.mode, str) else search.mode
    low = [lower_is_better(m, modes[i] if modes else None) for i, m in enumerate(metrics)]
    directions = ["minimize" if one else "maximize" for one in low]
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(directions=directions)
        _replay(search, study, steps)
        number = sum(isinstance(step, Asked) for step in steps)
        keys = {same_key(config) for config in known}
        for attempt in range(ATTEMPTS):
            # One that learns may be so sure that it only repeats itself.
            kind = search.sampler if attempt < ATTEMPTS // 2 else "random"
            study.sampler = _sampler(search, kind, (number, attempt))
            trial = study.ask()
            model = settled(chosen(search.configs, partial(_choose, trial)))
            config = model.build(trainer_type=search.trainer_type)
            if same_key(config) not in keys and allows(search.where, model):
                return config
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return None


def changes_between(parent: RFModelConfig, model: RFModelConfig) -> dict[str, Any]:
    """The changes that make a clone of one config the other. Any: hyperparameter values."""
    found: dict[str, Any] = {}
    for name in MODEL_ARGUMENTS:
        old: Any = parent.given.get(name)
        new: Any = model.given.get(name)
        if encode(old) == encode(new):
            continue
        before, after = parts_of(old), parts_of(new)
        named = isinstance(old, Recorded | dict) and isinstance(new, type(old))
        if named and set(before) <= set(after):
            differing = {k: v for k, v in after.items() if encode(before.get(k)) != encode(v)}
            found.update({f"{name}.{k}": v for k, v in differing.items()})
        else:
            found[name] = new
    return found


def _replay(search: RFOptuna, study: Any, steps: Sequence[Step]) -> None:  # Any: optuna.Study
    """Ask for what was asked for and tell what came of it; only CMA-ES minds how it was drawn."""
    states = _optuna().trial.TrialState
    trials: dict[int, Any] = {}
    drawing = search.sampler if search.sampler == "cmaes" else "random"
    for step in steps:
        if isinstance(step, Asked):
            study.sampler = _sampler(search, drawing, (len(trials), 0))
            study.enqueue_trial(dict(step.choices))
            trial = trials[step.run] = study.ask()
            chosen(search.configs, partial(_choose, trial))
            continue
        trial, values = trials[step.run], step.values
        finite = values is not None and all(abs(v) < float("inf") for v in values)
        if values is None or not finite or (step.at < 1 and len(values) > 1):
            study.tell(trial, state=states.FAIL)
        elif step.at < 1:
            trial.report(values[0], round(1000 * step.at))
            study.tell(trial, state=states.PRUNED)
        else:
            study.tell(trial, list(values))


def _choose(trial: Any, path: str, node: List | Range) -> float:  # Any: optuna.Trial
    """One choice of a suggestion; numbers keep six digits, as much as a name can show."""
    name = path or "configs"
    if isinstance(node, List):
        return int(trial.suggest_categorical(name, list(range(len(node.values)))))
    if node.dtype == "int":
        step = {} if node.log else {"step": int(node.step or 1)}
        return int(trial.suggest_int(name, int(node.start), int(node.end), log=node.log, **step))
    value = trial.suggest_float(name, node.start, node.end, log=node.log, step=node.step)
    return min(max(float(f"{value:.6g}"), node.start), node.end)


def _sampler(search: RFOptuna, kind: str, place: tuple[int, int]) -> Any:  # Any: a sampler
    seed = Random(f"{search.seed} {place}").randrange(2**32)
    samplers = _optuna().samplers
    if kind == "tpe":
        startup = max(2, min(10, search.num_runs // 3))
        return samplers.TPESampler(seed=seed, n_startup_trials=startup)
    if kind == "cmaes":
        others = samplers.RandomSampler(seed=seed)
        return samplers.CmaEsSampler(
            seed=seed, independent_sampler=others, warn_independent_sampling=False
        )
    return samplers.RandomSampler(seed=seed)


def _check(search: RFOptuna) -> None:
    """Refuse what cannot be searched, in the cell."""
    if search.sampler not in _SAMPLERS:
        raise ConfigError(
            f"sampler must be one of {', '.join(_SAMPLERS)}, got {short(search.sampler)}"
        )
    nodes = [(path, node) for path, node in walk(search.configs, "")]
    ranges = [node for _, node in nodes if isinstance(node, Range)]
    if search.sampler == "cmaes" and (not ranges or len(search.metrics) > 1):
        raise ConfigError("sampler='cmaes' needs a Range and one metric; use sampler='tpe'")
    if not isinstance(search.mode, str | None) and len(search.mode) != len(search.metrics):
        raise ConfigError(
            f"mode must have one entry for each metric, got {search.mode!r} for {search.metric!r}"
        )
    for path, node in nodes:
        if not isinstance(node, List) or len(node.values) == 1:
            continue
        for value in node.values:
            given = value.given.values() if isinstance(value, Recorded) else [value]
            try:
                for one in given:
                    decode(None if has_choices(one) else encode(one), path)
            except ConfigError as error:
                raise ConfigError(
                    f"RFOptuna: choices of {path} must be values that can be written down, not "
                    f"{short(value)}; use RFGridSearch, or RFLoraConfig for PEFT's ({error})"
                ) from error
    _optuna()
    if search.sampler == "cmaes":
        try:
            import_module("cmaes")
        except ImportError as error:
            raise ConfigError(f"sampler='cmaes' needs the package cmaes; {_INSTALL}") from error


def _optuna() -> Any:  # Any: the module
    try:
        return import_module("optuna")
    except ImportError as error:
        raise ConfigError(f"RFOptuna needs the package optuna; {_INSTALL}") from error


def _short(value: object) -> str:
    if isinstance(value, Recorded):
        return " ".join(f"{k}={_short(v)}" for k, v in value.given.items())
    return f"{value:.4g}" if isinstance(value, float) else short(value)
