"""The engine: one thread per process that trains, and answers ops, for every experiment in it.

Ops and fits come in through one inbox. The thread picks the next slice, passes the baton to that
run's session, and handles the inbox whenever the baton is back: at the step boundaries of whichever
run is training. What it does becomes events; nothing else changes an experiment's state.
"""

import atexit
import contextlib
import logging
import queue
import shutil
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rapidfire_jupyter import folders, scheduler
from rapidfire_jupyter import state as states
from rapidfire_jupyter.changes import modify
from rapidfire_jupyter.config import RunConfig, flatten
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import OpError, RapidFireError
from rapidfire_jupyter.events import Event, EventLog
from rapidfire_jupyter.executors.local import LocalExecutor, Order
from rapidfire_jupyter.ops import UNDO_SECONDS, Op, OpHandle, Verdict, verdict
from rapidfire_jupyter.state import Run, State
from rapidfire_jupyter.training import checkpoints, messages, warm

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pace:
    """How training is cut into slices, and how often it is saved. Times in seconds."""

    slice_steps: int | None = None
    slice_seconds: float | None = None
    checkpoint_seconds: float = 300.0
    evaluate_chunks: bool = False


@dataclass
class Fit:
    """One experiment as the engine trains it. Only the engine's thread changes it.

    Attributes:
        configs: Live configs of the runs, callables included, by run id.
        used_seconds: Training time had, for fair turns among experiments.
        halted: Why this experiment cannot be trained on in this kernel (its disk failed); "" if it can.
    """

    folder: Path
    log: EventLog
    state: State
    configs: dict[int, RunConfig]
    executor: LocalExecutor
    pace: Pace
    weight: float = 1.0
    used_seconds: float = 0.0
    halted: str = ""
    saved_at: dict[int, float] = field(default_factory=dict)
    observed: dict[int, int] = field(default_factory=dict)
    prepared: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    disk_bytes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log.subscribe(self._follow)

    def _follow(self, event: Event) -> None:
        self.state = states.apply(self.state, event)

    def emit(
        self, kind: str, run: int | None = None, /, *, sync: bool = False, **data: Any
    ) -> Event:
        """Append an event; any thread. Any: JSON values."""
        return self.log.append(kind, run, sync=sync, **data)


@dataclass(frozen=True)
class _Message:
    action: str  # "fit", "op", "end", "exit"
    fit: Fit | None
    op: Op | None = None
    reply: Any = None  # OpHandle for ops, else a Future


