"""What an experiment shows: rankings, effects, comparisons, noise. As a user holds them.

Each is a `Finding`: prints as text, shows as a table in a notebook, gives a DataFrame and a plot.
What was computed is in `.result`, plain data of the pure modules.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rapidfire_jupyter import analysis, ranking
from rapidfire_jupyter import repeats as repeating
from rapidfire_jupyter.comparison import Mode, pick_metric, same_fraction
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.ledger import Ledger
from rapidfire_jupyter.ranking import At
from rapidfire_jupyter.state import ACTIVE

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from rapidfire_jupyter.experiment import Experiment
    from rapidfire_jupyter.runs import RunView


class Finding:
    """Something found out about an experiment.

    Attributes:
        result: Plain data: an `Effects`, a `Comparison`, a `Ranking`, ...; see its `to_dict()`.
    """

    def __init__(
        self,
        result: Any,  # Any: a frozen dataclass of ours
        title: str,
        rows: list[dict[str, Any]],  # Any: what a table holds
        notes: list[str],
        draw: "Callable[[], go.Figure]",
    ) -> None:
        self.result = result
        self.title = title
        self.notes = notes
        self._rows = rows
        self._draw = draw

    def to_frame(self) -> "pd.DataFrame":
        """The table as a DataFrame."""
        import pandas as pd

        return pd.DataFrame(self._rows)

    def figure(self) -> "go.Figure":
        """A plot of it. Needs the package plotly.

        Raises:
            OpError: plotly is not installed.
        """
        return self._draw()

    def __repr__(self) -> str:
        table = self.to_frame().to_string(index=False, na_rep="") if self._rows else "nothing"
        return "\n".join([self.title, table, *self.notes])

    def _repr_html_(self) -> str:
        from html import escape

        table = self.to_frame().to_html(index=False, na_rep="", escape=True) if self._rows else ""
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f"<p><b>{escape(self.title)}</b></p>{table}{notes}"


def known(exp: "Experiment") -> Ledger:
    """What the log says."""
    return Ledger().read(exp.events)


def effects(
    exp: "Experiment",
    metric: str | None,
    mode: Mode | None = None,
    at: At | None = None,
    noise: float | None = None,
    seed: int = 0,
) -> Finding:
    """See `Experiment.effects`."""
    from rapidfire_jupyter.ui import findings as drawing

    ledger, at = known(exp), _where_all_are(exp) if at is None else at
    metric = pick_metric(ledger.rows, metric)
    if noise is None:
        measured, runs = repeating.noise_floor(exp.state, ledger.rows, metric, mode)
        noise = measured if runs else None
    found = analysis.effects(exp.state, ledger.rows, metric, mode, at, noise=noise, seed=seed)
    rows = [
        {
            "hyperparameter": one.factor,
            "from": one.before,
            "to": one.after,
            "difference": one.difference.mean,
            "low": one.difference.low,
            "high": one.difference.high,
            "relative": one.relative,
            "verdict": one.verdict,
            "pairs": one.difference.count,
        }
        for one in found.effects
    ]
    notes = [
        f"interaction of {i.first} and {i.second}: going {i.levels[0]} → {i.levels[1]} differs by "
        f"{i.difference.mean:.3g} between {i.levels[2]} and {i.levels[3]}"
        for i in found.interactions
        if i.clear
    ]
    notes += [
        f"{one.factor} cannot be separated: {', '.join(one.changes_with)} always changed with it"
        for one in found.confounded
    ]
    notes += _partial(found.partial)
    notes.append(_noise_note(found.noise, found.noise_runs or (0 if noise is None else -1)))
    title = f"effects on {metric} at {found.at:.0%} of the schedule, {len(found.used)} runs"
    return Finding(found, title, rows, notes, lambda: drawing.effects(found.to_dict()))


def _where_all_are(exp: "Experiment") -> At:
    """The end if all runs have, else the fraction that all that trained have reached.

    What is left of a grid in which policies stopped runs is no fair sample of it.
    """
    runs = [r for r in exp.state.runs.values() if r.status != "deleted" and not r.warm]
    if all(r.status in ("completed", "failed") for r in runs):
        return "end"
    return same_fraction([r for r in runs if r.chunk and r.status != "failed"])


def _partial(runs: tuple[int, ...]) -> list[str]:
    if not runs:
        return []
    return [
        f"partial: runs {', '.join(map(str, runs))} had not finished; of them it is known how "
        "they stood there, no more"
    ]


def _noise_note(noise: float, runs: int) -> str:
    source = "measured on runs with other seeds" if runs else "assumed; see exp.repeatability"
    return f"differences of up to {100 * noise:.2g} % are a tie ({source})"


def importance(exp: "Experiment", metric: str | None, mode: Mode | None, at: At | None) -> Finding:
    """See `Experiment.importance`."""
    from rapidfire_jupyter.ui import findings as drawing

    ledger, at = known(exp), _where_all_are(exp) if at is None else at
    metric = pick_metric(ledger.rows, metric)
    found = analysis.importance(exp.state, ledger.rows, metric, mode, at)
    rows = [{"hyperparameter": name, "importance": share} for name, share in found.shares]
    title = f"importance for {metric} (fANOVA), {len(found.used)} runs"
    return Finding(
        found, title, rows, _partial(found.partial), lambda: drawing.importance(found.to_dict())
    )


def compare(
    exp: "Experiment", first: int, second: int, metric: str | None, mode: Mode | None
) -> Finding:
    """See `Experiment.compare`."""
    from rapidfire_jupyter.ui import findings as drawing
    from rapidfire_jupyter.ui.fold import Fold

    ledger = known(exp)
    metric = pick_metric(ledger.rows, metric)
    noise, runs = repeating.noise_floor(exp.state, ledger.rows, metric, mode)
    found = ranking.compare(
        exp.state, ledger.rows, first, second, metric, mode, noise, ledger.measures
    )
    names = [f"run {first}", f"run {second}"]
    rows: list[dict[str, Any]] = [{"": metric, **dict(zip(names, found.values, strict=True))}]
    rows += [{"": key, names[0]: a, names[1]: b} for key, a, b in found.differences]
    between = ""
    if found.low is not None and found.high is not None:
        between = f" (95 %: {found.low:.3g} to {found.high:.3g}, {found.pairs} pairs)"
    if found.better is None:
        verdict = f"it is a tie: {metric} differs by {found.difference:.3g}{between}"
    else:
        verdict = f"run {found.better} is better: {metric} differs by {found.difference:.3g}"
        verdict += between
    notes = [verdict, *found.notes, *_partial(found.partial), _noise_note(noise, runs)]
    title = f"run {first} and run {second} at {found.at:.0%} of their schedules"
    events = exp.events
    return Finding(
        found,
        title,
        rows,
        notes,
        lambda: drawing.curves(Fold().read(events), metric, (first, second)),
    )


def rank(exp: "Experiment", metric: str | None, mode: Mode | None, at: At | None) -> Finding:
    """See `Experiment.ranking`."""
    from rapidfire_jupyter.ui import findings as drawing

    ledger = known(exp)
    metric = pick_metric(ledger.rows, metric)
    noise, runs = repeating.noise_floor(exp.state, ledger.rows, metric, mode)
    found = _ranked(exp, ledger, metric, mode, at, noise)
    rows = [
        {
            "rank": one.rank,
            "run": one.run,
            "name": one.name,
            metric: one.value,
            "trained": f"{100 * one.progress:.0f} %",
            "partial": one.partial,
            "tie with first": one.tie,
            "why not": one.reason,
        }
        for one in found.places
    ]
    title = f"runs by {metric} at {found.at:.0%} of their schedules"
    notes = [_noise_note(noise, runs)]
    return Finding(found, title, rows, notes, lambda: drawing.ranking(found.to_dict()))


def _ranked(
    exp: "Experiment",
    ledger: Ledger,
    metric: str,
    mode: Mode | None,
    at: At | None,
    noise: float,
) -> ranking.Ranking:
    """At a given place; else at the end if all is done, at the same fraction while runs train."""
    state = exp.state
    if at is not None:
        return ranking.rank(state, ledger.rows, metric, mode, at, noise, ledger.measures)
    training = any(run.status in ACTIVE for run in state.runs.values())
    ranking.check_logged(list(state.runs.values()), ledger.rows, metric)
    for place in ("same_fraction", "end") if training else ("end", "same_fraction"):
        try:
            found = ranking.rank(state, ledger.rows, metric, mode, place, noise, ledger.measures)
        except OpError:  # nothing was trained as far
            continue
        if found.best is not None:
            return found
    raise OpError(
        f"no two places of {metric} can be compared yet: no run has finished, and not all have a "
        "value at a same fraction; wait, or give at="
    )


def best(exp: "Experiment", metric: str | None, mode: Mode | None, at: At | None) -> "RunView":
    """See `Experiment.best`."""
    found = rank(exp, metric, mode, at).result
    if found.best is None:
        reasons = "; ".join(f"run {p.run}: {p.reason}" for p in found.places[:3])
        raise OpError(f"no run can be ranked by {found.metric} there: {reasons}")
    return exp.run(found.best)


class Repeatability:
    """One config with several seeds: how far chance alone takes it, as it is known now.

    Attributes:
        runs: Ids of its runs, the one that was repeated first.
    """

    def __init__(self, exp: "Experiment", runs: list[int], metric: str | None) -> None:
        self._exp, self._metric, self.runs = exp, metric, tuple(runs)

    def wait(self, timeout: float | None = None) -> "Repeatability":
        """Wait until its runs are done.

        Raises:
            TimeoutError: `timeout` seconds have passed.
        """
        for run in self.runs:
            self._exp.run(run).wait(timeout)
        return self

    @property
    def spread(self) -> float | None:
        """Relative standard deviation; None before two runs have a value."""
        spread: float | None = self.finding().result.spread
        return spread

    def finding(self) -> Finding:
        """All of it: a table, the spread in words, the curves."""
        from rapidfire_jupyter.ui import findings as drawing
        from rapidfire_jupyter.ui.fold import Fold

        ledger, runs, events = known(self._exp), self._exp.state.runs, self._exp.events
        found = repeating.repeats([runs[i] for i in self.runs], ledger.rows, self._metric)
        rows = [
            {
                "run": i,
                "seed": _seed(runs[i].config, self._exp),
                "status": runs[i].status,
                found.metric: found.values.get(i),
            }
            for i in self.runs
        ]
        note = "the spread is not known yet: wait() until its runs have trained a chunk"
        if found.spread is not None:
            note = (
                f"relative standard deviation {100 * found.spread:.2g} %: what differs by less is "
                "a tie to effects, rankings and policies"
            )
        title = f"{found.metric} of one config with {len(self.runs)} seeds, at {found.at:.0%}"
        return Finding(
            found,
            title,
            rows,
            [note],
            lambda: drawing.curves(Fold().read(events), found.metric, self.runs),
        )

    def to_frame(self) -> "pd.DataFrame":
        """The table as a DataFrame."""
        return self.finding().to_frame()

    def figure(self) -> "go.Figure":
        """The curves of its runs. Needs the package plotly."""
        return self.finding().figure()

    def __repr__(self) -> str:
        return repr(self.finding())

    def _repr_html_(self) -> str:
        return self.finding()._repr_html_()


def _seed(config: Mapping[str, Any], exp: "Experiment") -> Any:  # Any: JSON values
    own = (config.get(name) for name in ("seed", "training_args.seed"))
    return next((s for s in own if s is not None), (exp.state.fit or {}).get("seed"))


def repeatability(exp: "Experiment", run: Any, k: int, metric: str | None) -> Repeatability:
    """See `Experiment.repeatability`. Any: a run's id, a run, or a config."""
    from rapidfire_jupyter.errors import ConfigError

    if isinstance(k, bool) or not isinstance(k, int) or k < 2:
        raise ConfigError(f"k must be a whole number >= 2, got {k!r}: a spread needs two runs")
    first = exp.run(_run_of(exp, run))
    if first.facts.warm:
        raise OpError(
            f"run {first.id} is a warm clone: its weights are in part another config's; repeat "
            f"run {first.parent}, or a cold clone"
        )
    start = int(_seed(first.config, exp))
    ids = [first.id]
    for number in range(1, k):
        seed, name = (start + number) % 2**32, f"repeat {number} of run {first.id}"
        handle = exp.clone(first.id, {"seed": seed}, name=name).wait()
        assert handle.run_id is not None
        ids.append(handle.run_id)
    return Repeatability(exp, ids, metric)


def _run_of(exp: "Experiment", given: Any) -> int:
    """Id of what a user named. Any: a run's id, a run, or a config."""
    from rapidfire_jupyter.config import RFModelConfig, RunConfig
    from rapidfire_jupyter.encoding import same_key

    if isinstance(given, RFModelConfig | RunConfig):
        configs = exp._fit.configs if exp._fit is not None else {}
        for number, config in configs.items():
            wanted = given
            if isinstance(wanted, RFModelConfig):
                wanted = wanted.build(trainer_type=config.trainer_type)
            if same_key(wanted) == same_key(config):
                return number
        raise OpError(
            "no run has this config; a config is repeated once it is among those of run_fit, or "
            "give the run's id"
        )
    return getattr(given, "id", given)  # type: ignore[no-any-return]
