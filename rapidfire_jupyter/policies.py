"""Automatic policies: what each would do now, as decisions in words with the op they ask for.

`decide` is pure: the same state, rows, memory and seed give the same decisions, so a dry run is a
call whose ops nobody submits. The rules themselves are in `screening`, `halving`, `breeding` and
`bandit`; here is how they are called, and how phases string them together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rapidfire_jupyter import bandit, breeding, halving, screening
from rapidfire_jupyter.bandit import BanditBoost
from rapidfire_jupyter.breeding import CloneBest
from rapidfire_jupyter.comparison import Rows, barrier, reached
from rapidfire_jupyter.decisions import Decision, Memory, Seen, decided, recall, stop
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.halving import Halving
from rapidfire_jupyter.measures import Measures
from rapidfire_jupyter.screening import Budget, Outliers, SlowLearners, Threshold
from rapidfire_jupyter.state import ACTIVE, Run, State

Rule = Halving | Threshold | Outliers | SlowLearners | CloneBest | BanditBoost | Budget
_RULES = (Halving, Threshold, Outliers, SlowLearners, CloneBest, BanditBoost, Budget)


@dataclass(frozen=True)
class Phase:
    """One phase of an experiment.

    Attributes:
        name: What it is for, as "screening".
        rules: Policies that act on its runs.
        until: It is over when each of its runs has ended or trained this share of its schedule.
        clone: How its runs are made of the best of the phase before, whose other runs then stop;
            None for the first phase, which is the runs of the grid.
    """

    name: str
    rules: tuple[Rule, ...] = ()
    until: float = 1.0
    clone: CloneBest | None = None


@dataclass(frozen=True)
class Phases:
    """Phases, one after the other."""

    phases: tuple[Phase, ...]
    name: str = "phases"

    def __post_init__(self) -> None:
        names = [phase.name for phase in self.phases]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"phases need names of their own, got {names}; name each")
        for phase, before in zip(self.phases, (None, *self.phases[:-1]), strict=True):
            if not 0 < phase.until <= 1:
                raise ConfigError(
                    f"until of phase {phase.name!r} must be over 0 and at most 1, got {phase.until}"
                )
            if (phase.clone is None) != (before is None):
                raise ConfigError(
                    f"phase {phase.name!r} {'needs' if before else 'takes no'} clone=, which makes "
                    "its runs from the phase before"
                )
            if before is not None and phase.clone is not None:
                _check_warm(phase.clone, before)


def _check_warm(clone: CloneBest, before: Phase) -> None:
    if clone.warm and before.until >= 1:
        raise ConfigError(
            f"runs of phase {before.name!r} train to the end (until=1), so a warm clone has "
            "nothing left to train; give clone=CloneBest(warm=False), or until under 1"
        )


Policy = Rule | Phases


def decide(
    policy: Policy,
    state: State,
    rows: Rows,
    memory: Memory | None = None,
    measures: Measures | None = None,
    seed: int = 0,
) -> list[Decision]:
    """What one policy decides now; nothing while the experiment is paused or has ended.

    Args:
        policy: Its settings.
        state: Of the experiment.
        rows: Logged rows by run, as `state.history` gives them.
        memory: What was decided before, as `decisions.remember` gives it.
        measures: What was measured beside the rows.
        seed: Of policies that draw.
    """
    seen = Seen(state, rows, memory or Memory(), measures or Measures(), seed)
    if state.paused or state.ended:
        return []
    return _phases(policy, seen) if isinstance(policy, Phases) else _rule(policy, seen)


def decide_all(
    policies: Sequence[Policy],
    state: State,
    rows: Rows,
    memory: Memory | None = None,
    measures: Measures | None = None,
    seed: int = 0,
) -> list[Decision]:
    """What several policies decide now, in order; each knows what those before it stop."""
    found: list[Decision] = []
    memory = memory or Memory()
    for policy in policies:
        new = decide(policy, state, rows, memory, measures, seed)
        state, memory = after(state, new), recall(memory, new)
        found += new
    return found


def after(state: State, decisions: Sequence[Decision]) -> State:
    """A state in which the stops of some decisions have acted."""
    runs = dict(state.runs)
    for one in decisions:
        if one.op is not None and one.op.kind == "stop" and one.op.run in runs:
            runs[one.op.run] = replace(runs[one.op.run], status="stopped")
    return replace(state, runs=runs)


def check(policies: Sequence[Policy]) -> tuple[Policy, ...]:
    """Policies as `run_fit` takes them.

    Raises:
        ConfigError: One is none, or two have the same name.
    """
    for one in policies:
        if not isinstance(one, (*_RULES, Phases)):
            known = ", ".join(rule.__name__ for rule in (*_RULES, Phases))
            raise ConfigError(f"policies takes {known}; got {one!r}; write policies=[Halving()]")
    names = [policy.name for policy in policies]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"policies need names of their own, got {twice[0]!r} twice; give one another name="
        )
    return tuple(policies)


def in_words(decision: Decision) -> str:
    """A decision as one line: what a dry run prints."""
    op = decision.op
    if op is None:
        return f"{decision.policy} ({decision.key}): {decision.reason}"
    what = f"{op.kind} run {op.run}"
    if op.kind == "boost":
        what += f" to weight {op.args['weight']:g}"
    if op.kind == "clone":
        changes = ", ".join(f"{k}={v}" for k, v in op.args["changes"].items())
        what += f" {'warm' if op.args['warm'] else 'cold'} with {changes or 'no change'}"
    return f"{decision.policy} ({decision.key}): {what}: {decision.reason}"


def _rule(policy: Rule, seen: Seen) -> list[Decision]:
    if isinstance(policy, Halving):
        return halving.decide(policy, seen)
    if isinstance(policy, Threshold):
        return screening.decide_threshold(policy, seen)
    if isinstance(policy, Outliers):
        return screening.decide_outliers(policy, seen)
    if isinstance(policy, SlowLearners):
        return screening.decide_slow(policy, seen)
    if isinstance(policy, CloneBest):
        return breeding.decide(policy, seen)
    if isinstance(policy, BanditBoost):
        return bandit.decide(policy, seen)
    return screening.decide_budget(policy, seen)


def _phases(policy: Phases, seen: Seen) -> list[Decision]:
    """Go on in the current phase, or start the next one."""
    keys = [f"phase {phase.name}" for phase in policy.phases]
    current = 0
    while current + 1 < len(keys) and _started(policy, seen, keys[current + 1]):
        current += 1
    phase = policy.phases[current]
    members = _members(policy, seen, current)
    if current and not members:
        return []  # its clones have been asked for, but are not there yet
    over = all(run.status not in ACTIVE or reached(run, phase.until) for run in members)
    if over and current + 1 < len(keys):
        return _next_phase(policy, seen, current, members)
    inside = replace(seen, state=replace(seen.state, runs={run.id: run for run in members}))
    found: list[Decision] = []
    for rule in phase.rules:
        named = replace(rule, name=f"{phase.name}: {rule.name}")
        new = _rule(named, inside)
        inside = replace(inside, state=after(inside.state, new), memory=recall(inside.memory, new))
        found += new
    return found


def _started(policy: Phases, seen: Seen, key: str) -> bool:
    return decided(seen.memory, _cloner(policy, key), key)


def _cloner(policy: Phases, key: str) -> str:
    """The name under which a phase's clones are asked for: by it they are known again."""
    return f"{policy.name}: {key}"


