"""What the engine does with a run that is parked at a chunk end: its evaluation and its answers.

Answers are owed: a run that reached a chunk end pays them at the latest before it trains on or is
finished. Everything here happens in the engine's thread; what it finds becomes logged rows.
"""

import math
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from rapidfire_jupyter import samples, thinning
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.fit import Fit, Shared
from rapidfire_jupyter.state import ACTIVE
from rapidfire_jupyter.training import checkpoints, messages
from rapidfire_jupyter.training.mixed import Loan, runs_at_once

PROBED_TOKENS = 4
Between = Callable[[Fit, int], bool]  # answers the inbox; False if the run is not to go on


def begin(fit: Fit, run: int, step: int) -> None:
    """Bring an open run to where its training goes on, with its checkpoint loaded; it may fail."""
    if run in fit.begun:
        return
    fit.begun.add(run)
    report = fit.executor.command(run, messages.Advance(step))
    if isinstance(report, messages.Failed):
        fit.failed(run, report)


def observe(fit: Fit, run: int, step: int, between: Between) -> None:
    """Evaluate a run that is parked at a chunk end, unless it was evaluated there already."""
    if not fit.unobserved(run, step):
        return
    started = time.monotonic()
    report = _watched(fit, run, messages.Observe(), between)
    if not isinstance(report, messages.Observed):
        return
    if report.metrics is not None:
        if report.losses:
            known = [one if math.isfinite(one) else None for one in report.losses]
            fit.emit("row_losses", run, step=step, losses=known)
        row = {**report.metrics, "step": step}
        fit.log_row(run, row, "chunk", seconds=time.monotonic() - started)
    fit.observed[run] = step


def thin(fit: Fit, run: int, step: int, trained: tuple[float, float], between: Between) -> None:
    """Decide how often to evaluate from this chunk on, if no other run has reached its end yet.

    Args:
        trained: Seconds and chunks trained in the slice that is ending.
    """
    budget, ends = fit.pace.eval_budget, fit.state.runs[run].chunk_ends
    chunk = bisect_right(ends, step)
    others = (r.chunk for r in fit.state.runs.values() if r.id != run)
    if budget >= 1 or step not in ends or max(others, default=0) >= chunk:
        return
    if fit.executor.data.generate_rows:
        _probe(fit, run, between)
        if not fit.executor.is_open(run):
            return
    measured = thinning.costs(fit.log.since(0), *trained)
    now = fit.thinnings[-1] if fit.thinnings else thinning.Thinning()
    if measured is None:
        return
    planned = thinning.plan(measured, budget, chunk, now)
    if (planned.loss, planned.answers) == (now.loss, now.answers):
        return
    share = measured.share(thinning.Thinning())
    told = "" if fit.thinnings else thinning.text(planned, share, budget)
    facts = {"chunk": chunk, "loss": planned.loss, "answers": planned.answers}
    fit.emit("eval_thinned", **facts, share=share, text=told, sync=True)
    fit.thinnings.append(planned)


def _probe(fit: Fit, run: int, between: Between) -> None:
    """Estimate, once, what answers cost before any is given: from a few tokens of one batch."""
    if any(e.kind == "eval_probed" for e in fit.log.since(0)):
        return
    lent = _lent(fit, run)
    if lent is None or not lent.prompts:
        return
    data, batch = fit.executor.data, lent.prompts[: lent.batch_rows]
    command = messages.Decode(batch, min(PROBED_TOKENS, data.max_new_tokens))
    started = time.monotonic()
    report = _watched(fit, run, command, between)
    if isinstance(report, messages.Decoded) and report.answers is not None:
        seconds = (time.monotonic() - started) * len(lent.prompts) / len(batch)
        seconds *= data.max_new_tokens / command.max_new_tokens
        fit.emit("eval_probed", run, seconds=seconds)


def pay(fit: Fit, run: int, step: int, between: Between) -> float:
    """Let a run answer what it owes at the step where it is parked, and others of its base with it.

    Returns:
        Seconds on the run's account that were not now: those of its answers in another run's turn,
        less those of other runs' answers in this one.
    """
    started = time.monotonic()
    lent = _lent(fit, run) if fit.owes(run, step) else None
    if lent is None:
        return 0.0
    if not lent.prompts:
        fit.answered[run] = step
        return 0.0
    shared = fit.shared.pop(run, None)
    if shared is not None and shared.step == step:
        elsewhere = shared.seconds
    else:
        others = _beside(fit, run, lent)
        shared = _together(fit, run, lent, others, between) if others else None
        elsewhere = -len(others) * shared.seconds if shared is not None else 0.0
    answers = _alone(fit, run, step, lent, shared, between)
    if answers is not None:
        _judge(fit, run, step, answers, time.monotonic() - started + elsewhere)
    return elsewhere


def _lent(fit: Fit, run: int) -> messages.Lent | None:
    """What a run is asked, and what it lends; None if it failed at that."""
    lent = fit.executor.command(run, messages.Lend())
    if isinstance(lent, messages.Failed):
        fit.failed(run, lent)
        return None
    assert isinstance(lent, messages.Lent)
    return lent


