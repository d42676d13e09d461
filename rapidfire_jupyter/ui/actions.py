"""What the panel is handed: the log, and functions for all it may ask of an experiment.

`Experiment` makes it; the panel knows neither the experiment nor the engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.events import EventLog
from rapidfire_jupyter.ops import OpHandle
from rapidfire_jupyter.state import State


class Standing(NamedTuple):
    """How an experiment stands in this kernel, see `Facts`."""

    status: str
    read_only: bool
    reason: str


class Reply(NamedTuple):
    """The answer to an `Ask`: what JSON holds, and bytes. Any: see `Ask`."""

    data: Mapping[str, Any]
    buffers: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Actions:
    """What may be seen and asked of one experiment. All of it returns at once.

    Attributes:
        order: Submits an op: kind, run, arguments as an `Order` has them.
        config: The live config of a run; None if this kernel does not have it.
        refusal: Why a clone of a run with this config cannot be warm; "" if it can.
        adapter: The newest weights of a run; None if there are none.
        answered: Whether runs are, or were, asked prompts at chunk ends.
        several: Whether a magic must name this experiment.
        more: Further questions that are answered, by name; their names are in `Head.can`.
    """

    name: str
    folder: Path
    log: EventLog
    state: Callable[[], State]
    standing: Callable[[], Standing]
    order: Callable[[str, int | None, Mapping[str, Any]], OpHandle]  # Any: JSON values
    config: Callable[[int], RunConfig | None]
    refusal: Callable[[int, RunConfig], str]
    adapter: Callable[[int], Path | None]
    several: Callable[[], bool]
    answered: Callable[[], bool] = lambda: False
    more: Mapping[str, Callable[[Mapping[str, Any]], Reply]] = field(default_factory=dict)
