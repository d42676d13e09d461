"""The lines of the events tab: what happened, in words."""

from typing import Any, Literal

from rapidfire_jupyter.events import Event
from rapidfire_jupyter.ui.wire import Entry

_VERBS = {
    "stop": "stopped",
    "resume": "resumed",
    "boost": "boosted",
    "mix": "mixed anew",
    "clone": "cloned",
    "delete": "deleted",
    "undelete": "brought back",
    "pause_all": "training paused",
    "resume_all": "training goes on",
    "policy": "policy",
}


def entry(event: Event, first_time: float) -> Entry | None:
    """The line of an event; None for events that are too many or too small for one.

    Args:
        event: Of any kind.
        first_time: Unix time of the experiment's first event.
    """
    told = _text(event)
    if told is None:
        return None
    text, level = told
    op = event.kind == "op"
    return {
        "seq": event.seq,
        "time": round(event.time - first_time, 3),
        "kind": event.kind,
        "run": event.run,
        "text": text,
        "level": level,
        "op": str(event.data["kind"]) if op else "",
        "outcome": str(event.data["outcome"]) if op else "",
        "policy": _policy(event),
        "remedies": [
            {"label": str(label), "kind": str(kind), "args": dict(args)}
            for label, kind, args in event.data.get("remedies", ())
        ],
    }


def _text(event: Event) -> tuple[str, Literal["info", "alert", "error"]] | None:
    data, run = event.data, f"run {event.run}"
    if event.kind == "op":
        return _op_text(event)
    if event.kind == "alert":
        where = f"{run}: " if event.run is not None else ""
        return where + str(data.get("text", "")).partition("\n")[0], "alert"
    if event.kind == "decisions":
        return _decided(data)
    if event.kind in ("note", "cost"):
        return str(data["text"]), "info"
    if event.kind == "eval_thinned":
        return (str(data["text"]), "alert") if data.get("text") else None
    if event.kind == "run_failed":
        return f"{run} failed: {data['error']}", "error"
    if event.kind == "run_inexact":
        return f"{run} may differ from plain TRL: {data['reason']}", "alert"
    if event.kind == "run_completed":
        note = f"; {data['note']}" if data.get("note") else ""
        return f"{run} is completed, at step {data['step']}{note}", "info"
    if event.kind == "run_adjusted":
        changes = ", ".join(f"{k.rpartition('.')[2]}={v}" for k, v in data["changes"].items())
        return f"{run} goes on with {changes}, to fit into memory", "info"
    if event.kind == "run_recovered":
        return f"{run} goes on from its checkpoint of step {data['step']}", "info"
    if event.kind == "run_prepared" and data.get("notes"):
        return f"{run}: {'; '.join(map(str, data['notes']))}", "info"
    if event.kind == "fit_started":
        return f"training of {len(data['runs'])} runs started", "info"
    if event.kind == "overseen":
        names = "; ".join(data["policies"].values()) or "none"
        return f"policies: {names}{' (dry run)' if data['dry_run'] else ''}", "info"
    if event.kind == "attached":
        return "training goes on in this kernel", "info"
    if event.kind == "ended":
        return "the experiment was ended", "info"
    return None


def _policy(event: Event) -> str:
    if event.kind == "decisions":
        return str(event.data["decisions"][0]["policy"])
    by = str(event.data.get("by", "")) if event.kind == "op" else ""
    return by.removeprefix("policy:") if by.startswith("policy:") else ""


def _decided(data: Any) -> tuple[str, Literal["info"]] | None:  # Any: JSON values
    """What policies let be; in a dry run, what they would have done. Their ops tell the rest."""
    told = [one for one in data["decisions"] if data["dry_run"] or one["op"] is None]
    if not told:
        return None
    lines = [f"{one['policy']}, {one['key']}: {_would(one['op'])}{one['reason']}" for one in told]
    return ("dry run: " if data["dry_run"] else "") + "; ".join(lines), "info"


def _would(op: Any) -> str:  # Any: JSON values of a decision's op
    return "" if op is None else f"would {op['kind']} run {op['run']}: "


def _op_text(event: Event) -> tuple[str, Literal["info", "alert", "error"]]:
    data = event.data
    kind, by = str(data["kind"]), f" ({data['by']})" if data.get("by") else ""
    about = f"run {event.run} " if event.run is not None else ""
    if data["outcome"] == "refused":
        return f"{about}{kind} was refused: {data['reason']}{by}", "alert"
    if data["outcome"] == "already":
        reason = f": {data['reason']}" if data.get("reason") else ""
        return f"{about}{kind}: it was so already{reason}{by}", "info"
    policy = str(data.get("by", "")).startswith("policy:")
    why = f": {data['reason']}" if policy and data.get("reason") else ""
    return f"{about}{_VERBS.get(kind, kind)}{_details(event.data)}{by}{why}", "info"


def _details(data: Any) -> str:  # Any: JSON values of an op event
    if data["kind"] == "boost":
        return f" to weight {data['weight']:g}"
    if data["kind"] == "clone":
        child, warm = data["created"]["id"], "warm" if data["args"].get("warm") else "cold"
        changes = ", ".join(f"{k}={v}" for k, v in data["args"].get("changes", {}).items())
        return f" {warm} as run {child}" + (f" with {changes}" if changes else "")
    if data["kind"] == "policy":
        args = data["args"]
        given = ", ".join(f"{k}={v}" for k, v in (args["settings"] or {}).items())
        return f" {args['name']} is {args['mode']}" + (f" with {given}" if given else "")
    if data["kind"] == "pause_all" and data.get("reason"):
        return f": {data['reason']}"
    at = data.get("step")
    if data["kind"] == "mix":
        shares = ", ".join(f"{100 * share:g} %" for share in data["args"]["weights"])
        return f" with {shares} of its tasks from step {at} on"
    return f" at step {at}" if data["kind"] in ("stop", "delete") and at is not None else ""
