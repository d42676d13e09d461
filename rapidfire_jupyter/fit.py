"""One experiment as the engine trains it: its log, state, live configs, executor, and their upkeep.

Everything here happens in the engine's thread, with every run parked. What it does becomes events.
"""

import shutil
import time
from bisect import bisect_right
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rapidfire_jupyter import state as states
from rapidfire_jupyter import storage, switches, thinning
from rapidfire_jupyter.changes import modify
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import RapidFireError
from rapidfire_jupyter.events import Event, EventLog
from rapidfire_jupyter.executors.local import LocalExecutor, Order
from rapidfire_jupyter.ledger import Ledger
from rapidfire_jupyter.ops import Op, Verdict
from rapidfire_jupyter.oversight import Oversight
from rapidfire_jupyter.state import State
from rapidfire_jupyter.suggestions import RFOptuna
from rapidfire_jupyter.training import budget, checkpoints, messages, models, relief, trainers
from rapidfire_jupyter.training.gauge import Reading

# The disk is told of only if it may come to matter: less than this is free, or so many times what
# checkpoints may still take.
_AMPLE_BYTES = 2 * 2**30
_AMPLE = 10


@dataclass(frozen=True)
class Spent:
    """What a slice that is trained in turns has taken so far, in seconds.

    Attributes:
        step: Its run's step when it began.
        watched: In evaluations.
    """

    step: int
    seconds: float = 0.0
    watched: float = 0.0
    moving: float = 0.0
    computed: float = 0.0
    read: Reading = field(default_factory=Reading)


@dataclass(frozen=True)
class Pace:
    """How training is cut into slices, and how often it is saved. Times in seconds."""

    slice_steps: int | None = None
    slice_seconds: float | None = None
    checkpoint_seconds: float = 300.0
    evaluate_chunks: bool = False
    held_for_cells: bool = False
    eval_budget: float = 1.0


@dataclass(frozen=True)
class Shared:
    """What a run answered at a step, in another run's turn; None where it has to answer itself.

    Attributes:
        seconds: Its share of the time that this took.
    """

    step: int
    answers: tuple[tuple[int, ...] | None, ...]
    seconds: float