class Engine:
    """The one training thread of a process. Public methods are safe from any thread and never wait
    for training, except those that say so.
    """

    def __init__(self) -> None:
        self._inbox: queue.Queue[_Message] = queue.Queue()
        self._fits: list[Fit] = []
        self._turn: tuple[Fit, int] | None = None
        self._turn_lock = threading.Lock()
        self._hold = threading.Event()
        self._held = threading.Event()
        self._exiting = False
        self._thread = threading.Thread(target=self._work, name="rapidfire-engine", daemon=True)
        self._thread.start()

    # ---- for everybody ----

    def add(self, fit: Fit) -> None:
        """Start training an experiment's active runs."""
        self._send(_Message("fit", fit, reply=Future()))

    def submit(self, fit: Fit, op: Op) -> OpHandle:
        """Ask for an op; it acts at the next boundary."""
        handle = OpHandle(op)
        self._send(_Message("op", fit, op, handle))
        return handle

    def end(self, fit: Fit, timeout: float | None = None) -> None:
        """Checkpoint, close and forget an experiment; waits until that is done."""
        done: Future[None] = Future()
        self._send(_Message("end", fit, reply=done))
        done.result(timeout)

    def shut_down(self, timeout: float) -> None:
        """Checkpoint every experiment and stop training for good; waits at most `timeout` seconds."""
        if self._thread.is_alive():
            done: Future[None] = Future()
            self._send(_Message("exit", None, reply=done))
            try:
                done.result(timeout)
            except TimeoutError:
                return

    def training_run(self) -> int | None:
        """Id of the run that holds the baton now."""
        turn = self._turn
        return turn[1] if turn else None

    def hold(self, timeout: float) -> bool:
        """Pause training at the next boundary, until `release`; whether it paused in time (seconds)."""
        self._hold.set()
        self._interrupt(True)
        if self._turn is None:
            return True
        return self._held.wait(timeout)

    def release(self) -> None:
        """Let training go on after `hold`."""
        self._hold.clear()

    def _send(self, message: _Message) -> None:
        self._inbox.put(message)
        self._interrupt(True)

    def _interrupt(self, wanted: bool) -> None:
        with self._turn_lock:
            if self._turn is not None:
                fit, run = self._turn
                fit.executor.ask(run, wanted)

    # ---- the thread ----

    def _work(self) -> None:
        while not self._exiting:
            self._read_inbox()
            self._empty_trash()
            turn = None if self._hold.is_set() else self._next_turn()
            if turn is None:
                self._wait()
                continue
            fit, run = turn
            try:
                self._take_turn(fit, run)
            except (
                Exception
            ) as error:  # the disk, or a fault of ours: this thread serves all others
                self._halt(fit, error)

    def _wait(self) -> None:
        """Nothing to train: wait for a message (or for the end of a hold, or of an undo period)."""
        self._held.set()
        try:
            seconds = 0.02 if self._hold.is_set() else (1.0 if self._trash() else None)
            message = self._inbox.get(timeout=seconds)
        except queue.Empty:
            return
        finally:
            self._held.clear()
        self._handle(message)

    def _read_inbox(self) -> None:
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._handle(message)

    def _handle(self, message: _Message) -> None:
        try:
            if message.action == "op":
                assert message.fit is not None and message.op is not None
                self._do(message.fit, message.op, message.reply)
                return
            if message.action == "fit" and message.fit is not None:
                self._fits.append(message.fit)
                message.fit.used_seconds = min(
                    (f.used_seconds for f in self._fits if f is not message.fit), default=0.0
                )
            elif message.action == "end" and message.fit is not None:
                self._end(message.fit)
            elif message.action == "exit":
                self._exiting = True
                self._save_all()
            message.reply.set_result(None)
        except Exception as error:
            if message.fit is not None and isinstance(error, OSError):
                self._halt(message.fit, error)
            if isinstance(message.reply, Future):
                message.reply.set_exception(error)
            else:
                message.reply.settle("refused", f"{type(error).__name__}: {error}", None, None)

    def _next_turn(self) -> tuple[Fit, int] | None:
        """Runs that are not prepared yet go first, so that their errors come in the first minute."""
        best: tuple[Fit, int] | None = None
        for fit in sorted(self._fits, key=lambda f: f.used_seconds):
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
            run = scheduler.next_run(fit.state, fit.configs.keys() & fit.state.runs.keys())
            if run is not None and best is None:
                best = fit, run
        return best

    def _take_turn(self, fit: Fit, run: int) -> None:
        started = time.monotonic()
        with self._turn_lock:
            self._turn = fit, run
        try:
            if not fit.executor.is_open(run):
                self._open(fit, run)
                first = run not in fit.prepared
                fit.prepared.add(run)
                if first:
                    return
            if fit.executor.is_open(run):
                self._slice(fit, run)
        finally:
            with self._turn_lock:
                self._turn = None
            fit.used_seconds += (time.monotonic() - started) / fit.weight

    # ---- a run's turn ----

    def _open(self, fit: Fit, run: int) -> None:
        """Build a run's trainer, from its newest good checkpoint if it has one."""
        fit.executor.flush()
        fit.executor.clear_staging(run)
        resume, skipped = checkpoints.newest_good(fit.executor.run_dir(run))
        rows = len(states.history(fit.log.events, run))
        step = resume.step if resume else (fit.state.runs[run].clone_step or 0)
        kept_rows = resume.rows if resume else 0
        if skipped or rows != kept_rows or (resume and fit.state.runs[run].step != step):
            fit.emit("run_recovered", run, step=step, rows=kept_rows, skipped=skipped, sync=True)
        known = fit.state.runs[run]
        source = fit.executor.run_dir(run) / "source" if known.warm else None
        order = Order(run, fit.configs[run], source)
        report = fit.executor.open(order, resume)
        if isinstance(report, messages.Failed):
            self._failed(fit, run, report)
            return
        assert isinstance(report, messages.Prepared)
        schedule = report.schedule
        fit.saved_at[run] = time.monotonic()
        fit.begun.discard(run)
        fit.emit(
            "run_prepared",
            run,
            total_steps=schedule.total_steps,
            steps_per_epoch=schedule.steps_per_epoch,
            chunk_ends=list(schedule.chunk_ends),
            aligned=schedule.aligned,
            dropped=schedule.dropped,
            base=report.base,
            step=report.step,
            notes=list(report.notes),
            disk_bytes=report.disk_bytes,
        )
        for reason in report.inexact:
            fit.emit("run_inexact", run, reason=reason)
        self._check_disk(fit, run, report.disk_bytes)

    def _check_disk(self, fit: Fit, run: int, checkpoint_bytes: int) -> None:
        """Compare what the checkpoints of all prepared runs will take with what is free."""
        fit.disk_bytes[run] = checkpoint_bytes * (fit.executor.keep + 2)
        needed, free = sum(fit.disk_bytes.values()), shutil.disk_usage(fit.folder).free
        if needed > free and not fit.state.paused:
            text = (
                f"checkpoints of {len(fit.disk_bytes)} runs take about {needed / 2**20:.0f} MiB, but "
                f"{free / 2**20:.0f} MiB are free: paused; free space, then resume_all, or use keep_checkpoints=1"
            )
            fit.emit("alert", text=text)
            self._do(fit, Op("pause_all", by="engine"), OpHandle(Op("pause_all", by="engine")))

    def _slice(self, fit: Fit, run: int) -> None:
        known = fit.state.runs[run]
        started, first_step = time.monotonic(), known.step
        fit.emit("slice_started", run, step=first_step)
        if self._unobserved(fit, run, first_step) and run not in fit.begun:
            fit.executor.command(run, messages.Advance(first_step))
            fit.begun.add(run)
        self._observe(fit, run, first_step)
        report = None
        if fit.executor.is_open(run):
            report = self._advance(
                fit, run, scheduler.slice_end(known, fit.pace.slice_steps), started
            )
        if isinstance(report, messages.Finished):  # nothing was left to train
            self._keep_finished(fit, run, report.step)
        if not isinstance(report, messages.Parked):
            return  # it failed, or an op closed it: their events say so
        step, ends = report.step, known.chunk_ends
        self._observe(fit, run, step)
        if not fit.executor.is_open(run):
            return
        if step in ends or report.ending or report.save_wanted:
            self._save(fit, run)
        self._moved(fit, run, step)
        fit.emit(
            "slice_ended",
            run,
            step=step,
            steps=step - first_step,
            seconds=time.monotonic() - started,
        )
        if report.ending:
            self._complete(fit, run)

    def _advance(self, fit: Fit, run: int, until: int, started: float) -> messages.Report | None:
        """Train until the slice ends, answering the inbox at boundaries on the way.

        Returns:
            The last report; None if an op ended this run's slice early.
        """
        pace = fit.pace
        fit.begun.add(run)
        if not self._inbox.empty():
            fit.executor.ask(run, True)
        while True:
            deadline = fit.saved_at[run] + pace.checkpoint_seconds
            if pace.slice_seconds is not None:
                deadline = min(deadline, started + pace.slice_seconds)
            report = fit.executor.command(run, messages.Advance(until, deadline))
            if isinstance(report, messages.Failed):
                self._failed(fit, run, report)
                return None
            if not isinstance(report, messages.Parked) or report.ending:
                return report
            fit.executor.ask(run, False)
            if not self._inbox.empty():
                self._moved(fit, run, report.step)
            while self._hold.is_set() and not self._exiting:
                self._wait()
            self._read_inbox()
            known = fit.state.runs.get(run)
            if self._exiting or known is None or not fit.executor.is_open(run):
                return None
            if known.status not in ("queued", "running"):
                return fit.executor.command(run, messages.AbortEvaluation())
            now = time.monotonic()
            if report.in_evaluation:
                continue
            if report.save_wanted or now >= fit.saved_at[run] + pace.checkpoint_seconds:
                self._save(fit, run)
            over = pace.slice_seconds is not None and now >= started + pace.slice_seconds
            if report.step >= until or over:
                return report

    def _unobserved(self, fit: Fit, run: int, step: int) -> bool:
        """Whether a chunk evaluation is due at this step."""
        if not fit.pace.evaluate_chunks or step not in fit.state.runs[run].chunk_ends:
            return False
        if run not in fit.observed:
            fit.observed[run] = max(states.observed_steps(fit.log.events, run), default=0)
        return fit.observed[run] < step

    def _observe(self, fit: Fit, run: int, step: int) -> None:
        """Evaluate a run that is parked at a chunk end, unless it was evaluated there already."""
        if not self._unobserved(fit, run, step):
            return
        report = fit.executor.command(run, messages.Observe())
        while isinstance(report, messages.Parked):
            fit.executor.ask(run, False)
            self._read_inbox()
            if not fit.executor.is_open(run):
                return
            report = fit.executor.command(run, messages.Advance(step))
        if isinstance(report, messages.Failed):
            self._failed(fit, run, report)
            return
        if isinstance(report, messages.Observed) and report.metrics is not None:
            fit.emit("logged", run, row={**report.metrics, "step": step}, source="chunk")
        fit.observed[run] = step

    def _save(self, fit: Fit, run: int) -> None:
        report = fit.executor.save(run)
        if isinstance(report, messages.SaveFailed):
            raise OSError(report.error)
        fit.saved_at[run] = time.monotonic()

    def _complete(self, fit: Fit, run: int) -> None:
        """Let a trainer finish after its last boundary, and keep its model."""
        fit.executor.flush()
        report = fit.executor.command(run, messages.Advance(1 << 62))
        if isinstance(report, messages.Failed):
            self._failed(fit, run, report)
            return
        assert isinstance(report, messages.Finished)
        self._keep_finished(fit, run, report.step)

    def _keep_finished(self, fit: Fit, run: int, step: int) -> None:
        """Keep the model of a run whose `train()` has returned."""
        saved = fit.executor.finish(run)
        if isinstance(saved, messages.SaveFailed):
            raise OSError(saved.error)
        fit.executor.flush()
        fit.executor.close(run)
        self._check_bases(fit)
        fit.emit("run_completed", run, sync=True, step=step)

    def _check_bases(self, fit: Fit) -> None:
        try:
            fit.executor.check_bases()
        except RapidFireError as error:
            for run in fit.state.runs.values():
                if run.base and run.step:
                    fit.emit("run_inexact", run.id, reason=str(error))

    def _failed(self, fit: Fit, run: int, report: messages.Failed) -> None:
        if report.storage:
            raise OSError(report.error)
        fit.emit("run_failed", run, sync=True, error=report.error, trace=report.trace)

    def _halt(self, fit: Fit, error: Exception) -> None:
        """Stop training an experiment whose disk fails; no run is marked, so it can be recovered."""
        if isinstance(error, OSError):
            what = f"the experiment's disk failed ({error}); free space or repair it"
        else:
            what = f"training stopped at a fault of the engine ({type(error).__name__}: {error})"
            logger.error("engine fault", exc_info=error)
        fit.halted = (
            f"{what}, then run the same run_fit again: it goes on from the last checkpoints"
        )
        with contextlib.suppress(OSError):
            fit.executor.end()
        with contextlib.suppress(OSError):
            fit.emit("alert", text=fit.halted)

    # ---- ops ----

    def _do(self, fit: Fit, op: Op, handle: OpHandle) -> None:
        if fit.halted or fit not in self._fits:
            handle.settle(
                "refused",
                fit.halted or "the experiment has ended; run_fit opens it again",
                None,
                op.run,
            )
            return
        judged = verdict(fit.state, op, time.time())
        data: dict[str, Any] = {}
        if judged.outcome == "applied":
            try:
                judged, data = self._act(fit, op)
            except RapidFireError as error:
                judged = Verdict("refused", str(error))
        run = fit.state.runs.get(op.run) if op.run is not None else None
        step = run.step if run else None
        fit.emit(
            "op",
            op.run,
            sync=True,
            kind=op.kind,
            args=encode(dict(op.args)),
            by=op.by,
            outcome=judged.outcome,
            reason=judged.reason,
            step=data.pop("step", step),
            **data,
        )
        created = data.get("created") or data.get("existing")
        handle.settle(judged.outcome, judged.reason, step, created["id"] if created else op.run)

    def _act(self, fit: Fit, op: Op) -> tuple[Verdict, dict[str, Any]]:
        """Do what an allowed op asks of the executor and the disk; its event does the rest."""
        done = Verdict("applied")
        if op.kind == "clone":
            return self._clone(fit, op)
        if op.kind == "stop":
            assert op.run is not None
            return done, {"step": self._checkpoint_and_close(fit, op.run)}
        if op.kind == "resume":
            return self._resume(fit, op)
        if op.kind == "boost":
            return done, {"weight": float(op.args["weight"])}
        if op.kind == "delete":
            assert op.run is not None
            step = self._checkpoint_and_close(fit, op.run)
            folders.to_trash(fit.folder, op.run)
            return done, {"step": step}
        if op.kind == "undelete":
            assert op.run is not None
            folders.from_trash(fit.folder, op.run)
        return done, {}

    def _checkpoint_and_close(self, fit: Fit, run: int) -> int:
        """Bring a run to its boundary, save it if it has trained, and end its session."""
        if not fit.executor.is_open(run):
            return fit.state.runs[run].step
        report = fit.executor.command(run, messages.AbortEvaluation())
        assert isinstance(report, messages.Parked | messages.Observed)
        begun = not isinstance(report, messages.Parked) or report.begun
        if begun and report.step > 0:
            self._save(fit, run)
            fit.executor.flush()
        fit.executor.close(run)
        self._moved(fit, run, report.step)
        return report.step

    def _moved(self, fit: Fit, run: int, step: int) -> None:
        """Tell how far a run has come, if that is not known."""
        known = fit.state.runs[run]
        if step != known.step:
            done = states.chunks_done(known.chunk_ends, step)
            before = states.chunks_done(known.chunk_ends, known.step)
            fit.emit("advanced", run, step=step, chunks=done - before)

    def _resume(self, fit: Fit, op: Op) -> tuple[Verdict, dict[str, Any]]:
        assert op.run is not None
        fit.prepared.discard(op.run)
        if not op.args:
            return Verdict("applied"), {}
        config = modify(fit.configs[op.run], op.args)
        fit.configs[op.run] = config
        return Verdict("applied"), {"config": encode(flatten(config))}

    def _clone(self, fit: Fit, op: Op) -> tuple[Verdict, dict[str, Any]]:
        assert op.run is not None
        parent, config = fit.state.runs[op.run], fit.configs[op.run]
        changed = modify(config, op.args["changes"])
        encoded = encode(flatten(changed))
        if not op.args.get("again"):
            for run in fit.state.runs.values():
                same = (run.parent, run.warm, run.config) == (op.run, op.args["warm"], encoded)
                if same and run.status != "deleted":
                    fit.configs.setdefault(run.id, changed)
                    reason = f"run {run.id} is that clone; again=True makes another"
                    return Verdict("already", reason), {"existing": {"id": run.id}}
        number = max(fit.state.runs) + 1
        step = None
        if op.args["warm"]:
            reason = warm.refusal(config, changed)
            if reason:
                raise OpError(f"{reason}; use warm=False")
            step = self._warm_source(fit, parent, number)
        spec = {
            "id": number,
            "name": op.args.get("name") or f"clone of {parent.id}",
            "trainer_type": config.trainer_type,
            "config": encoded,
            "parent": parent.id,
            "warm": op.args["warm"],
            "changes": encode(dict(op.args["changes"])),
            "clone_step": step,
        }
        fit.configs[number] = changed
        return Verdict("applied"), {
            "created": spec,
            "step": step if step is not None else parent.step,
        }

    def _warm_source(self, fit: Fit, parent: Run, clone: int) -> int:
        """Copy the parent's state at its boundary into the clone's own folder."""
        if fit.executor.is_open(parent.id):
            report = fit.executor.command(parent.id, messages.AbortEvaluation())
            assert isinstance(report, messages.Parked | messages.Observed)
            if not isinstance(report, messages.Parked) or report.begun:
                self._save(fit, parent.id)
                fit.executor.flush()
            self._moved(fit, parent.id, report.step)
        newest, _ = checkpoints.newest_good(fit.executor.run_dir(parent.id))
        if newest is None:
            raise OpError(
                f"run {parent.id} has no good checkpoint to start warm from; use warm=False"
            )
        folders.copy_source(newest.path, fit.executor.run_dir(clone) / "source")
        return newest.step

    # ---- ends ----

    def _end(self, fit: Fit) -> None:
        if fit not in self._fits:
            return
        self._fits.remove(fit)
        if fit.halted:
            return
        for run in fit.state.runs.values():
            if fit.executor.is_open(run.id):
                self._checkpoint_and_close(fit, run.id)
        fit.executor.flush()
        fit.executor.end()
        fit.emit("ended", sync=True)

    def _save_all(self) -> None:
        """The process ends: save every run that has trained; its threads die with the process."""
        for fit in self._fits:
            if fit.halted:
                continue
            for run in fit.state.runs.values():
                if fit.executor.is_open(run.id) and run.id in fit.begun:
                    report = fit.executor.command(run.id, messages.AbortEvaluation())
                    if isinstance(report, messages.Parked) and report.step > (
                        run.checkpoint_step or 0
                    ):
                        self._save(fit, run.id)
            fit.executor.flush()
            fit.log.sync()

    def _trash(self) -> list[tuple[Fit, Run]]:
        return [(f, r) for f in self._fits for r in folders.deletable(f.folder, f.state)]

    def _empty_trash(self) -> None:
        for fit, run in self._trash():
            if time.time() - run.deleted_at > UNDO_SECONDS:
                folders.remove_from_trash(fit.folder, run.id)


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
