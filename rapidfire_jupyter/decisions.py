"""What a policy decides, what it knows, and what it remembers of earlier decisions. Plain data.

A decision is written to the event log before its op is asked for, so `remember` gives the same
memory in any kernel. A person has the last word: what a person resumed, no policy stops again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rapidfire_jupyter.comparison import Rows
from rapidfire_jupyter.encoding import encode
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


def to_data(decisions: Sequence[Decision], dry_run: bool = False) -> dict[str, Any]:
    """Decisions taken together as the data of one event, which a crash cannot cut in two.

    Args:
        decisions: In order.
        dry_run: Nobody asks for their ops. Any: JSON values.
    """
    return {"dry_run": dry_run, "decisions": [_one_to_data(one) for one in decisions]}


def _one_to_data(decision: Decision) -> dict[str, Any]:  # Any: JSON values
    op = decision.op
    asked = None if op is None else {"kind": op.kind, "run": op.run, "args": encode(dict(op.args))}
    return {
        "policy": decision.policy,
        "key": decision.key,
        "op": asked,
        "reason": decision.reason,
        "runs": list(decision.runs),
    }


def of_event(event: Event) -> list[Decision]:
    """The decisions that an event tells of; none if it is another kind of event."""
    return [_one_of_data(one) for one in event.data["decisions"]] if is_decision(event) else []


def is_decision(event: Event) -> bool:
    """Whether an event tells of decisions."""
    return event.kind == "decisions"


def _one_of_data(data: Mapping[str, Any]) -> Decision:  # Any: JSON values
    policy, key, reason, runs = data["policy"], data["key"], data["reason"], data["runs"]
    if data["op"] is None:
        return note(policy, key, runs, reason)
    op = Op(data["op"]["kind"], data["op"]["run"], data["op"]["args"])
    return ask(policy, key, op, reason, runs)


@dataclass(frozen=True)
class Memory:
    """What was decided before.

    Attributes:
        judged: Runs that a decision judged, by policy and key.
        kept: Runs that a person resumed after a policy had stopped them.
        clones: Runs that a policy made, by its name, in order.
        stopped: Runs that a policy has stopped at some time.
    """

    judged: Mapping[tuple[str, str], frozenset[int]] = field(default_factory=dict)
    kept: frozenset[int] = frozenset()
    clones: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    stopped: frozenset[int] = frozenset()


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


def is_old(one: Decision, memory: Memory) -> bool:
    """Whether it was taken before: its op was refused then, and would be again."""
    return all(decided(memory, one.policy, one.key, run) for run in one.runs or (None,))


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


def remember(
    events: Iterable[Event], memory: Memory | None = None, dry_run: bool = False
) -> Memory:
    """The memory that an event log gives: its decisions, and ops of policies and people.

    Args:
        events: In order.
        memory: What the events before them gave.
        dry_run: Remember what was decided in a dry run too; else it is as if it never was.
    """
    memory = memory if memory is not None else Memory()
    for event in events:
        if is_decision(event) and (dry_run or not event.data["dry_run"]):
            memory = recall(memory, of_event(event))
        elif event.kind == "op" and event.data["outcome"] != "refused":
            memory = _with_op(memory, event)
        elif event.kind == "fit_started":
            memory = Memory()
    return memory


def _with_op(memory: Memory, event: Event) -> Memory:
    data, run = event.data, event.run
    kind, by = data["kind"], str(data.get("by", ""))
    if data["outcome"] == "already" and kind != "clone":
        return memory
    if not by.startswith(_PREFIX):
        if kind == "resume" and run is not None and run in memory.stopped:
            return replace(memory, kept=memory.kept | {run})
        return memory
    if kind == "stop" and run is not None:
        return replace(memory, stopped=memory.stopped | {run})
    if kind == "clone":
        name = by.removeprefix(_PREFIX)
        clone = (data.get("created") or data["existing"])["id"]  # one that was there already, too
        made = *memory.clones.get(name, ()), clone
        return replace(memory, clones={**memory.clones, name: made})
    return memory


def unanswered(events: Iterable[Event]) -> list[Decision]:
    """Decisions whose op was never asked for: the kernel died in between. They are asked again."""
    waiting: list[Decision] = []
    for event in events:
        data = event.data
        if is_decision(event) and not data["dry_run"]:
            waiting += [one for one in of_event(event) if one.op is not None]
        elif event.kind == "op" and str(data.get("by", "")).startswith(_PREFIX):
            asked = data["by"], data["kind"], event.run, data["args"]
            for one in waiting:
                op = one.op if one.op is not None else Op("stop")
                if (op.by, op.kind, op.run, dict(op.args)) == asked:
                    waiting.remove(one)
                    break
    return waiting
