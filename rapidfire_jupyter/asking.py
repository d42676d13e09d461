"""How the engine asks parked runs: in batches with others where that changes no token, else alone.

A run that has its turn takes along others that are asked the same. What those answered is kept
until they have theirs. Everything here happens in the engine's thread.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.executors.local import Order
from rapidfire_jupyter.fit import Fit, Shared
from rapidfire_jupyter.state import ACTIVE
from rapidfire_jupyter.training import checkpoints, messages
from rapidfire_jupyter.training.mixed import Loan, runs_at_once

Between = Callable[[Fit, int], bool]  # answers the inbox; False if the run is not to go on


@dataclass(frozen=True)
class Asking:
    """What runs of a fit are asked.

    Attributes:
        lend: At chunk ends, or by a person.
        kept: What runs answered in another's turn, until their own.
    """

    fit: Fit
    lend: messages.Lend
    kept: dict[int, Shared]
    between: Between


def begin(fit: Fit, run: int, step: int) -> None:
    """Bring an open run to where its training goes on, with its checkpoint loaded; it may fail."""
    if run in fit.begun:
        return
    fit.begun.add(run)
    report = fit.executor.command(run, messages.Advance(step))
    if isinstance(report, messages.Failed):
        fit.failed(run, report)


def lent(asking: Asking, run: int) -> messages.Lent | None:
    """What a run is asked, and what it lends; None if it failed at that."""
    report = asking.fit.executor.command(run, asking.lend)
    if isinstance(report, messages.Failed):
        asking.fit.failed(run, report)
        return None
    assert isinstance(report, messages.Lent)
    return report


def answers(
    asking: Asking, run: int, own: messages.Lent, others: Iterable[int]
) -> tuple[messages.Decoded | None, float]:
    """Let a run answer, with others where they can.

    Args:
        own: What it is asked and lends.
        others: Runs that are asked now, too; looked at as long as there is room.

    Returns:
        Its answers, or why it gave none; None if it was ended meanwhile. And the seconds on its
        account that were not now: those of its answers in another run's turn, less those of other
        runs' answers in this one.
    """
    shared = asking.kept.pop(run, None)
    if shared is not None and shared.step == own.step:
        elsewhere = shared.seconds
    else:
        loans = beside(asking, run, own, others)
        shared = _together(asking, run, own, loans) if loans else None
        elsewhere = -len(loans) * shared.seconds if shared is not None else 0.0
    return _alone(asking, run, own, shared), elsewhere


def beside(asking: Asking, run: int, own: messages.Lent, others: Iterable[int]) -> dict[int, Loan]:
    """Those of other runs that can give the same answers in the same batches."""
    fit = asking.fit
    if own.loan is None or fit.executor.device_bytes() is not None:
        return {}  # with a budget, adapters of other runs may be away
    most = runs_at_once(own.prompts, own.batch_rows)
    found: dict[int, Loan] = {}
    for other in others:
        if len(found) + 1 >= most:
            break
        known = fit.state.runs[other]
        mine = other == run or known.base != fit.state.runs[run].base
        if mine or not fit.executor.is_open(other):
            continue
        begin(fit, other, known.step)
        theirs = lent(asking, other) if fit.executor.is_open(other) else None
        if theirs is None or theirs.loan is None or theirs.prompts != own.prompts:
            continue
        if theirs.loan.alike == own.loan.alike:
            found[other] = theirs.loan
    return found


def _together(
    asking: Asking, run: int, own: messages.Lent, others: dict[int, Loan]
) -> Shared | None:
    """Let runs answer in shared batches; the others' answers are kept until their turns.

    Returns:
        The run's own; None if it was ended meanwhile.
    """
    assert own.loan is not None
    runs = asking.fit.state.runs
    started, steps = time.monotonic(), {other: runs[other].step for other in others}
    loans = (own.loan, *others.values())
    report = watched(
        asking.fit, run, messages.Mix(loans, own.prompts, own.max_new_tokens), asking.between
    )
    if not isinstance(report, messages.Mixed):
        return None
    nothing = (None,) * len(own.prompts)
    mine, *theirs = report.answers if report.answers is not None else (nothing,) * len(loans)
    seconds = (time.monotonic() - started) / len(loans)
    for (other, step), made in zip(steps.items(), theirs, strict=True):
        asking.kept[other] = Shared(step, made, seconds)
    return Shared(own.step, mine, seconds)


def _alone(
    asking: Asking, run: int, own: messages.Lent, shared: Shared | None
) -> messages.Decoded | None:
    """All answers of a run: those it gave in shared batches, and now the others."""
    if asking.fit.left or not asking.fit.executor.is_open(run):
        return None
    known = dict(enumerate(shared.answers if shared is not None else ()))
    places = [place for place in range(len(own.prompts)) if known.get(place) is None]
    if places:
        prompts = tuple(own.prompts[place] for place in places)
        command = messages.Decode(prompts, own.max_new_tokens)
        report = watched(asking.fit, run, command, asking.between)
        if not isinstance(report, messages.Decoded):
            return None
        if report.answers is None:
            return report
        known.update(zip(places, report.answers, strict=True))
    made = tuple(known[place] or () for place in range(len(own.prompts)))
    return messages.Decoded(made, own.step)


def watched(
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


def reply(asking: Asking, asked: messages.Ask, runs: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """What the first of some runs answers to a person: as it is now, or as it was saved last.

    Returns:
        Texts of that run; of all that are not open, if it is not.

    Raises:
        OpError: There is no such run, it has no weights, or it cannot answer.
    """
    fit, run = asking.fit, runs[0]
    if fit.left:
        raise OpError("the experiment was ended meanwhile; run_fit opens it again")
    known = fit.state.runs.get(run)
    if known is None or known.status == "deleted" or run not in fit.configs:
        raise OpError(f"there is no run {run} that could answer")
    if not opened(fit, run):
        return _saved(fit, asked, runs)
    own = lent(asking, run)
    if own is not None and own.error:
        raise OpError(f"run {run} cannot answer: {own.error}")
    report = None
    if own is not None:
        others = (other for other in runs[1:] if other in fit.configs and opened(fit, other))
        report, _ = answers(asking, run, own, others)
    if report is None:
        raise OpError(f"run {run} was ended meanwhile; ask it again")
    if report.answers is None:
        raise OpError(f"run {run} cannot answer: {report.error}")
    spelt = fit.executor.command(run, messages.Spell(report.answers))
    assert isinstance(spelt, messages.Spelt)
    return {run: spelt.texts}


def opened(fit: Fit, run: int) -> bool:
    """Open a run that trains, and bring it to where it is; False if it is not, or failed at it."""
    if fit.state.runs[run].status in ACTIVE and not fit.executor.is_open(run):
        fit.open_run(run)
        fit.prepared.add(run)
    if fit.executor.is_open(run):
        begin(fit, run, fit.state.runs[run].step)
    return fit.executor.is_open(run)


def _saved(fit: Fit, asked: messages.Ask, runs: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """What the saved weights of runs that are not open answer; the first of them must have some."""
    fit.executor.flush()
    sources = {}
    for run in runs:
        if run in fit.configs and not fit.executor.is_open(run):
            sources[run] = checkpoints.newest_weights(fit.executor.run_dir(run))
    if sources[runs[0]] is None:
        raise OpError(f"run {runs[0]} has no weights yet; wait for its first chunk")
    orders = [Order(run, fit.configs[run], source) for run, source in sources.items() if source]
    return fit.executor.answer_closed(orders, asked)
