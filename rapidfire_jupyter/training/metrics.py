"""Metric values on their way into the log: what cannot be stored never reaches a checkpoint.

Any: whatever a user's compute_metrics or a trainer gives as a metric.
"""

import inspect
import math
import numbers
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Warn = Callable[[str], None]
_NO_MEASURE = ("runtime", "per_second", "num_tokens", "perplexity", "jit_compilation")


def safe_compute_metrics(
    function: Callable[..., Any] | None, warn: Warn
) -> Callable[..., Any] | None:
    """Wrap a user's compute_metrics: an exception costs this evaluation's metrics, not the run.

    Scalars of numpy and torch become floats; what is no number is left out, with one warning a key.
    """
    if function is None:
        return None
    warned: set[str] = set()

    def once(text: str) -> None:
        if text not in warned:
            warned.add(text)
            warn(text)

    def compute_metrics(*args: Any, **kwargs: Any) -> dict[str, float]:
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            warn(
                f"compute_metrics raised {error!r}; this evaluation has no metrics of it\n"
                f"{traceback.format_exc()}"
            )
            return {}
        if not isinstance(result, dict):
            once(
                f"compute_metrics must return a dict of numbers, got {type(result).__name__}; "
                "ignored"
            )
            return {}

        return clean_row(result, once)

    return compute_metrics


def judges_texts(function: Callable[..., Any] | None) -> bool:
    """Whether a compute_metrics is `(predictions, references) -> dict`, about texts.

    It has two parameters without defaults, or two of these names. TRL's own form has one; and with
    `batch_eval_metrics` a second one, `compute_result`.
    """
    if function is None:
        return False
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    if "compute_result" in parameters:
        return False
    named = (p for p in parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    needed = [p.name for p in named if p.default is p.empty]
    return len(needed) == 2 or {"predictions", "references"} <= parameters.keys()


def with_perplexity(row: dict[str, Any], trainer: Any, tasks: Iterable[str] = ()) -> dict[str, Any]:
    """A logged row with `eval_perplexity`, exp(eval_loss), where the loss is that of a token.

    Args:
        tasks: Names of eval sets, which get theirs too: `eval_code_perplexity`.
    """
    args = trainer.args
    plain = getattr(args, "loss_type", "") in ("nll", "chunked_nll")
    if not plain or args.label_smoothing_factor:
        return row
    found = {}
    for prefix in ("eval", *(f"eval_{task}" for task in tasks)):
        loss = as_number(row.get(f"{prefix}_loss"))
        if loss is not None:
            value = math.exp(loss) if loss < 700 else math.inf if loss == loss else loss
            found[f"{prefix}_perplexity"] = value
    return {**row, **{name: value for name, value in found.items() if name not in row}}


def of_all_tasks(by_task: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over tasks of each metric that all of them have: `eval_loss` of `eval_code_loss`.

    Every task counts the same, whatever its weight or size. What is no measure of a model, such as
    seconds, has no mean.

    Args:
        by_task: A row for each task, with its name in those of its metrics.
    """
    columns: dict[str, list[Any]] = {}
    for task, row in by_task.items():
        for name, value in row.items():
            if name.startswith(f"eval_{task}_"):
                whole = name.replace(f"eval_{task}_", "eval_", 1)
                columns.setdefault(whole, []).append(value)
    return {
        name: sum(values) / len(values)
        for name, values in columns.items()
        if len(values) == len(by_task)
        and not any(word in name for word in _NO_MEASURE)
        and all(as_number(value) is not None for value in values)
    }


def named(row: Mapping[str, Any], task: str) -> dict[str, Any]:
    """A row of a task's evaluation with its name in all metrics, also where TRL leaves it out."""
    return {
        f"eval_{task}_{name.removeprefix('eval_')}"
        if name.startswith("eval_") and not name.startswith(f"eval_{task}_")
        else name: value
        for name, value in row.items()
    }


def clean_row(row: dict[str, Any], warn: Warn) -> dict[str, Any]:
    """The numbers of a logged row as int and float; others are left out with a warning."""
    clean: dict[str, Any] = {}
    for key, value in row.items():
        number = as_number(value)
        if number is None:
            warn(f"metric {key!r} is a {type(value).__name__}, not a number; it was left out")
        else:
            clean[str(key)] = number
    return clean


def as_number(value: Any) -> float | int | None:
    """A plain number for one of python, numpy or torch (of one element); None for anything else."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    item = getattr(value, "item", None)
    if item is not None and getattr(value, "size", None) is not None and _elements(value) == 1:
        return as_number(item())
    return None


def _elements(value: Any) -> int:
    size = value.numel() if hasattr(value, "numel") else value.size
    return int(size) if isinstance(size, numbers.Integral) else 0
