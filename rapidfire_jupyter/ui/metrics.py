"""What metrics tell: which rank runs and in what sense, and which to look at first."""

import math
from collections.abc import Collection, Iterable, Mapping

from rapidfire_jupyter.metric import lower_is_better as lower_is_better
from rapidfire_jupyter.state import ACTIVE, Run

# Parts of names of metrics that rank no run: they tell of the schedule, the data or the machine.
_UNRANKED = (
    *("learning_rate", "grad_norm", "num_tokens", "runtime", "per_second", "flos", "entropy"),
    *("logits", "logps", "step_time", "rewards/chosen", "rewards/rejected", "reward_std"),
    *("completions/", "clip_ratio", "sampling/", "frac_reward", "tokens/", "epoch"),
    "generated_tokens",
)
_UNRANKED_LAST = ("kl", "std", "time")  # the last part of a name
# The order in which metrics are offered; evaluations of a metric follow it.
_FIRST = (
    *("reward", "loss", "train_loss", "rewards/accuracies", "rewards/margins"),
    *("bleu", "rougeL", "chrf", "exact_match"),
)
MOST_SHOWN = 6  # columns of a table on a page


def ranks(metric: str) -> bool:
    """Whether this metric says which run is better at all."""
    last = metric.removeprefix("eval_").rpartition("/")[2]
    return last not in _UNRANKED_LAST and not any(word in metric for word in _UNRANKED)


def by_use(metrics: Iterable[str]) -> list[str]:
    """The order in which to offer metrics: the goal, what ranks runs, what only describes them."""

    def place(metric: str) -> tuple[int, bool]:
        name = metric.removeprefix("eval_")
        known = _FIRST.index(name) if name in _FIRST else len(_FIRST) + (not ranks(name))
        return known, metric != name

    return sorted(metrics, key=place)


def comparable(runs: Iterable[Run]) -> set[int]:
    """Runs of which one may be called the best: what finished, once any has.

    Before, those that go on; a run that was stopped early is never ranked as if it had finished.
    """
    alive = [run for run in runs if run.status != "deleted"]
    done = {run.id for run in alive if run.status == "completed"}
    going = {run.id for run in alive if run.status in ACTIVE}
    return done or going or {run.id for run in alive}


def best_run(last: Mapping[int, Mapping[str, float]], metric: str) -> int | None:
    """The run with the best last value of a metric; NaN never is, ties go to the lower id."""
    known = {i: v[metric] for i, v in last.items() if metric in v and not math.isnan(v[metric])}
    if not known:
        return None
    sign = 1.0 if lower_is_better(metric) else -1.0
    return min(known, key=lambda i: (sign * known[i], i))


def best_runs(
    last: Mapping[int, Mapping[str, float]], metrics: Iterable[str], among: Collection[int]
) -> dict[str, int]:
    """The best run by metric, where there is something to choose: two runs that logged it.

    Args:
        last: Last values by run.
        metrics: To look at.
        among: Runs that may be called the best, see `comparable`.
    """
    found = {}
    chosen = {i: values for i, values in last.items() if i in among}
    for metric in metrics:
        best = best_run(chosen, metric) if ranks(metric) else None
        if best is not None and sum(metric in values for values in last.values()) > 1:
            found[metric] = best
    return found


def columns(metrics: Iterable[str]) -> list[str]:
    """Metrics that a table shows: those that say which run is better, the first of them."""
    known = [m for m in by_use(metrics) if ranks(m)]
    return [m for m in known if m in _FIRST or m.startswith("eval_")][:MOST_SHOWN]
