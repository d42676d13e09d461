"""Metric values on their way into the log: what cannot be stored never reaches a checkpoint.

Any: whatever a user's compute_metrics or a trainer gives as a metric.
"""

import inspect
import math
import numbers
import traceback
from collections.abc import Callable
from typing import Any

Warn = Callable[[str], None]


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


def with_perplexity(row: dict[str, Any], trainer: Any) -> dict[str, Any]:
    """A logged row with `eval_perplexity`, exp(eval_loss), where the loss is that of a token."""
    loss = as_number(row.get("eval_loss"))
    args = trainer.args
    plain = getattr(args, "loss_type", "") in ("nll", "chunked_nll")
    if loss is None or not plain or args.label_smoothing_factor or "eval_perplexity" in row:
        return row
    return {
        **row,
        "eval_perplexity": math.exp(loss) if loss < 700 else math.inf if loss == loss else loss,
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
