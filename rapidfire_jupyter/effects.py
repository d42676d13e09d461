"""What each hyperparameter did: paired differences over otherwise equal configs, with intervals.

A grid on the same rows and seeds is a designed experiment: two runs that differ in one thing only
are a pair, and the differences of all pairs are its effect. Hyperparameters that always change
together are one factor; what has no pair at all is said to be confounded, not guessed.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from random import Random
from statistics import NormalDist, fmean
from typing import Any, Literal

from rapidfire_jupyter.comparison import NOISE, deviation
from rapidfire_jupyter.encoding import name_of
from rapidfire_jupyter.repeats import SEEDS
from rapidfire_jupyter.state import Run

Verdict = Literal["better", "worse", "tie", "unclear"]
Config = Mapping[str, Any]  # Any: JSON values
Scores = Mapping[int, float]

_NO_FACTORS = ("name",)
_FEW = 8  # values; with fewer a bootstrap interval is too narrow


@dataclass(frozen=True)
class Factor:
    """Hyperparameters that vary together, and their levels.

    Attributes:
        names: By dotted name; more than one if they always change together.
        levels: In words, ascending where they are numbers.
        level_of: Level by run.
    """

    names: tuple[str, ...]
    levels: tuple[str, ...]
    level_of: Mapping[int, int]

    @property
    def label(self) -> str:
        """Short names, joined."""
        return " + ".join(name.rpartition(".")[2] for name in self.names)


@dataclass(frozen=True)
class Interval:
    """A mean and its bootstrap interval; without one (`low` is None) there are too few to tell."""

    mean: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True)
class Effect:
    """What going from one level of a factor to another did to the metric.

    Attributes:
        factor: Label of the factor.
        before, after: The two levels.
        difference: Of the metric, after minus before.
        relative: The mean difference, relative to the metric before.
        verdict: "tie" is within the noise floor, "unclear" an interval that holds both signs.
        pairs: Runs that were paired, before and after.
    """

    factor: str
    before: str
    after: str
    difference: Interval
    relative: float
    verdict: Verdict
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Interaction:
    """By how much the effect of one factor differs between two levels of another.

    Attributes:
        first, second: Labels of the factors.
        levels: Of the first, before and after; of the second, before and after.
        difference: Effect of the first at the second's `after`, minus that at its `before`.
        clear: The interval does not hold 0, and the mean is over the noise floor.
    """

    first: str
    second: str
    levels: tuple[str, str, str, str]
    difference: Interval
    clear: bool


@dataclass(frozen=True)
class Confounded:
    """A factor without a single pair: some other factor always changed with it."""

    factor: str
    changes_with: tuple[str, ...]


@dataclass(frozen=True)
class Effects:
    """All effects of one metric.

    Attributes:
        mode: Which way is better.
        at: Fraction of the schedule at which runs were compared.
        noise: Relative difference that counts as a tie; `noise_runs` is from how many runs that
            differ by seed only it was measured, 0 if it was given.
        used: Runs that were compared.
        partial: Those of them that had not finished: of them it is known how they stood, no more.
        left_out: Runs without a value there.
    """

    metric: str
    mode: Literal["min", "max"]
    at: float
    effects: tuple[Effect, ...]
    interactions: tuple[Interaction, ...]
    confounded: tuple[Confounded, ...]
    noise: float
    noise_runs: int
    used: tuple[int, ...]
    partial: tuple[int, ...]
    left_out: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it. Any: JSON values."""
        return asdict(self)


# ---- factors ----


def factors(runs: Sequence[Run]) -> list[Factor]:
    """What varies among runs; hyperparameters with the same partition of the runs are one factor.

    Seeds are no factor: runs that differ by seed only are repetitions.
    """
    names = dict.fromkeys(name for run in runs for name in run.config)
    grouped: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        if name in _NO_FACTORS or name in SEEDS:
            continue
        texts = [_text(run.config.get(name)) for run in runs]
        seen: dict[str, int] = {}
        partition = tuple(seen.setdefault(text, len(seen)) for text in texts)
        if len(seen) > 1:
            grouped.setdefault(partition, []).append(name)
    return [_factor(runs, names) for names in grouped.values()]


def _factor(runs: Sequence[Run], names: Sequence[str]) -> Factor:
    values = {run.id: tuple(run.config.get(name) for name in names) for run in runs}
    texts = {i: _text(list(value)) for i, value in values.items()}
    ordered = sorted({texts[i]: value for i, value in values.items()}.items(), key=_order)
    place = {text: n for n, (text, _) in enumerate(ordered)}
    levels = tuple(", ".join(_short(one) for one in value) for _, value in ordered)
    return Factor(tuple(names), levels, {i: place[text] for i, text in texts.items()})


