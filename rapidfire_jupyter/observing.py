"""What the engine does with a run that is parked at a chunk end: its evaluation and its answers.

Answers are owed: a run that reached a chunk end pays them at the latest before it trains on or is
finished. Everything here happens in the engine's thread; what it finds becomes logged rows.
"""

import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

from rapidfire_jupyter import samples, thinning
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.fit import Fit
from rapidfire_jupyter.state import ACTIVE
from rapidfire_jupyter.training import checkpoints, messages

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
    lent = fit.executor.command(run, messages.Lend())
    if isinstance(lent, messages.Failed):
        fit.failed(run, lent)
        return
    if not isinstance(lent, messages.Lent) or not lent.prompts:
        return
    data, batch = fit.executor.data, lent.prompts[: lent.batch_rows]
    command = messages.Decode(batch, min(PROBED_TOKENS, data.max_new_tokens))
    started = time.monotonic()
    report = _watched(fit, run, command, between)
    if isinstance(report, messages.Decoded) and report.answers is not None:
        seconds = (time.monotonic() - started) * len(lent.prompts) / len(batch)
        seconds *= data.max_new_tokens / command.max_new_tokens
        fit.emit("eval_probed", run, seconds=seconds)


def pay(fit: Fit, run: int, step: int, between: Between) -> None:
    """Let a run answer what it owes at the step where it is parked."""
    if not fit.owes(run, step):
        return
    lent = fit.executor.command(run, messages.Lend())
    if isinstance(lent, messages.Failed):
        fit.failed(run, lent)
        return
    assert isinstance(lent, messages.Lent)
    if not lent.prompts:
        fit.answered[run] = step
        return
    started = time.monotonic()
    command = messages.Decode(lent.prompts, fit.executor.data.max_new_tokens)
    report = _watched(fit, run, command, between)
    if not isinstance(report, messages.Decoded):
        return
    if report.answers is None:
        _tell_once(fit, run, f"it has no answers at chunk ends: {report.error}")
        fit.answered[run] = step
        return
    _judge(fit, run, step, report.answers, time.monotonic() - started)


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
        elif isinstance(report, messages.Observed | messages.Decoded) and report.left:
            if not between(fit, run):
                return None
            given = command
        else:
            return report


def _tell_once(fit: Fit, run: int, text: str) -> None:
    known: Any = [e.data.get("text") for e in fit.log.since(0) if e.run == run]  # Any: JSON values
    if text not in known:
        fit.emit("alert", run, text=text)
