"""What a metric's name tells: whether less of it is better."""

import re
from typing import Literal

from rapidfire_jupyter.errors import ConfigError

Mode = Literal["min", "max"]

# Parts of names of metrics of which less is better, and whole words in such names.
_LOW = ("loss", "perplexity", "error")
_LOW_WORDS = frozenset(("ter", "wer", "cer", "mse", "rmse", "mae"))


def lower_is_better(metric: str, mode: Mode | None = None) -> bool:
    """Whether a run with less of a metric is the better one: as `mode` says, else by its name.

    Raises:
        ConfigError: `mode` is none.
    """
    if mode not in (None, "min", "max"):
        raise ConfigError(f"mode is 'min' or 'max', whichever is better, got {mode!r:.40}")
    if mode is not None:
        return mode == "min"
    words = re.split(r"[^a-z0-9]+", metric.lower())
    return any(part in metric for part in _LOW) or not _LOW_WORDS.isdisjoint(words)
