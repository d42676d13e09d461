"""What takes the last op back: its opposite."""

from collections.abc import Sequence

from rapidfire_jupyter.events import Event
from rapidfire_jupyter.mixture import WEIGHTS, now
from rapidfire_jupyter.ops import Op
from rapidfire_jupyter.state import State, apply


def opposite(events: Sequence[Event], by: str = "cell") -> Op | None:
    """The op that undoes the last one that a person asked for and that acted; None without one.

    What the engine or a policy did is left: a person overrules it by an op of their own.
    A delete can be undone for 30 seconds; whether it still can is judged when the op acts.

    Args:
        events: The whole log.
        by: Who asks.
    """
    for place in range(len(events) - 1, -1, -1):
        event = events[place]
        acted = event.kind == "op" and event.data["outcome"] == "applied"
        if acted and not _is_automatic(str(event.data["by"])):
            return _opposite(event, events[:place], by)
    return None


def _is_automatic(by: str) -> bool:
    return by == "engine" or by.startswith("policy:")


def _opposite(event: Event, before: Sequence[Event], by: str) -> Op:
    kind, run = event.data["kind"], event.run
    if kind in ("boost", "mix", "policy"):
        state = State()
        for earlier in before:
            state = apply(state, earlier)
        if kind == "policy":
            name = event.data["args"]["name"]
            return Op("policy", None, {"name": name, **state.policy(name)}, by)
        was = state.runs[run or 0]
        if kind == "mix":
            return Op("mix", run, {"weights": now(was.config[WEIGHTS])}, by)
        return Op("boost", run, {"weight": was.weight}, by)
    if kind == "clone":
        return Op("delete", event.data["created"]["id"], by=by)
    if kind == "stop":
        return Op("resume", run, by=by)
    if kind == "resume":
        return Op("stop", run, by=by)
    if kind == "delete":
        return Op("undelete", run, by=by)
    if kind == "undelete":
        return Op("delete", run, by=by)
    return Op("resume_all" if kind == "pause_all" else "pause_all", by=by)