def _members(policy: Phases, seen: Seen, current: int) -> list[Run]:
    """The runs of a phase; to its rules they are a grid, whichever run they were cloned from."""
    if current:
        key = f"phase {policy.phases[current].name}"
        made = seen.memory.clones.get(_cloner(policy, key), ())
        return [replace(seen.state.runs[i], parent=None) for i in made if i in seen.state.runs]
    later = {
        i
        for phase in policy.phases
        for i in seen.memory.clones.get(_cloner(policy, f"phase {phase.name}"), ())
    }
    return [run for i, run in seen.state.runs.items() if i not in later]


def _next_phase(policy: Phases, seen: Seen, current: int, members: Sequence[Run]) -> list[Decision]:
    phase, over = policy.phases[current + 1], policy.phases[current]
    key = f"phase {phase.name}"
    assert phase.clone is not None
    cloner = replace(phase.clone, name=_cloner(policy, key))
    there = [r for r in members if r.status in (*ACTIVE, "completed") and reached(r, over.until)]
    at = min((barrier(run, over.until) for run in there), default=over.until)
    found = breeding.breed(cloner, seen, key, at, there)
    going = [r for r in members if r.status in ACTIVE and r.id not in seen.memory.kept]
    reason = f"phase {over.name} is over; phase {phase.name} trains clones"
    return [*found, *(stop(cloner.name, key, run.id, reason) for run in going)]
