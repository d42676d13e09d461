"""Policies and monitors at work on a fit: what they find becomes events, what they ask for ops.

Everything here happens in the engine's thread, with every run parked (but for `look_meanwhile`,
which only tells). Decisions taken together are
one event, on disk before their first op: a kernel that dies in between leaves none half taken, and
the next one asks for the ops that are missing. Their ops are ordinary ones, judged and recorded as
a person's; `by` says whose they are.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rapidfire_jupyter import (
    alerts,
    cost,
    decisions,
    monitors,
    operations,
    policies,
    repeats,
    suggestions,
    switches,
    webhooks,
)
from rapidfire_jupyter.config import flatten
from rapidfire_jupyter.decisions import Decision
from rapidfire_jupyter.encoding import decode, encode
from rapidfire_jupyter.errors import ConfigError, RapidFireError
from rapidfire_jupyter.events import Event
from rapidfire_jupyter.fit import Fit
from rapidfire_jupyter.ops import Op, OpHandle, Verdict
from rapidfire_jupyter.state import ACTIVE

logger = logging.getLogger(__name__)

DISK_SECONDS = 60.0  # the disk is looked at this often
MOST_ROUNDS = 20  # of decisions that follow from each other, in one go
_NEWS = frozenset({"run_completed", "run_failed", "op", "fit_started", "attached"})
# Lets a run that is to be stopped answer first what it owes; the fit may be left meanwhile.
Settle = Callable[[Fit, int], None]


def look(fit: Fit, settle: Settle) -> None:
    """Let monitors and policies look at what is new, and do what they ask for.

    A fault in one of them is told as an alert and ends its work in this kernel, not training.

    Raises:
        OSError: The disk failed.
    """
    if not fit.at_fault:
        with _kept_from_training(fit):
            _look(fit, settle)
    came = fit.news or bool(fit.log.since(fit.ledger.next_seq))  # meanwhile
    fit.undecided = came and not fit.at_fault


def look_meanwhile(fit: Fit, run: int, open_s: float) -> None:
    """Let monitors look at a run that trains right now; its slice has taken `open_s` seconds."""
    if fit.at_fault:
        return
    # Where the disk fails it is the run's own affair, at its next boundary.
    with contextlib.suppress(OSError), _kept_from_training(fit):
        known = fit.ledger
        found = monitors.look_meanwhile(
            fit.oversight.monitors, fit.state.runs[run], known.measures, open_s
        )
        for alert in monitors.new(found, known.told):
            known.told.add(alert.key)
            _raise(fit, alert)


@contextlib.contextmanager
def _kept_from_training(fit: Fit) -> Iterator[None]:
    """While inside, a fault of a policy or monitor ends their work in this kernel, not training."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:  # ours, or a value that nobody thought of
        logger.exception("policies and monitors are off")
        fit.at_fault, fit.search = True, None
        what = f"policies and monitors failed ({type(error).__name__}: {error})"
        fit.emit("alert", text=f"{what}; they are off in this kernel, training goes on")


def watch(fit: Fit) -> None:
    """Let monitors look at what is new."""
    if time.monotonic() >= fit.disk_seen_at + DISK_SECONDS:
        fit.measure_disk()
    known, events = fit.ledger, _read(fit)
    changed = {e.run for e in events if e.kind in ("logged", "slice_ended") and e.run is not None}
    runs = {i: fit.state.runs[i] for i in sorted(changed) if i in fit.state.runs}
    part = replace(fit.state, runs=runs)
    found = monitors.look(fit.oversight.monitors, part, known.rows, known.measures)
    for alert in monitors.new(found, known.told):
        _raise(fit, alert)


def _read(fit: Fit) -> list[Event]:
    """Take in the events that are new."""
    events = fit.log.since(fit.ledger.next_seq)
    fit.ledger.read(events)
    fit.news = fit.news or any(_is_news(fit, event) for event in events)
    return events


def _is_news(fit: Fit, event: Event) -> bool:
    """Whether policies are asked after this: they judge runs at chunk ends."""
    if event.kind == "slice_ended" and event.run is not None:
        return event.data["step"] in fit.state.runs[event.run].chunk_ends
    return event.kind in _NEWS


def _raise(fit: Fit, alert: alerts.Alert) -> None:
    data = alerts.to_dict(alert)
    fit.emit("alert", alert.run, **data)
    told = {"experiment": fit.folder.name, "run": alert.run, **data}
    webhooks.tell(fit.oversight.listeners, told, lambda text: _note(fit, text))


def _note(fit: Fit, text: str) -> None:
    try:
        fit.emit("note", text=text)
    except (OSError, RapidFireError):  # the experiment has ended, or its disk is full
        logger.warning(text)


