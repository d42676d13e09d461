"""What a metric's name tells: whether less of it is better."""

import re
from typing import Literal

Mode = Literal["min", "max"]

# Parts of names of metrics of which less is better, and whole words in such names.
_LOW = ("loss", "perplexity", "error")
_LOW_WORDS = frozenset(("ter", "wer", "cer", "mse", "rmse", "mae"))


def lower_is_better(metric: str, mode: Mode | None = None) -> bool:
    """Whether a run with less of a metric is the better one: as `mode` says, else by its name."""
    if mode is not None:
        return mode == "min"
    words = re.split(r"[^a-z0-9]+", metric.lower())
    return any(part in metric for part in _LOW) or not _LOW_WORDS.isdisjoint(words)
