"""What the engine does with a run that is parked at a chunk end: its evaluation and its answers.

Answers are owed: a run that reached a chunk end pays them at the latest before it trains on or is
finished. Everything here happens in the engine's thread; what it finds becomes logged rows.
"""

import math
import time
from bisect import bisect_right
from typing import Any

from rapidfire_jupyter import samples, thinning
from rapidfire_jupyter.asking import Asking, Between, answers, beside, lent, watched
from rapidfire_jupyter.fit import Fit
from rapidfire_jupyter.state import ACTIVE
from rapidfire_jupyter.training import messages


def observe(fit: Fit, run: int, step: int, between: Between) -> None:
    """Evaluate a run that is parked at a chunk end, unless it was evaluated there already."""
    if not fit.unobserved(run, step):
        return
    started = time.monotonic()
    report = watched(fit, run, messages.Observe(), between)
    if not isinstance(report, messages.Observed):
        return
    if report.metrics is not None:
        if report.losses:
            known = [float(f"{x:.6g}") if math.isfinite(x) else None for x in report.losses]
            fit.emit("row_losses", run, step=step, losses=known)
        row = {**report.metrics, "step": step}
        fit.log_row(run, row, "chunk", seconds=time.monotonic() - started)
    fit.observed[run] = step


def thin(fit: Fit, run: int, step: int, trained: float, between: Between) -> None:
    """Decide how often to evaluate from this chunk on, if no other run has reached its end yet.

    Args:
        trained: Seconds trained in the slice that is ending.
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
    measured = thinning.costs(fit.log.since(0), trained)
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
    """Estimate, once, what a run's answers cost before any is given: together with the others."""
    if any(e.kind == "eval_probed" for e in fit.log.since(0)):
        return
    asking = Asking(fit, messages.Lend(), {}, between)
    own = lent(asking, run)
    if own is None or not own.prompts:
        return
    others = [r.id for r in fit.state.runs.values() if r.status in ACTIVE]
    loans = (own.loan, *beside(asking, run, own, others).values()) if own.loan else ()
    report = watched(fit, run, messages.Probe(loans, own.prompts, own.max_new_tokens), between)
    if isinstance(report, messages.Probed) and report.seconds is not None:
        fit.emit("eval_probed", run, seconds=report.seconds)


def pay(fit: Fit, run: int, step: int, between: Between) -> float:
    """Let a run answer what it owes at the step where it is parked, and others of its base with it.

    Returns:
        Seconds on the run's account that were not now: those of its answers in another run's turn,
        less those of other runs' answers in this one.
    """
    started, asking = time.monotonic(), Asking(fit, messages.Lend(), fit.shared, between)
    own = lent(asking, run) if fit.owes(run, step) else None
    if own is None:
        return 0.0
    if not own.prompts:
        fit.answered[run] = step
        return 0.0
    others = (
        one.id
        for one in list(fit.state.runs.values())
        if one.status in ACTIVE and one.id not in fit.shared and fit.owes(one.id, one.step)
    )
    report, elsewhere = answers(asking, run, own, others)
    if report is not None and report.error:
        _tell_once(fit, run, f"it has no answers at chunk ends: {report.error}")
        fit.answered[run] = step
    elif report is not None and report.answers is not None:
        _judge(fit, run, step, report.answers, time.monotonic() - started + elsewhere)
    return elsewhere


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


def _tell_once(fit: Fit, run: int, text: str) -> None:
    known: Any = [e.data.get("text") for e in fit.log.since(0) if e.run == run]  # Any: JSON values
    if text not in known:
        fit.emit("alert", run, text=text)
