"""The engine: one thread per process that trains, and answers ops, for every experiment in it.

Ops and fits come in through one inbox. The thread picks the next slice, passes the baton to that
run's session, and handles the inbox whenever the baton is back: at the step boundaries of whichever
run is training. What it does becomes events; nothing else changes an experiment's state.
"""

import atexit
import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from rapidfire_jupyter import deciding, folders, leaving, observing, operations, scheduler
from rapidfire_jupyter.asking import Asking, begin, opened, reply
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.fit import Fit
from rapidfire_jupyter.ops import UNDO_SECONDS, Op, OpHandle
from rapidfire_jupyter.oversight import Oversight
from rapidfire_jupyter.slicing import Slice, tell_cut
from rapidfire_jupyter.state import ACTIVE, Run
from rapidfire_jupyter.training import memory, messages
from rapidfire_jupyter.training.gauge import Reading
from rapidfire_jupyter.turn import Turn
from rapidfire_jupyter.undo import opposite

TIDY_SECONDS = 10.0  # memory that runs freed is given back this often while they train


@dataclass(frozen=True)
class _Message:
    action: str  # "fit", "oversee", "op", "end", "exit"
    fit: Fit | None
    op: Op | None = None
    reply: Any = None  # OpHandle for ops, else a Future
    runs: tuple[int, ...] = ()
    ask: messages.Ask | None = None