@dataclass
class Fit:
    """One experiment as the engine trains it. Only the engine's thread changes it.

    Attributes:
        configs: Live configs of the runs, callables included, by run id.
        used_seconds: Training time had, for fair turns among experiments.
        relieve: Whether a run that does not fit may be changed in every way that is documented.
        observed: Step of each run's newest chunk evaluation; `answered` of its newest answers.
        shared: What runs answered in another's turn, until their own.
        spent: What slices have taken that are trained in turns, until their ends.
        ending: Runs that are past their last step and still owe answers.
        asked: Runs that answer before any trains on, since one of them has.
        beside: Rows that were logged for a run by the engine since the run was opened.
        halted: Why it cannot be trained on in this kernel (its disk failed); "" if it can.
        left: It has ended or halted, or Python ends: nothing is begun or decided any more.
        oversight: Its policies and monitors; a later `run_fit` may give others.
        ledger: What they know.
        search: Suggests further runs when some have ended; None if all were there at the start.
        disk_seen_at: When the disk was last looked at, in monotonic seconds.
        at_fault: One of them failed: none looks in this kernel until a person switches policies.
        undecided: They have not looked at all that happened yet.
        news: Something happened that policies decide on.
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
    left: bool = False
    relieve: bool = False
    told_of_moving: bool = False
    saved_at: dict[int, float] = field(default_factory=dict)
    observed: dict[int, int] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)
    shared: dict[int, Shared] = field(default_factory=dict)
    spent: dict[int, Spent] = field(default_factory=dict)
    ending: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    beside: dict[int, int] = field(default_factory=dict)
    prepared: set[int] = field(default_factory=set)
    begun: set[int] = field(default_factory=set)
    disk_bytes: dict[int, int] = field(default_factory=dict)
    disk_seen_at: float = 0.0
    oversight: Oversight = field(default_factory=Oversight)
    ledger: Ledger = field(default_factory=Ledger)
    search: RFOptuna | None = None
    at_fault: bool = False
    undecided: bool = True
    news: bool = True

    def __post_init__(self) -> None:
        self.log.subscribe(self._follow)

    @cached_property
    def thinnings(self) -> list[thinning.Thinning]:
        """How evaluations are thinned, by what the log says."""
        return thinning.thinnings(self.log.since(0))

    def _follow(self, event: Event) -> None:
        self.state = states.apply(self.state, event)

    def emit(
        self, kind: str, run: int | None = None, /, *, sync: bool = False, **data: Any
    ) -> Event:
        """Append an event; any thread. Any: JSON values."""
        return self.log.append(kind, run, sync=sync, **data)

    def oversee(self) -> None:
        """Tell which policies `run_fit` was given, if they are others than before."""
        facts = switches.facts(self.oversight)
        if facts != dict(self.state.overseen) and (facts["policies"] or self.state.overseen):
            self.emit("overseen", sync=True, **facts)
        self.at_fault, self.news, self.undecided = False, True, True

    def open_run(self, run: int) -> None:
        """Build a run's trainer, from its newest good checkpoint if it has one."""
        self.executor.flush()
        self.executor.clear_staging(run)
        resume, skipped = checkpoints.newest_good(self.executor.run_dir(run))
        if skipped:
            checkpoints.set_aside(self.executor.run_dir(run), resume.step if resume else -1)
        rows = len(states.history(self.log.events, run))
        step = resume.step if resume else (self.state.runs[run].clone_step or 0)
        kept_rows = resume.rows if resume else 0
        if skipped or rows != kept_rows or (resume and self.state.runs[run].step != step):
            self.emit("run_recovered", run, step=step, rows=kept_rows, skipped=skipped, sync=True)
        for seen in (self.beside, self.observed, self.answered, self.shared, self.spent):
            seen.pop(run, None)
        self.ending.discard(run)
        order = Order(run, self.configs[run], self.source(run))
        report = self.executor.open(order, resume)
        if isinstance(report, messages.Failed):
            self.failed(run, report)
            return
        assert isinstance(report, messages.Prepared)
        schedule = report.schedule
        self.saved_at[run] = time.monotonic()
        self.begun.discard(run)
        self.emit(
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
            memory=asdict(report.needs),
        )
        for reason in report.inexact:
            self.emit("run_inexact", run, reason=reason)
        self.check_disk(run, report.disk_bytes)
        self.tell_of_moving()

    def source(self, run: int) -> Path | None:
        """The checkpoint of its parent that a warm clone starts from; None for other runs."""
        return self.executor.run_dir(run) / "source" if self.state.runs[run].warm else None

    def check_disk(self, run: int, checkpoint_bytes: int) -> None:
        """Compare what the checkpoints of all prepared runs will take with what is free."""
        self.disk_bytes[run] = checkpoint_bytes * (self.executor.keep + 2)
        needed, free = sum(self.disk_bytes.values()), shutil.disk_usage(self.folder).free
        if needed > free and not self.state.paused:
            reason = (
                f"checkpoints of {len(self.disk_bytes)} runs take {needed / 2**20:.0f} MiB, but "
                f"{free / 2**20:.0f} MiB are free: paused; free space, then resume_all"
            )
            self.emit("alert", text=reason)
            self.record(Op("pause_all", by="engine"), Verdict("applied", reason), None)

    def tell_of_moving(self) -> None:
        """Tell once that the runs prepared so far do not fit on the device together."""
        allowed = self.executor.device_bytes()
        known = [run.memory for run in self.state.runs.values() if run.memory]
        bases = {r.base: r.memory["base"] for r in self.state.runs.values() if r.memory}
        stay = sum(m["weights"] + m["optimizer"] for m in known) + sum(bases.values())
        work = max((m["gradients"] + m["activations"] for m in known), default=0)
        if self.told_of_moving or allowed is None or stay + work <= allowed:
            return
        self.told_of_moving = True
        needed, there = budget.mib_apart(stay + work, allowed)
        text = (
            f"{len(known)} runs on {len(bases)} base models take {needed}, and device_memory "
            f"allows {there}: what is not needed waits in host memory or on disk"
        )
        self.emit("alert", text=text)

    def measure_disk(self) -> None:
        """Tell what is free and what checkpoints may still take, where that may come to matter."""
        self.disk_seen_at = time.monotonic()
        free, needed = shutil.disk_usage(self.folder).free, 0
        for run, total in self.disk_bytes.items():
            if self.state.runs[run].status in states.ACTIVE:
                needed += max(0, total - storage.size_bytes(self.executor.run_dir(run)))
        if free < max(_AMPLE_BYTES, _AMPLE * needed):
            self.emit("disk", free_bytes=free, needed_bytes=needed)

    def record(self, op: Op, judged: Verdict, step: int | None, **effect: Any) -> None:
        """Append the one event of an op, with its effect on the state. Any: JSON values."""
        self.emit(
            "op",
            op.run,
            sync=True,
            kind=op.kind,
            args=encode(dict(op.args)),
            by=op.by,
            outcome=judged.outcome,
            reason=judged.reason,
            step=step,
            **effect,
        )

    def check_length(self, config: RunConfig) -> None:
        """Refuse a training of more chunks than can be told.

        Raises:
            ConfigError: It has.
        """
        trainers.check_length(config, self.executor.data.plan)

    def unobserved(self, run: int, step: int) -> bool:
        """Whether a chunk evaluation is due at this step."""
        return self._due("loss", run, step) and self._newest(self.observed, "chunk", run) < step

    def owes(self, run: int, step: int) -> bool:
        """Whether a run that is parked at this step has to answer its prompts here."""
        asked = self.executor.data.generate_rows > 0 and self._due("answers", run, step)
        return asked and self._newest(self.answered, "generation", run) < step

    def owing(self) -> set[int]:
        """Open runs that owe answers where they are."""
        runs = (r for r in self.state.runs.values() if r.status in states.ACTIVE)
        return {r.id for r in runs if self.executor.is_open(r.id) and self.owes(r.id, r.step)}

    def _due(self, kind: thinning.Kind, run: int, step: int) -> bool:
        ends = self.state.runs[run].chunk_ends
        if not self.pace.evaluate_chunks or step not in ends:
            return False
        return thinning.due(self.thinnings, kind, bisect_right(ends, step), step == ends[-1])

    def _newest(self, known: dict[int, int], source: str, run: int) -> int:
        if run not in known:
            known[run] = max(states.observed_steps(self.log.events, run, source), default=-1)
        return known[run]

    def log_row(self, run: int, row: dict[str, Any], source: str, **more: Any) -> None:
        """Log a row for a run that is parked. Any: numbers, JSON values."""
        self.emit("logged", run, row=row, source=source, **more)
        self.beside[run] = self.beside.get(run, 0) + 1

    def save(self, run: int) -> None:
        """Checkpoint a parked run.

        Raises:
            OSError: It could not be written.
        """
        report = self.executor.save(run, self.beside.get(run, 0))
        if isinstance(report, messages.SaveFailed):
            raise report.kind(report.error)
        if isinstance(report, messages.Failed):  # its own state cannot be stored
            self.failed(run, report)
        self.saved_at[run] = time.monotonic()

    def complete(self, run: int) -> None:
        """Let a trainer finish after its last boundary, and keep its model."""
        self.executor.flush()
        report = self.executor.command(run, messages.Advance(1 << 62))
        if isinstance(report, messages.Failed):
            self.failed(run, report)
            return
        assert isinstance(report, messages.Finished)
        self.keep_finished(run, report.step)

    def keep_finished(self, run: int, step: int) -> None:
        """Keep the model of a run whose `train()` has returned."""
        saved = self.executor.finish(run)
        if isinstance(saved, messages.SaveFailed):
            raise saved.kind(saved.error)
        self.executor.flush()
        self.executor.close(run)
        self.check_bases()
        known = self.state.runs[run]
        early = known.total_steps is not None and step < known.total_steps
        note = f"a callback ended it early, at step {step} of {known.total_steps}" if early else ""
        self.emit("run_completed", run, sync=True, step=step, note=note)

    def check_bases(self) -> None:
        """Mark the runs of a shared base that something has written into."""
        try:
            self.executor.check_bases()
        except RapidFireError as error:
            for run in self.state.runs.values():
                if run.base and run.step:
                    self.emit("run_inexact", run.id, reason=str(error))

    def failed(self, run: int, report: messages.Failed) -> None:
        """Record that a run failed, unless it was the disk that failed it.

        Raises:
            OSError: The run's thread could not write.
        """
        if report.storage:
            raise OSError(report.error)
        known = self.state.runs[run]
        have = relief.means(
            self.executor.create_model is models.default_create_model,
            known.checkpoint_step is None and not known.warm,
            report.largest,
        )
        relieved = relief.next_relief(self.configs[run], report.memory, self.relieve, have)
        if report.parked_at is not None:
            keep = report.parked_at > 0 and not (relieved and relieved.anew)
            if not self._saved_and_closed(run, report.parked_at, keep):
                return
        if relieved is not None:
            self.adjust(run, relieved, report.error)
            return
        error = report.error
        if report.memory:
            error += f"; {relief.advice(self.configs[run], report.memory, have)}"
        self.emit("run_failed", run, sync=True, error=error, trace=report.trace)

    def _saved_and_closed(self, run: int, step: int, keep: bool) -> bool:
        """End a run that was brought back to a boundary; False if it failed as it was saved."""
        if keep:
            self.save(run)
        if not self.executor.is_open(run):
            return False
        self.executor.flush()
        self.executor.close(run)
        if keep:
            self.moved(run, step)
        return True

    def adjust(self, run: int, relieved: relief.Relief, why: str) -> None:
        """Let a closed run go on with less memory, from its newest checkpoint."""
        self.configs[run] = modify(self.configs[run], relieved.changes)
        step = self.state.runs[run].checkpoint_step or 0
        where = f"from step {step}" if step else "from its start"
        self.emit("run_adjusted", run, sync=True, changes=encode(relieved.changes), why=why)
        self.emit("alert", run, text=f"memory ran out ({why}): goes on {where} {relieved.text}")
        if step:
            reason = f"goes on {where} {relieved.text}, to fit into memory"
            self.emit("run_inexact", run, reason=reason)

    def checkpoint_and_close(self, run: int) -> int:
        """Bring a run to its boundary, save it if it has trained, and end its session."""
        if not self.executor.is_open(run):
            return self.state.runs[run].step
        report = self.executor.command(run, messages.AbortEvaluation())
        assert isinstance(report, messages.Parked | messages.LEFT)
        begun = not isinstance(report, messages.Parked) or report.begun
        if begun and report.step > 0:
            self.save(run)
            self.executor.flush()
        if self.executor.is_open(run):
            self.executor.close(run)
        self.moved(run, report.step)
        return report.step

    def moved(self, run: int, step: int) -> None:
        """Tell how far a run has come, if that is not known."""
        known = self.state.runs[run]
        if step != known.step:
            done = states.chunks_done(known.chunk_ends, step)
            before = states.chunks_done(known.chunk_ends, known.step)
            self.emit("advanced", run, step=step, chunks=done - before)
