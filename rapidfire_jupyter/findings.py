"""What policies and monitors found in an experiment, and what runs answered, as tables."""

from typing import TYPE_CHECKING, Any

from rapidfire_jupyter import samples
from rapidfire_jupyter.decisions import Decision, is_decision, of_event
from rapidfire_jupyter.errors import OpError
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


def answers(exp: "Experiment", chunk: int, score: str) -> "pd.DataFrame":
    """See `Experiment.samples`."""
    import pandas as pd

    known = samples.chunks(exp.events, exp.state)
    if not any(known.values()):
        raise OpError(
            "there are no answers yet: they come with the chunk ends of runs that have an "
            "eval_dataset with prompts and answers, unless generate_rows=0"
        )
    asked = samples.gather(exp.folder, known, chunk)
    if not asked:
        numbers = sorted({number for steps in known.values() for number in steps})
        raise OpError(
            f"there are no answers of chunk {chunk}; there are of {', '.join(map(str, numbers))}"
        )
    rows = []
    for one in asked:
        right = one.references[0] if len(one.references) == 1 else list(one.references)
        row: dict[str, Any] = {"prompt": one.prompt, "reference": right or None}
        for run in known:
            if run in one.predictions:
                row[f"run {run}"] = one.predictions[run]
                row[f"run {run} {score}"] = one.scores[run].get(score)
        rows.append(row)
    return pd.DataFrame(rows, index=pd.Index([one.row for one in asked], name="row"))