def _look(fit: Fit, settle: Settle) -> None:
    if not fit.ledger.next_seq:
        _ask_again(fit, settle)
    if fit.left:
        return
    watch(fit)
    _tell_cost(fit)
    rounds = 0
    while fit.news and rounds < MOST_ROUNDS and not fit.left:
        fit.news = False
        decided = [_decide(fit, mode, settle) for mode in ("on", "dry-run")]
        _read(fit)
        fit.news = fit.news or any(decided)
        rounds += 1
    fit.news = False
    _refill(fit)
    _sum_up(fit)


def _tell_cost(fit: Fit) -> None:
    """Tell once what the experiment will cost: when each run that is to train had its first slice.

    A single slice says little of the others: bases and batch sizes differ.
    """
    if fit.ledger.cost_told:
        return
    trained = {one.run for one in fit.ledger.measures.slices if one.steps > 0}
    active = {r.id for r in fit.state.runs.values() if r.status in ACTIVE and r.id in fit.configs}
    known = cost.preview(fit.state, fit.ledger.measures)
    if active and active <= trained and known is not None:
        fit.emit("cost", text=cost.ahead(known))


def _sum_up(fit: Fit) -> None:
    """Tell what the experiment has cost, each time that nothing is left to train."""
    active = any(r.status in ACTIVE and r.id in fit.configs for r in fit.state.runs.values())
    if active or fit.left or fit.ledger.cost_summed:
        return
    known = cost.preview(fit.state, fit.ledger.measures)
    if known is not None:
        fit.emit("cost", text=cost.in_words(known), over=True)


def _refill(fit: Fit) -> None:
    """Begin the runs that a search suggests, as long as there are too few."""
    while fit.search is not None and not fit.left:
        _read(fit)
        rows, events = fit.ledger.rows, fit.log.events
        due = suggestions.refill(fit.search, fit.state, fit.configs, rows, events)
        handles = [_perform(fit, op, reason) for op, reason in due]
        if not any(handle.status == "applied" for handle in handles):
            return


def _decide(fit: Fit, mode: switches.Mode, settle: Settle) -> bool:
    """Ask the policies that act, or those that only tell; gives whether they decided anything."""
    asked, dry_run = switches.at_work(fit.oversight, fit.state, mode), mode == "dry-run"
    if not asked or fit.left:
        return False
    _read(fit)
    known = fit.ledger
    state, memory = fit.state, known.memory
    if dry_run:
        memory = known.rehearsed
        state = policies.after(state, rehearsed(fit.log.events))
    seed = int((state.fit or {}).get("seed", 0))
    noise, _ = repeats.noise_floor(fit.state, known.rows)
    asked = repeats.calibrated(asked, noise)
    found = policies.decide_all(asked, state, known.rows, memory, known.measures, seed)
    found = [one for one in found if not decisions.is_old(one, memory)]
    if found:
        fit.emit("decisions", sync=True, **decisions.to_data(found, dry_run))
    if not dry_run:
        _perform_all(fit, found, settle)
    return bool(found)


def _perform_all(fit: Fit, taken: Iterable[Decision], settle: Settle) -> None:
    """Ask for the ops of decisions; none stops to make room for clones that cannot be made.

    Where the fit is left meanwhile the others are for the next kernel.
    """
    cloned: dict[tuple[str, str], bool] = {}
    for one in taken:
        if one.op is None:
            continue
        place = one.policy, one.key
        if one.op.kind == "stop" and not cloned.get(place, True):
            why = "none of the clones that it was to make room for could be made"
            known = fit.state.runs.get(one.op.run or 0)
            fit.record(one.op, Verdict("refused", why), known.step if known else None)
            continue
        if one.op.kind == "stop" and one.op.run is not None:
            settle(fit, one.op.run)
            if fit.left:
                return
        handle = _perform(fit, one.op, one.reason)
        if one.op.kind == "clone":
            cloned[place] = cloned.get(place, False) or handle.status != "refused"


def rehearsed(events: Iterable[Event]) -> list[Decision]:
    """What was decided in dry runs."""
    return [
        one
        for event in events
        if decisions.is_decision(event) and event.data["dry_run"]
        for one in decisions.of_event(event)
    ]


def _ask_again(fit: Fit, settle: Settle) -> None:
    """Do what an earlier kernel decided and died before."""
    acting = switches.at_work(fit.oversight, fit.state, "on")
    waiting = decisions.unanswered(fit.log.since(0))
    mine = [d for d in waiting if any(switches.owns(one, d) for one in acting)]
    _perform_all(fit, mine, settle)


def _perform(fit: Fit, op: Op, why: str) -> OpHandle:
    if op.kind == "clone":
        op = replace(op, args={**op.args, "changes": _live(fit, op.args["changes"])})
    handle = OpHandle(op)
    operations.perform(fit, op, handle, why)
    return handle


def _live(fit: Fit, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes as they were before they were written down. Any: hyperparameter values.

    Functions are those of the live config that has them.
    """
    found = {}
    for name, value in changes.items():
        try:
            found[name] = decode(value, name)
        except ConfigError:
            own = (flatten(config).get(name) for config in fit.configs.values())
            found[name] = next((v for v in own if encode(v) == encode(value)), value)
    return found
