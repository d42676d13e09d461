"""What a policy decides, what it knows, and what it remembers of earlier decisions. Plain data.

A decision is written to the event log before its op is asked for, so `remember` gives the same
memory in any kernel. A person has the last word: what a person resumed, no policy stops again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rapidfire_jupyter.comparison import Rows
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.measures import Measures
from rapidfire_jupyter.ops import Op
from rapidfire_jupyter.state import State

_PREFIX = "policy:"


@dataclass(frozen=True)
class Decision:
    """One thing a policy decided.

    Attributes:
        policy: The policy's name.
        key: Which of its decisions it is; a policy takes none twice about the same run.
        op: What it asks for, with `by="policy:<name>"`; None if it looked and let things be.
        reason: In words, with the numbers.
        runs: Runs it judged.
    """

    policy: str
    key: str
    op: Op | None
    reason: str
    runs: tuple[int, ...] = ()


def to_dict(decision: Decision) -> dict[str, Any]:
    """A decision as the data of its event. Any: JSON values."""
    op = decision.op
    return {
        "policy": decision.policy,
        "key": decision.key,
        "op": None if op is None else {"kind": op.kind, "run": op.run, "args": dict(op.args)},
        "reason": decision.reason,
        "runs": list(decision.runs),
    }


@dataclass(frozen=True)
class Memory:
    """What was decided before.

    Attributes:
        judged: Runs that a decision judged, by policy and key.
        kept: Runs that a person resumed after a policy had stopped them.
        clones: Runs that a policy made, by its name, in order.
    """

    judged: Mapping[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    kept: frozenset[int] = frozenset()
    clones: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Seen:
    """All that a policy may look at.

    Attributes:
        seed: Of policies that draw; the same seed gives the same decisions.
    """

    state: State
    rows: Rows
    memory: Memory = field(default_factory=Memory)
    measures: Measures = field(default_factory=Measures)
    seed: int = 0


def decided(memory: Memory, policy: str, key: str, run: int | None = None) -> bool:
    """Whether a policy has taken this decision; with a run, whether it judged that run then."""
    runs = memory.judged.get((policy, key))
    return runs is not None and (run is None or run in runs)


def stop(policy: str, key: str, run: int, reason: str) -> Decision:
    """The decision to stop a run."""
    return Decision(policy, key, Op("stop", run, by=_PREFIX + policy), reason, (run,))


def ask(policy: str, key: str, op: Op, reason: str, runs: Sequence[int] | None = None) -> Decision:
    """The decision to ask for any op."""
    judged = tuple(runs) if runs is not None else (() if op.run is None else (op.run,))
    return Decision(policy, key, replace(op, by=_PREFIX + policy), reason, judged)


def note(policy: str, key: str, runs: Sequence[int], reason: str) -> Decision:
    """The decision to let these runs be."""
    return Decision(policy, key, None, reason, tuple(runs))


def recall(memory: Memory, decisions: Iterable[Decision]) -> Memory:
    """A memory with more decisions in it."""
    judged = dict(memory.judged)
    for one in decisions:
        place = one.policy, one.key
        judged[place] = judged.get(place, frozenset()) | frozenset(one.runs)
    return replace(memory, judged=judged)


def remember(events: Iterable[Event]) -> Memory:
    """The memory that an event log gives: its `decision` events, and ops of policies and people."""
    judged: dict[tuple[str, str], frozenset[int]] = {}
    clones: dict[str, tuple[int, ...]] = {}
    stopped: set[int] = set()
    kept: set[int] = set()
    for event in events:
        data = event.data
        if event.kind == "decision":
            place = data["policy"], data["key"]
            judged[place] = judged.get(place, frozenset()) | frozenset(data["runs"])
        if event.kind != "op" or data["outcome"] != "applied":
            continue
        by = str(data.get("by", ""))
        if by.startswith(_PREFIX):
            if data["kind"] == "stop" and event.run is not None:
                stopped.add(event.run)
            if data["kind"] == "clone":
                name = by.removeprefix(_PREFIX)
                clones[name] = (*clones.get(name, ()), data["created"]["id"])
        elif data["kind"] == "resume" and event.run in stopped:
            kept.add(event.run)
    return Memory(judged, frozenset(kept), clones)


def unanswered(events: Iterable[Event]) -> list[Decision]:
    """Decisions whose op was never asked for: the kernel died in between. They are asked again."""
    waiting: list[Decision] = []
    for event in events:
        data = event.data
        if event.kind == "decision" and data["op"] is not None:
            op = Op(data["op"]["kind"], data["op"]["run"], data["op"]["args"])
            waiting.append(ask(data["policy"], data["key"], op, data["reason"], data["runs"]))
        elif event.kind == "op":
            for one in waiting:
                op = one.op if one.op is not None else Op("stop")
                if (op.by, op.kind, op.run, dict(op.args)) == (
                    data.get("by"),
                    data["kind"],
                    event.run,
                    data["args"],
                ):
                    waiting.remove(one)
                    break
    return waiting