def _beside(fit: Fit, run: int, lent: messages.Lent) -> dict[int, Loan]:
    """Other runs that owe the same answers now and can give them in the same batches."""
    if lent.loan is None or fit.executor.device_bytes() is not None:
        return {}  # with a budget, adapters of other runs may be away
    most = runs_at_once(lent.prompts, lent.batch_rows)
    found: dict[int, Loan] = {}
    for other in list(fit.state.runs.values()):
        if len(found) + 1 >= most:
            break
        mine = other.id == run or other.base != fit.state.runs[run].base
        if mine or other.status not in ACTIVE or not fit.executor.is_open(other.id):
            continue
        if other.id in fit.shared or not fit.owes(other.id, other.step):
            continue
        begin(fit, other.id, other.step)
        theirs = _lent(fit, other.id) if fit.executor.is_open(other.id) else None
        if theirs is None or theirs.loan is None or theirs.prompts != lent.prompts:
            continue
        if theirs.loan.alike == lent.loan.alike:
            found[other.id] = theirs.loan
    return found


def _together(
    fit: Fit,
    run: int,
    lent: messages.Lent,
    others: dict[int, Loan],
    between: Between,
) -> Shared | None:
    """Let runs answer in shared batches; the others' answers are kept until their turns.

    Returns:
        The run's own; None if it was ended meanwhile.
    """
    assert lent.loan is not None
    started, steps = time.monotonic(), {other: fit.state.runs[other].step for other in others}
    loans = (lent.loan, *others.values())
    report = _watched(
        fit, run, messages.Mix(loans, lent.prompts, fit.executor.data.max_new_tokens), between
    )
    if not isinstance(report, messages.Mixed):
        return None
    nothing = (None,) * len(lent.prompts)
    own, *theirs = report.answers if report.answers is not None else (nothing,) * len(loans)
    seconds = (time.monotonic() - started) / len(loans)
    for (other, step), answers in zip(steps.items(), theirs, strict=True):
        fit.shared[other] = Shared(step, answers, seconds)
    return Shared(lent.step, own, seconds)


def _alone(
    fit: Fit,
    run: int,
    step: int,
    lent: messages.Lent,
    shared: Shared | None,
    between: Between,
) -> tuple[tuple[int, ...], ...] | None:
    """All answers of a run: those it gave in shared batches, and now the others."""
    if not fit.executor.is_open(run):
        return None
    known = dict(enumerate(shared.answers if shared is not None else ()))
    asked = [place for place in range(len(lent.prompts)) if known.get(place) is None]
    if asked:
        prompts = tuple(lent.prompts[place] for place in asked)
        command = messages.Decode(prompts, fit.executor.data.max_new_tokens)
        report = _watched(fit, run, command, between)
        if not isinstance(report, messages.Decoded):
            return None
        if report.answers is None:
            _tell_once(fit, run, f"it has no answers at chunk ends: {report.error}")
            fit.answered[run] = step
            return None
        known.update(zip(asked, report.answers, strict=True))
    return tuple(known[place] or () for place in range(len(lent.prompts)))


def _judge(
    fit: Fit, run: int, step: int, answers: tuple[tuple[int, ...], ...], seconds: float
) -> None:
    """Score a run's answers in its own thread, keep them, and log their metrics."""
    started = time.monotonic()
    report = fit.executor.command(run, messages.Score(answers))
    if isinstance(report, messages.Failed):
        fit.failed(run, report)
        return
    assert isinstance(report, messages.Scored)
    samples.write(fit.executor.run_dir(run), step, report.samples)
    seconds += time.monotonic() - started
    fit.log_row(run, {**report.metrics, "step": step}, "generation", seconds=seconds)
    fit.answered[run] = step


def reply(fit: Fit, run: int, asked: messages.Ask, between: Between) -> tuple[str, ...]:
    """What a run answers to a person: as it is now, or as it was saved last.

    Raises:
        OpError: There is no such run, it has no weights, or it cannot answer.
    """
    known = fit.state.runs.get(run)
    if known is None or known.status == "deleted" or run not in fit.configs:
        raise OpError(f"there is no run {run} that could answer")
    if known.status in ACTIVE and not fit.executor.is_open(run):
        fit.open_run(run)
        fit.prepared.add(run)
    if fit.executor.is_open(run):
        begin(fit, run, fit.state.runs[run].step)
    if fit.executor.is_open(run):
        report = _watched(fit, run, asked, between)
        if isinstance(report, messages.Decoded) and report.answers is not None:
            return report.texts
        if isinstance(report, messages.Decoded):
            raise OpError(f"run {run} cannot answer: {report.error}")
        raise OpError(f"run {run} was ended meanwhile; ask it again")
    fit.executor.flush()
    source = checkpoints.newest_weights(fit.executor.run_dir(run))
    if source is None:
        raise OpError(f"run {run} has no weights yet; wait for its first chunk")
    return fit.executor.answer_closed(run, fit.configs[run], source, asked)


def _watched(
    fit: Fit, run: int, command: messages.Command, between: Between
) -> messages.Report | None:
    """Give a command that others may act in between; None if the run has gone meanwhile."""
    given = command
    while True:
        report = fit.executor.command(run, given)
        if isinstance(report, messages.Failed):
            fit.failed(run, report)
            return None
        if isinstance(report, messages.Parked):
            if not between(fit, run):
                return None
            given = messages.Continue()
        elif isinstance(report, messages.LEFT) and report.left:
            if not between(fit, run):
                return None
            given = command
        else:
            return report


def _tell_once(fit: Fit, run: int, text: str) -> None:
    known: Any = [e.data.get("text") for e in fit.log.since(0) if e.run == run]  # Any: JSON values
    if text not in known:
        fit.emit("alert", run, text=text)
