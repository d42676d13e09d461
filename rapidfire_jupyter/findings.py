"""What policies and monitors found in an experiment, as tables of the user's."""

from typing import TYPE_CHECKING, Any

from rapidfire_jupyter.decisions import Decision, is_decision, of_event
from rapidfire_jupyter.events import Event

if TYPE_CHECKING:
    import pandas as pd

    from rapidfire_jupyter.experiment import Experiment


def decisions(exp: "Experiment") -> "pd.DataFrame":
    """See `Experiment.decisions`."""
    import pandas as pd

    events = exp.events
    start = events[0].time if events else 0.0
    rows = [
        _decision(event, one, start)
        for event in events
        if is_decision(event)
        for one in of_event(event)
    ]
    columns = ["seconds", "policy", "key", "op", "run", "reason", "judged", "dry_run"]
    table = pd.DataFrame(rows, columns=columns)
    return table.astype({"run": "Int64"})


def _decision(event: Event, one: Decision, start: float) -> dict[str, Any]:
    """A row. Any: what a table holds."""
    return {
        "seconds": round(event.time - start, 1),
        "policy": one.policy,
        "key": one.key,
        "op": "" if one.op is None else one.op.kind,
        "run": None if one.op is None else one.op.run,
        "reason": one.reason,
        "judged": list(one.runs),
        "dry_run": bool(event.data["dry_run"]),
    }


def alerts(exp: "Experiment") -> "pd.DataFrame":
    """See `Experiment.alerts`."""
    import pandas as pd

    events = exp.events
    start = events[0].time if events else 0.0
    rows = [
        {
            "seconds": round(event.time - start, 1),
            "run": event.run,
            "kind": event.data.get("kind", ""),
            "level": event.data.get("level", "error"),
            "step": event.data.get("step"),
            "text": event.data.get("text", ""),
            "remedies": [label for label, _, _ in event.data.get("remedies", ())],
        }
        for event in events
        if event.kind == "alert"
    ]
    columns = ["seconds", "run", "kind", "level", "step", "text", "remedies"]
    table = pd.DataFrame(rows, columns=columns)
    return table.astype({"run": "Int64", "step": "Int64"})
