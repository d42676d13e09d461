"""What runs logged and answered, and what policies and monitors found, as tables."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rapidfire_jupyter import policies as deciding
from rapidfire_jupyter import repeats, samples, switches
from rapidfire_jupyter.decisions import Decision, is_decision, is_old, of_event
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.ledger import Ledger
from rapidfire_jupyter.oversight import Oversight

if TYPE_CHECKING:
    import pandas as pd

    from rapidfire_jupyter.experiment import Experiment


def results(exp: "Experiment") -> "pd.DataFrame":
    """See `Experiment.results`."""
    import pandas as pd

    runs = [r for r in exp.runs if r.status != "deleted"]
    frames = [r.history.assign(run=r.id, name=r.name) for r in runs]
    frames = [f for f in frames if len(f)]
    first = ["run", "name", "step", "chunk"]
    if not frames:
        return pd.DataFrame(columns=first)
    table = pd.concat(frames, ignore_index=True)
    return table[first + [c for c in table.columns if c not in first]]


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


def policies(exp: "Experiment") -> "pd.DataFrame":
    """See `Experiment.policies`."""
    import pandas as pd

    rows = [
        {
            "policy": one.key,
            "mode": one.mode,
            "settings": one.missing if one.policy is None else switches.in_words(one.policy),
            "done": done(exp, one)[0],
            "would do": "; ".join(would(exp, one)),
        }
        for one in switched(exp)
    ]
    return pd.DataFrame(rows).set_index("policy")


def switched(exp: "Experiment") -> list[switches.Switch]:
    """All policies with their modes; those of the log where `run_fit` was not called here."""
    found = switches.all_of(_oversight(exp), exp.state)
    if exp._fit is not None or exp._ended is not None:
        return found
    given = exp.state.overseen.get("policies", ())
    return [
        replace(one, mode=exp.state.policy(one.key)["mode"], given=one.key in given)
        for one in found
    ]


def switch(exp: "Experiment", name: Any, mode: Any, settings: Any) -> dict[str, Any]:
    """The arguments of the op that switches a policy, checked. Any: what a user gave.

    Raises:
        ConfigError: It cannot be switched so.
    """
    known = exp.state.policy(switches.key_of(name))["settings"]
    merged = {**known, **settings}
    key = switches.check(_oversight(exp), name, mode, merged)
    return {"name": key, "mode": mode, "settings": encode(merged) if settings else None}


def would(exp: "Experiment", one: switches.Switch) -> list[str]:
    """What a policy would do now if it were on, in words. It changes nothing."""
    if one.policy is None:
        return []
    state, known = exp.state, Ledger().read(exp.events)
    noise, _ = repeats.noise_floor(state, known.rows)
    (asked,) = repeats.calibrated([one.policy], noise)
    seed = int((state.fit or {}).get("seed", 0))
    found = deciding.decide(asked, state, known.rows, known.memory, known.measures, seed)
    return [deciding.in_words(d) for d in found if d.op is not None and not is_old(d, known.memory)]


def done(exp: "Experiment", one: switches.Switch) -> tuple[str, list[tuple[float, str]]]:
    """What a policy has done so far, counted, and its decisions in words with their Unix times."""
    counts: dict[str, int] = {}
    told: list[tuple[float, str]] = []
    for event in exp.events if one.policy is not None else ():
        for decision in of_event(event):
            if one.policy is None or not switches.owns(one.policy, decision):
                continue
            dry = "dry run: " if event.data["dry_run"] else ""
            told.append((event.time, dry + deciding.in_words(decision)))
            if decision.op is not None:
                name = f"{'would ' if dry else ''}{decision.op.kind}"
                counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{kind} {count}" for kind, count in counts.items()), told


def _oversight(exp: "Experiment") -> Oversight:
    fit = exp._fit or exp._ended
    return fit.oversight if fit is not None else Oversight()


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
        row: dict[str, Any] = {"task": one.task} if one.task else {}
        row |= {"prompt": one.prompt, "reference": right or None}
        for run in known:
            if run in one.predictions:
                row[f"run {run}"] = one.predictions[run]
                row[f"run {run} {score}"] = one.scores[run].get(score)
        rows.append(row)
    return pd.DataFrame(rows, index=pd.Index([one.row for one in asked], name="row"))
