"""Monitors: what goes wrong in runs, found in their logged rows and in what was measured.

`look` is pure and tells of all episodes there were, each with a key of its own; whoever tells a
person keeps the keys told already (`new`). The defaults are meant to stay silent on healthy runs:
noise, warm-up and decay are no faults. Each monitor's settings are in `learning_faults` or
`machine_faults`, beside what it does.
"""

from collections.abc import Collection, Iterable, Sequence

from rapidfire_jupyter import learning_faults, machine_faults
from rapidfire_jupyter.alerts import Alert
from rapidfire_jupyter.comparison import Rows
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.learning_faults import (
    Deviation,
    EmptyBatches,
    NonFinite,
    Overfitting,
    Plateau,
    RowMonitor,
    Spike,
)
from rapidfire_jupyter.machine_faults import IdleDevice, LowDisk, MemoryGrowth, Slowdown
from rapidfire_jupyter.measures import Measures
from rapidfire_jupyter.state import Run, State

Monitor = RowMonitor | MemoryGrowth | Slowdown | IdleDevice | LowDisk
DEFAULT: tuple[Monitor, ...] = (
    NonFinite(),
    Spike(),
    Deviation(),
    Plateau(),
    Overfitting(),
    EmptyBatches(),
    MemoryGrowth(),
    Slowdown(),
    IdleDevice(),
    LowDisk(),
)


def look(
    monitors: Sequence[Monitor],
    state: State,
    rows: Rows,
    measures: Measures | None = None,
) -> list[Alert]:
    """All that the monitors find, once for each episode so far, by run.

    Args:
        monitors: Their settings; one kind may be there twice, under other names.
        state: Of the experiment.
        rows: Logged rows by run, as `state.history` gives them.
        measures: What was measured beside the rows.
    """
    known = measures if measures is not None else Measures()
    found: list[Alert] = []
    for run in state.runs.values():
        if run.status == "deleted":
            continue
        own = rows.get(run.id, ())
        slices = [s for s in known.slices if s.run == run.id]
        for one in monitors:
            if isinstance(one, MemoryGrowth):
                found += machine_faults.memory(one, run, slices)
            elif isinstance(one, Slowdown):
                found += machine_faults.slowdown(one, run, slices, known.slices)
            elif isinstance(one, IdleDevice):
                found += machine_faults.idle(one, run, slices)
            elif not isinstance(one, LowDisk):
                found += learning_faults.find(one, run, own)
    for one in monitors:
        if isinstance(one, LowDisk):
            found += machine_faults.disk(one, known.disk)
    return found


def look_meanwhile(
    monitors: Sequence[Monitor], run: Run, measures: Measures, open_s: float
) -> list[Alert]:
    """What they find of a run while its slice trains, which has taken `open_s` seconds so far."""
    slices = [s for s in measures.slices if s.run == run.id]
    found: list[Alert] = []
    for one in monitors:
        if isinstance(one, Slowdown):
            found += machine_faults.stalled(one, run, slices, open_s)
    return found


def new(alerts: Iterable[Alert], told: Collection[str]) -> list[Alert]:
    """Alerts whose keys were not told yet, each key once."""
    return list({alert.key: alert for alert in alerts if alert.key not in told}.values())


def check(monitors: Sequence[Monitor]) -> tuple[Monitor, ...]:
    """Monitors as `run_fit` takes them.

    Raises:
        ConfigError: One is none, or two have the same kind.
    """
    classes = tuple(type(one) for one in DEFAULT)
    for one in monitors:
        if not isinstance(one, classes):
            known = ", ".join(cls.__name__ for cls in classes)
            raise ConfigError(f"monitors takes {known}; got {one!r}; write monitors=[Spike()]")
    kinds = [one.kind for one in monitors]
    twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
    if twice:
        raise ConfigError(f"monitors need kinds of their own, got {twice[0]!r} twice; set kind=")
    return tuple(monitors)
