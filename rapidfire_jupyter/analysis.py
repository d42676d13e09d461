"""What mattered: effects of hyperparameters, where two interact, and how important each is.

Pure functions of runs and their logged rows; plain data out, for a table or a plot to draw. How
runs stand is in `ranking`, how effects are computed in `effects`.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import combinations
from random import Random
from typing import Any

from rapidfire_jupyter import effects as paired
from rapidfire_jupyter.comparison import Mode, Rows, lower_is_better
from rapidfire_jupyter.effects import Confounded, Effect, Effects, Factor, Interaction
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.ranking import At, check_logged, scores_of, where
from rapidfire_jupyter.state import State

_INSTALL = "pip install 'rapidfire-jupyter[optuna]'"


def effects(
    state: State,
    rows: Rows,
    metric: str = "eval_loss",
    mode: Mode | None = None,
    at: At = "end",
    *,
    noise: float | None = None,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Effects:
    """What each hyperparameter did, and where two of them interact.

    Args:
        state: Of the experiment; deleted runs and warm clones are left out, since a warm clone's
            weights are in part another config's.
        rows: Logged rows by run.
        metric: A logged name.
        mode: Which way is better; None goes by the metric's name.
        at: As in `rank`: "end" takes finished runs only, "same_fraction" or a number all that
            reached it.
        noise: Relative difference that is a tie; None measures it from runs that differ by seed
            only, if there are any.
        confidence: Of each interval by itself: of twenty intervals of nothing, one misses 0.
        draws: Of the bootstrap.
        seed: Of the bootstrap.

    Raises:
        OpError: No run has logged this metric, or fewer than two can be compared.
    """
    runs = [r for r in state.runs.values() if r.status != "deleted" and not r.warm]
    check_logged(runs, rows, metric)
    place = where(runs, at)
    scores = _finite(scores_of(runs, rows, metric, mode, place))
    used = [run for run in runs if run.id in scores]
    if len(used) < 2:
        raise OpError(
            f"effects need two runs with a finite {metric} at {place:g} of their schedule, there "
            f"are {len(used)}; wait, or give at=, a fraction that more have reached"
        )
    sign = 1.0 if lower_is_better(metric, mode) else -1.0
    values = {i: sign * score for i, score in scores.items()}
    found = paired.factors(used)
    floor, repeated = paired.measured_noise(found, values, noise)
    study = _Study(found, values, paired.seeds_of(used), sign, floor, confidence, draws, seed)
    single, confounded = _effects(study)
    return Effects(
        metric,
        "min" if sign > 0 else "max",
        place,
        single,
        _interactions(study),
        confounded,
        floor,
        repeated,
        tuple(run.id for run in used),
        tuple(run.id for run in used if run.status != "completed"),
        tuple(run.id for run in runs if run.id not in scores),
    )


def _finite(scores: dict[int, float]) -> dict[int, float]:
    return {i: score for i, score in scores.items() if math.isfinite(score)}


@dataclass(frozen=True)
class _Study:
    factors: Sequence[Factor]
    values: dict[int, float]  # of the metric, by run
    seeds: dict[int, str]
    sign: float  # 1 if less is better
    noise: float
    confidence: float
    draws: int
    seed: int


def _effects(study: _Study) -> tuple[tuple[Effect, ...], tuple[Confounded, ...]]:
    found, lost = [], []
    for factor in study.factors:
        others = [other for other in study.factors if other is not factor]
        pairs = paired.pairs_of(factor, others, study.values, study.seeds)
        if not pairs:
            mixed = paired.confounders(factor, others, list(study.values))
            lost.append(Confounded(factor.label, mixed))
        for (before, after), runs in sorted(pairs.items()):
            found.append(_effect(study, factor, before, after, runs))
    return tuple(found), tuple(lost)


def _effect(
    study: _Study, factor: Factor, before: int, after: int, pairs: Sequence[tuple[int, int]]
) -> Effect:
    draw = Random(f"{study.seed} {factor.label} {before} {after}")
    changes = [study.values[b] - study.values[a] for a, b in pairs]
    interval = paired.bootstrap(changes, draw, study.confidence, study.draws)
    level = sum(abs(study.values[a]) for a, _ in pairs) / len(pairs)
    relative = interval.mean / level if level else 0.0
    verdict: paired.Verdict = "better" if study.sign * interval.mean < 0 else "worse"
    if interval.low is None or interval.high is None or interval.low <= 0 <= interval.high:
        verdict = "unclear"
    if interval.low is not None and abs(relative) <= study.noise:
        verdict = "tie"
    levels = factor.levels[before], factor.levels[after]
    return Effect(factor.label, *levels, interval, relative, verdict, tuple(pairs))


def _interactions(study: _Study) -> tuple[Interaction, ...]:
    """Differences of differences, over cells of four runs that are equal in all else."""
    found = []
    for first, second in combinations(study.factors, 2):
        rest = [f for f in study.factors if f is not first and f is not second]
        cells: dict[tuple[tuple[int, ...], str], dict[tuple[int, int], float]] = {}
        for run, value in study.values.items():
            place = tuple(f.level_of[run] for f in rest), study.seeds[run]
            level = first.level_of[run], second.level_of[run]
            cells.setdefault(place, {}).setdefault(level, value)
        for a, b in combinations(range(len(first.levels)), 2):
            for c, d in combinations(range(len(second.levels)), 2):
                corners = ((b, d), (a, d), (b, c), (a, c))
                changes = [
                    cell[b, d] - cell[a, d] - cell[b, c] + cell[a, c]
                    for cell in cells.values()
                    if all(corner in cell for corner in corners)
                ]
                if changes:
                    levels = first.levels[a], first.levels[b], second.levels[c], second.levels[d]
                    found.append(_interaction(study, first, second, levels, changes))
    return tuple(found)


def _interaction(
    study: _Study,
    first: Factor,
    second: Factor,
    levels: tuple[str, str, str, str],
    changes: Sequence[float],
) -> Interaction:
    draw = Random(f"{study.seed} {first.label} {second.label} {levels}")
    interval = paired.bootstrap(changes, draw, study.confidence, study.draws)
    level = sum(map(abs, study.values.values())) / len(study.values)
    sure = interval.low is not None and interval.high is not None
    clear = sure and not (interval.low or 0.0) <= 0 <= (interval.high or 0.0)
    over = abs(interval.mean) > study.noise * level
    return Interaction(first.label, second.label, levels, interval, clear and over)


@dataclass(frozen=True)
class Importance:
    """Share of the metric's variance that each factor explains, greatest first.

    It says how much a factor matters in this space of configs, not which way; effects say that.
    """

    metric: str
    shares: tuple[tuple[str, float], ...]
    used: tuple[int, ...]
    partial: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it. Any: JSON values."""
        return asdict(self)