class Engine:
    """The one training thread of a process.

    Public methods are safe from any thread and never wait for training, except those that say so.

    Attributes:
        turn: Whose turn it is; `turn.hold` pauses training.
    """

    def __init__(self) -> None:
        self._inbox: queue.Queue[_Message] = queue.Queue()
        self._fits: list[Fit] = []
        self.turn = Turn()
        self._exiting = False
        self._exit: Future[None] | None = None
        self._asks: list[_Message] = []  # answered between two slices
        self._deferred: list[_Message] = []  # asked by a cell that training is held for
        self._tidied: float | None = None  # when memory was given back; None: nothing to give
        self._thread = threading.Thread(target=self._work, name="rapidfire-engine", daemon=True)
        self._thread.start()

    # ---- for everybody ----

    def add(self, fit: Fit) -> None:
        """Start training an experiment's active runs."""
        self._send(_Message("fit", fit, reply=Future()))

    def oversee(self, fit: Fit, oversight: Oversight) -> None:
        """Let other policies and monitors look after an experiment that trains."""
        fit.oversight = oversight
        self._send(_Message("oversee", fit, reply=Future()))

    def submit(self, fit: Fit, op: Op) -> OpHandle:
        """Ask for an op; it acts at the next boundary."""
        handle = OpHandle(op)
        self._send(_Message("op", fit, op, handle))
        return handle

    def ask(
        self, fit: Fit, runs: Sequence[int], ask: messages.Ask
    ) -> "Future[dict[int, tuple[str, ...]]]":
        """Let runs answer a person between two slices; the one that trains ends its slice early."""
        answers: Future[dict[int, tuple[str, ...]]] = Future()
        self._send(_Message("ask", fit, None, answers, tuple(runs), ask))
        return answers

    def end(self, fit: Fit, timeout: float | None = None) -> None:
        """Checkpoint, close and forget an experiment; waits until that is done."""
        done: Future[None] = Future()
        self._send(_Message("end", fit, reply=done))
        done.result(timeout)

    def shut_down(self, timeout: float) -> None:
        """Checkpoint every experiment and stop training for good, in at most `timeout` seconds."""
        if self._thread.is_alive():
            if self._exit is None:
                self._exit = Future()
                self._send(_Message("exit", None, reply=self._exit))
            with contextlib.suppress(TimeoutError):
                self._exit.result(timeout)

    def is_held_for_cells(self) -> bool:
        """Whether an experiment in it wants training to pause while cells run."""
        return any(fit.pace.held_for_cells for fit in list(self._fits))

    def _send(self, message: _Message) -> None:
        self._inbox.put(message)
        self.turn.interrupt()

    # ---- the thread ----

    def _work(self) -> None:
        while not self._exiting:
            self._read_inbox()
            if self._exiting:
                return  # no run may compute while Python ends
            self._empty_trash()
            self._tell_cut_slices()
            holding = self.turn.is_held()
            if not holding:
                self._answer()
                self._decide()
            if self._exiting:
                return
            coming = None if holding else self._next_turn()
            if coming is None:
                self._wait(holding)
                continue
            fit, run = coming
            try:
                self._take_turn(fit, run)
            except Exception as error:  # the disk or a fault of ours; this thread serves others too
                leaving.halt(fit, error)

    def _answer(self) -> None:
        """Let runs answer what was asked of them; what is asked meanwhile waits for a step."""
        asks, self._asks = self._asks, []
        for message in asks:
            if self._exiting:
                return
            fit, ask = message.fit, message.ask
            assert fit is not None and ask is not None
            try:
                if fit not in self._fits or fit.halted:
                    raise OpError("the experiment is not training here; run its run_fit cell first")
                asking = Asking(fit, messages.Lend(ask), {}, self._between)
                told: dict[int, tuple[str, ...]] = {}
                for place, run in enumerate(message.runs):
                    if run not in told:
                        with self._training(fit, run):
                            told |= reply(asking, ask, message.runs[place:])
                message.reply.set_result(told)
            except Exception as error:
                message.reply.set_exception(error)

    @contextlib.contextmanager
    def _training(self, fit: Fit, run: int) -> Iterator[None]:
        """While inside, a run has the turn: whoever wants something interrupts it.

        Cells that training is held for come first.
        """
        while not self.turn.begin(fit, run, anyhow=self._exiting):
            self._wait(holding=True)
        try:
            yield
        finally:
            self.turn.end()

    def _decide(self) -> None:
        for fit in list(self._fits):
            if _undecided(fit):
                try:
                    deciding.look(fit, self._settle)
                except OSError as error:
                    leaving.halt(fit, error)

    def _settle(self, fit: Fit, run: int) -> None:
        """Let a run that is to be stopped answer first what it owes; after a crash it is opened."""
        known = fit.state.runs[run]
        if known.status not in ACTIVE or run not in fit.configs or not fit.owes(run, known.step):
            return
        with self._training(fit, run):
            if fit.left or not opened(fit, run) or not self._between(fit, run):
                return
            step = fit.state.runs[run].step
            with Slice(fit, run) as told:
                self._watch(fit, run, step, told, answers=True)
                if not self._exiting and fit.executor.is_open(run):
                    told.end(step)

    def _wait(self, holding: bool) -> None:
        """Nothing to train: wait for a message (or for the end of a hold, or of an undo period)."""
        if not holding and self._tidied is not None:
            memory.give_back()
            self._tidied = None
        with self.turn.resting():
            soon = holding or self._deferred or self._asks or any(map(_undecided, self._fits))
            seconds = 0.02 if soon else (1.0 if self._trash() else None)
            try:
                message = self._inbox.get(timeout=seconds)
            except queue.Empty:
                return
        self._take(message)

    def _tidy(self) -> None:
        now = time.monotonic()
        if self._tidied is None:
            self._tidied = now
        elif now >= self._tidied + TIDY_SECONDS:
            memory.give_back()
            self._tidied = now

    def _read_inbox(self) -> None:
        while self._deferred and not self.turn.is_held():
            self._handle(self._deferred.pop(0))
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._take(message)

    def _take(self, message: _Message) -> None:
        """Handle a message; while training is held for a cell, ops wait: they may need a run."""
        if message.action in ("op", "end") and (self._deferred or self.turn.is_held()):
            self._deferred.append(message)
        else:
            self._handle(message)

    def _handle(self, message: _Message) -> None:
        try:
            if message.action == "op":
                assert message.fit is not None and message.op is not None
                self._do(message.fit, message.op, message.reply)
                return
            if message.action == "ask":
                self._asks.append(message)
                return
            if message.action == "fit" and message.fit is not None:
                self._fits.append(message.fit)
                message.fit.oversee()
                message.fit.used_seconds = min(
                    (f.used_seconds for f in self._fits if f is not message.fit), default=0.0
                )
            elif message.action == "oversee" and message.fit is not None:
                message.fit.oversee()
            elif message.action == "end" and message.fit is not None:
                if message.fit in self._fits:
                    self._fits.remove(message.fit)
                    leaving.end(message.fit)
            elif message.action == "exit":
                self._exiting = True
                for fit in self._fits:
                    try:
                        leaving.save(fit)
                    except OSError as error:  # others may be on another disk
                        leaving.halt(fit, error)
            message.reply.set_result(None)
        except Exception as error:
            if message.fit is not None and isinstance(error, OSError):
                leaving.halt(message.fit, error)
            if isinstance(message.reply, Future):
                message.reply.set_exception(error)
            else:
                message.reply.settle("refused", f"{type(error).__name__}: {error}", None, None)

    def _next_turn(self) -> tuple[Fit, int] | None:
        """Runs that are not prepared yet go first: their errors come in the first minute."""
        best: tuple[Fit, int] | None = None
        for fit in sorted(self._fits, key=lambda f: f.used_seconds):
            fit.asked &= fit.owing() if fit.asked and not fit.halted else set()
            if fit.halted or fit.state.paused:
                continue
            queued = [
                r.id
                for r in fit.state.runs.values()
                if r.status == "queued" and r.id in fit.configs
            ]
            fresh = [i for i in queued if i not in fit.prepared]
            if fresh:
                return fit, fresh[0]
            ready = fit.configs.keys() & fit.state.runs.keys()
            turns = scheduler.turns(fit.state, ready, fit.executor.base_to_stay_on())
            fit.asked &= set(turns)
            if turns and best is None:
                fit.executor.expect(turns)
                best = fit, next((i for i in turns if i in fit.asked), turns[0])
        return best

    def _take_turn(self, fit: Fit, run: int) -> None:
        started = time.monotonic()
        if not self.turn.begin(fit, run):
            return
        fit.undecided = True
        try:
            if not fit.executor.is_open(run):
                fit.open_run(run)
                first = run not in fit.prepared
                fit.prepared.add(run)
                if first:
                    return
            if fit.executor.is_open(run):
                cycle = fit.executor.generations.cycle(run)  # steps until others have their turns
                with Slice(fit, run, in_turns=cycle is not None) as told:
                    self._slice(fit, run, told, cycle)
        finally:
            self.turn.end()
            fit.used_seconds += (time.monotonic() - started) / fit.weight
            self._tidy()

    # ---- a run's turn ----

    def _slice(self, fit: Fit, run: int, told: Slice, cycle: int | None) -> None:
        known = fit.state.runs[run]
        owes = fit.owes(run, known.step)
        self._watch(fit, run, known.step, told, owes)
        if self._exiting or not fit.executor.is_open(run):
            return
        if owes:  # others do too before anybody trains on, and policies look at all answers
            fit.asked = fit.owing()
            told.end(known.step)
        if run in fit.ending:
            fit.complete(run)
        if owes or run in fit.ending:
            return
        until = scheduler.slice_end(known, scheduler.least(fit.pace.slice_steps, cycle))
        report, told.read = self._advance(fit, run, until, told)
        if isinstance(report, messages.Finished):  # nothing was left to train
            fit.keep_finished(run, report.step)
        if not isinstance(report, messages.Parked):
            return  # it failed, or an op closed it: their events say so
        step, ends = report.step, known.chunk_ends
        told.charge(*fit.executor.generations.settle(run))
        trained = told.seconds() - told.watched
        fit.moved(run, step)  # ops during its evaluation find it where it is
        self._watch(fit, run, step, told, answers=False)
        if not self._exiting and fit.executor.is_open(run):
            trained += sum(one.seconds - one.watched for one in (told.before, *fit.spent.values()))
            observing.thin(fit, run, step, trained, self._between)
        if self._exiting or not fit.executor.is_open(run):
            return
        if step in ends or report.ending or report.save_wanted:
            fit.save(run)
        if not fit.executor.is_open(run):
            return
        if cycle and not (report.ending or step in ends or told.is_over(step)):
            told.pause()
            return
        told.end(step)
        if not report.ending:
            return
        if fit.owes(run, step):
            fit.ending.add(run)  # completed when it has answered: at its next turn
        else:
            fit.complete(run)

    def _watch(self, fit: Fit, run: int, step: int, told: Slice, answers: bool) -> None:
        """Evaluate a parked run if that is due, and let it answer if it is to."""
        started, elsewhere = time.monotonic(), 0.0
        if not (answers or fit.unobserved(run, step)):
            return
        begin(fit, run, step)
        if fit.executor.is_open(run):
            observing.observe(fit, run, step, self._between)
        if answers and fit.executor.is_open(run) and not self._exiting:
            elsewhere = observing.pay(fit, run, step, self._between)
        told.watched += time.monotonic() - started + elsewhere
        told.elsewhere += elsewhere

    def _advance(
        self, fit: Fit, run: int, until: int, told: Slice
    ) -> tuple[messages.Report | None, Reading]:
        """Train until the slice ends, answering the inbox at boundaries on the way.

        Returns:
            The last report, None if an op ended this run's slice early; and what was measured.
        """
        pace, started, read = fit.pace, told.started, Reading()
        fit.begun.add(run)
        if not self._inbox.empty() or self.turn.is_held():
            fit.executor.ask(run, True)
        while True:
            deadline = fit.saved_at[run] + pace.checkpoint_seconds
            if pace.slice_seconds is not None:
                deadline = min(deadline, started + pace.slice_seconds)
            report = fit.executor.command(
                run,
                messages.Advance(until, deadline),
                lambda: deciding.look_meanwhile(fit, run, told.taken()),
            )
            if isinstance(report, messages.Failed):
                fit.failed(run, report)
                return None, read
            if isinstance(report, messages.Parked):
                read += report.read
            if not isinstance(report, messages.Parked) or report.ending:
                return report, read
            fit.executor.ask(run, False)
            if not self._inbox.empty():
                fit.moved(run, report.step)
            while self.turn.is_held() and not self._exiting:
                self._wait(holding=True)
            self._read_inbox()
            known = fit.state.runs.get(run)
            if self._exiting or known is None or not fit.executor.is_open(run):
                return None, read
            if known.status not in ("queued", "running"):
                return fit.executor.command(run, messages.AbortEvaluation()), read
            now = time.monotonic()
            if report.in_evaluation:
                continue
            if report.save_wanted or now >= fit.saved_at[run] + pace.checkpoint_seconds:
                fit.save(run)
            if not fit.executor.is_open(run):
                return None, read
            over = pace.slice_seconds is not None and now >= started + pace.slice_seconds
            if report.step >= until or over or self._asks:
                return report, read

    def _between(self, fit: Fit, run: int) -> bool:
        """Answer the inbox while a run is parked in an evaluation; False if it has to end."""
        fit.executor.ask(run, False)
        while self.turn.is_held() and not self._exiting:
            self._wait(holding=True)
        self._read_inbox()
        return not self._exiting and fit.executor.is_open(run)

    # ---- ops ----

    def _do(self, fit: Fit, op: Op, handle: OpHandle) -> None:
        if (fit.halted and op.kind != "delete") or fit not in self._fits:
            handle.settle(
                "refused",
                fit.halted or "the experiment has ended; run_fit opens it again",
                None,
                op.run,
            )
            return
        if op.kind == "undo":
            found = opposite(fit.log.since(0), op.by)
            if found is None:
                handle.settle("refused", "there has been no op yet to undo", None, None)
                return
            op = handle.op = found
        operations.perform(fit, op, handle)

    # ---- upkeep between turns ----

    def _tell_cut_slices(self) -> None:
        for fit in list(self._fits):
            if not fit.halted:
                try:
                    tell_cut(fit)
                except OSError as error:
                    leaving.halt(fit, error)

    def _trash(self) -> list[tuple[Fit, Run]]:
        return [(f, r) for f in self._fits for r in folders.deletable(f.folder, f.state)]

    def _empty_trash(self) -> None:
        for fit, run in self._trash():
            if time.time() - run.deleted_at > UNDO_SECONDS:
                folders.remove_from_trash(fit.folder, run.id)


def _undecided(fit: Fit) -> bool:
    """Whether policies are to look at something now; they wait for answers that are on the way."""
    return fit.undecided and not (fit.halted or fit.left) and not fit.asked


_engine: Engine | None = None
_engine_lock = threading.Lock()


def engine() -> Engine:
    """The process's engine; started at the first call."""
    global _engine
    with _engine_lock:
        if _engine is None or not _engine._thread.is_alive():
            _engine = Engine()
            atexit.register(_engine.shut_down, 3.5)
        return _engine