def _order(item: tuple[str, tuple[Any, ...]]) -> tuple[bool, float, str]:
    """Numbers first, ascending. Any: JSON values."""
    text, value = item
    first = value[0]
    number = isinstance(first, int | float) and not isinstance(first, bool)
    return not number, float(first) if number else 0.0, text


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _short(value: Any) -> str:  # Any: JSON values
    if isinstance(value, dict):
        value = name_of(value) or value
    if isinstance(value, float):
        return f"{value:g}"
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


# ---- pairs ----


def pairs_of(
    factor: Factor, others: Sequence[Factor], scores: Scores, seeds: Mapping[int, str]
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Runs that differ in one factor only, by the two levels.

    Repetitions are paired by their seed where both have it, else each with each.
    """
    cells: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for run in scores:
        rest = tuple(other.level_of[run] for other in others)
        cells.setdefault(rest, {}).setdefault(factor.level_of[run], []).append(run)
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for cell in cells.values():
        for before, after in combinations(sorted(cell), 2):
            pairs = [(a, b) for a in cell[before] for b in cell[after]]
            same = [(a, b) for a, b in pairs if seeds[a] == seeds[b]]
            found.setdefault((before, after), []).extend(same or pairs)
    return found


def seeds_of(runs: Iterable[Run]) -> dict[int, str]:
    """What seeds a run was given, as text."""
    return {r.id: _text([r.config.get(name) for name in SEEDS]) for r in runs}


def confounders(factor: Factor, others: Sequence[Factor], runs: Sequence[int]) -> tuple[str, ...]:
    """The fewest other factors that change where this one does."""
    best: tuple[str, ...] = tuple(other.label for other in others)
    for a, b in combinations(runs, 2):
        if factor.level_of[a] != factor.level_of[b]:
            changed = tuple(o.label for o in others if o.level_of[a] != o.level_of[b])
            best = min(best, changed, key=len)
    return best


def measured_noise(
    found: Sequence[Factor], scores: Scores, given: float | None
) -> tuple[float, int]:
    """Relative standard deviation of runs that differ by seed only, and from how many runs.

    Pooled over the configs that were repeated. Without any, what was given, else `NOISE`.
    """
    cells: dict[tuple[int, ...], list[float]] = {}
    for run, score in scores.items():
        cells.setdefault(tuple(f.level_of[run] for f in found), []).append(score)
    repeated = [values for values in cells.values() if len(values) > 1]
    if given is not None or not repeated:
        return (NOISE if given is None else given), 0
    squares = sum((v - fmean(values)) ** 2 for values in repeated for v in values)
    freedom = sum(len(values) - 1 for values in repeated)
    level = fmean(abs(v) for values in repeated for v in values)
    return math.sqrt(squares / freedom) / (level or 1.0), sum(map(len, repeated))


# ---- intervals ----


def bootstrap(
    values: Sequence[float], draw: Random, confidence: float = 0.95, draws: int = 2000
) -> Interval:
    """The expanded percentile interval of a mean; none with fewer than three values.

    Percentile intervals of few values are too narrow. As in Hesterberg, "What Teachers Should Know
    About the Bootstrap" (The American Statistician 69, 2015, section 3), the percentiles taken are
    further out, at Phi(-sqrt(n / (n - 1)) t), with t of n - 1 degrees of freedom. Even so no bound
    can be beyond the values, so with fewer than eight it is Student's where that is wider.
    """
    count = len(values)
    mean = fmean(values)
    if count < 3:
        return Interval(mean, None, None, count)
    means = sorted(fmean(draw.choices(values, k=count)) for _ in range(draws))
    t = _t_quantile(0.5 + confidence / 2, count - 1)
    tail = NormalDist().cdf(-math.sqrt(count / (count - 1)) * t)
    low = means[math.floor(tail * (draws - 1))]
    high = means[math.ceil((1 - tail) * (draws - 1))]
    if count < _FEW:
        half = t * deviation(values) / math.sqrt(count)
        low, high = min(low, mean - half), max(high, mean + half)
    return Interval(mean, low, high, count)


def _t_quantile(probability: float, freedom: int) -> float:
    """Student's t, by the expansion of Abramowitz & Stegun 26.7.5; exact for 2 degrees."""
    if freedom == 2:
        p = 2 * probability - 1
        return p * math.sqrt(2 / (1 - p * p))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + math.fsum(term / freedom ** (n + 1) for n, term in enumerate(terms))