def importance(
    state: State,
    rows: Rows,
    metric: str = "eval_loss",
    mode: Mode | None = None,
    at: At = "end",
    seed: int = 0,
) -> Importance:
    """Importance of hyperparameters by fANOVA (Hutter et al., ICML 2014), as Optuna computes it.

    Args:
        state, rows, metric, mode, at: As in `effects`.
        seed: Of the forest.

    Raises:
        OpError: optuna or scikit-learn is not installed, or fewer than four runs with values that
            differ can be compared.
    """
    try:
        optuna = import_module("optuna")
        import_module("sklearn")  # its forest is what Optuna grows
    except ImportError as error:
        raise OpError(
            f"importance needs the package {error.name}, which is not installed; run {_INSTALL}"
        ) from error
    runs = [r for r in state.runs.values() if r.status != "deleted" and not r.warm]
    check_logged(runs, rows, metric)
    scores = _finite(scores_of(runs, rows, metric, mode, where(runs, at)))
    used = [run for run in runs if run.id in scores]
    found = paired.factors(used)
    if len(used) < 4 or len(set(scores.values())) < 2 or not found:
        raise OpError(
            f"importance needs four runs whose configs and {metric} differ, there are {len(used)}; "
            "wait, or give at=, a fraction that more have reached"
        )
    spaces = {
        f.label: optuna.distributions.CategoricalDistribution(range(len(f.levels))) for f in found
    }
    optuna.logging.disable_default_handler()
    study = optuna.create_study()
    for run in used:
        params = {f.label: f.level_of[run.id] for f in found}
        trial = optuna.create_trial(params=params, distributions=spaces, value=scores[run.id])
        study.add_trial(trial)
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=seed)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    partial = tuple(run.id for run in used if run.status != "completed")
    return Importance(metric, tuple(shares.items()), tuple(run.id for run in used), partial)
