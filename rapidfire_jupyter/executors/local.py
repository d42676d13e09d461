"""The executor that runs slices in this process, one run at a time.

It owns the sessions, the shared bases, the prepared data and the checkpoint writer of one
experiment. It knows no scheduler, no state and no user interface: it does as told, and reports.
"""

import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.training import (
    adapters,
    checkpoints,
    failures,
    generating,
    messages,
    mixed,
    models,
    prepared,
    residency,
    saved,
    session,
    trainers,
)
from rapidfire_jupyter.training.budget import Budget
from rapidfire_jupyter.training.frozen import FrozenModels
from rapidfire_jupyter.training.references import References
from rapidfire_jupyter.training.rehearsals import Rehearsals

OFFLOAD = "offload"  # folder of what neither device nor host memory holds
Emit = Callable[..., Any]  # emit(kind, run, sync=..., **data)


@dataclass(frozen=True)
class Order:
    """A run to be opened. `source` is the checkpoint folder a warm clone starts from."""

    run: int
    config: RunConfig
    source: Path | None = None


class LocalExecutor:
    """Runs the runs of one experiment. All methods but `ask` are for one thread."""

    def __init__(
        self,
        folder: Path,
        data: trainers.FitData,
        create_model: models.CreateModel,
        keep: int,
        emit: Emit,
        budget: Budget | None = None,
    ) -> None:
        self._folder, self.data, self.keep = folder, data, keep
        self.create_model = create_model
        self._emit = emit
        self._prepared = prepared.PreparedData()
        self._frozen, self.references = FrozenModels(self._hold), References()
        self._rehearsals = Rehearsals()
        self.mixer, self.generations = mixed.Mixer(), generating.Generations()
        self._bases: list[models.Base] = []
        self._sessions: dict[int, session.Session] = {}
        self._pinned: dict[int, set[int]] = {}
        self._failed_write: BaseException | None = None
        self._writer = checkpoints.Writer()
        self._lock = threading.Lock()
        self._device = torch.accelerator.current_accelerator() or torch.device("cpu")
        self._turns: tuple[int, ...] = ()
        self._base_of: dict[int, str] = {}
        self._last: int | None = None  # the run that trained last
        self._residency: residency.Residency | None = None
        if budget is not None:
            offload = folder / OFFLOAD
            shutil.rmtree(offload, ignore_errors=True)  # of a kernel that died; nothing is lost
            self._residency = residency.Residency(self._device, budget, offload)

    def is_open(self, run: int) -> bool:
        """Whether the run has a live trainer here."""
        return run in self._sessions

    def run_dir(self, run: int) -> Path:
        """The run's own folder."""
        return self._folder / "runs" / str(run)

    def open(self, order: Order, resume: checkpoints.Checkpoint | None) -> messages.Report:
        """Build a run's trainer from its config and, if given, its checkpoint."""
        task = messages.Task(
            run_id=order.run,
            config=order.config,
            run_dir=self.run_dir(order.run),
            data=self.data,
            prepared=self._prepared,
            frozen=self._frozen,
            references=self.references,
            rehearsals=self._rehearsals,
            mixer=self.mixer,
            generations=self.generations if self._residency is None else None,
            base=lambda: self._base(order.config),
            resume=resume,
            source=order.source if resume is None else None,
            emit=lambda kind, /, **data: self._emit(kind, order.run, **data),
            room=None if self._residency is None else residency.Room(self._residency, order.run),
        )
        opened = session.Session(task)
        self._sessions[order.run] = opened
        return self._settle(order.run, opened.open())

    def command(
        self,
        run: int,
        command: messages.Command,
        meanwhile: Callable[[], None] | None = None,
    ) -> messages.Report:
        """Give a run's session a command; blocks until the run hands the baton back.

        Args:
            meanwhile: Called now and then until it does, see `Session.command`.
        """
        refused = self._bring_in(run, command)
        if refused is not None:
            self.close(run)
            return refused
        return self._settle(run, self._sessions[run].command(command, meanwhile))

    def expect(self, turns: Sequence[int]) -> None:
        """Tell which runs train next, in order: what they need is moved away last."""
        self._turns = tuple(turns)
        if self._residency is not None:
            self._residency.expect(self._turns)

    def base_to_stay_on(self) -> str:
        """The base whose runs should go first, since another would have to be brought in; or ""."""
        there = self._residency
        if there is None or all(there.is_resident(base.name) for base in self._bases):
            return ""
        return self._base_of.get(self._last or 0, "")

    def ask(self, run: int, wanted: bool) -> None:
        """Ask a training run to hand over at its next boundary, or take that back. Any thread."""
        opened = self._sessions.get(run)
        if opened is not None:
            if wanted:
                opened.interrupt.set()
            else:
                opened.interrupt.clear()

    def save(self, run: int, beside: int = 0) -> messages.Report:
        """Checkpoint a parked run; it is on disk after `flush`, and then announced.

        Args:
            beside: Rows that were logged for this run by others than itself since it was opened.
        """
        report = self.command(run, messages.Save(beside))
        if isinstance(report, messages.Saved):
            if report.best_step is not None:
                self._pinned[run] = {report.best_step}
            target = self.run_dir(run) / "checkpoints" / f"checkpoint-{report.step}"
            self._accept(run, report, target, "checkpoint")
        return report

    def finish(self, run: int) -> messages.Report:
        """Keep the model of a finished run in its folder `final`."""
        report = self.command(run, messages.SaveFinal())
        if isinstance(report, messages.Saved):
            self._accept(run, report, self.run_dir(run) / checkpoints.FINAL, "final")
        return report

    def flush(self) -> None:
        """Wait until all saved checkpoints are on disk.

        Raises:
            OSError: One could not be written.
        """
        self._writer.flush()
        if self._failed_write is not None:
            failed, self._failed_write = self._failed_write, None
            what = f"a checkpoint could not be written: {failed}"
            raise failures.kind_of(failed)(what) from failed

    def close(self, run: int) -> None:
        """End a run's session; what was not saved is gone."""
        opened = self._sessions.pop(run, None)
        if opened is not None:
            opened.command(messages.Close())
            self._forget(run)

    def end(self) -> None:
        """Close every session, finish writing, and let go of bases and data."""
        for run in list(self._sessions):
            self.close(run)
        self._writer.close()
        for base in self._bases:
            self._forget(base.name)
        self._bases.clear()
        shutil.rmtree(self._folder / OFFLOAD, ignore_errors=True)
        self._frozen.clear()
        self.references.clear()
        self.generations.clear()
        self._rehearsals.clear()
        self._prepared.clear()

    def check_adapter(self, config: RunConfig) -> None:
        """Refuse an adapter that cannot train, or does not fit its base, if loaded. Any thread.

        Raises:
            ConfigError: Says why; or it names modules that the base does not have.
        """
        by_name = self.create_model is models.default_create_model
        adapter = trainers.peft_object(config)
        adapters.refuse_untrainable(config, adapter, by_name)
        for base in list(self._bases):
            if models.serves(base, config, self.create_model):
                models.check_targets(base.model, adapter)
                adapters.refuse_on_base(config, adapter, base.model)

    def check_bases(self) -> None:
        """Check that no run has changed a shared base.

        Raises:
            RapidFireError: One did.
        """
        for base in self._bases:
            if self._residency is None or self._residency.is_resident(base.name):
                models.check_untouched(base)

    def sets(self, config: RunConfig) -> tuple[Any, Any]:
        """Both data sets as a run's trainer gets them. Any thread.

        Any: datasets.Dataset, or None.
        """
        bases = (b for b in list(self._bases) if models.serves(b, config, self.create_model))
        base = next(bases, None)
        loaded = None if base is None else base.tokenizer
        tokenizer = loaded or self.create_model(models.ModelConfig(config))[1]
        return prepared.sets(config, (self.data.train, self.data.eval), self._prepared, tokenizer)

    def answer_closed(
        self, orders: Sequence[Order], asked: messages.Ask
    ) -> dict[int, tuple[str, ...]]:
        """What saved weights of runs answer, on skeletons of their bases, in a thread of its own.

        Raises:
            RapidFireError: They cannot be loaded, or do not answer.
        """
        runs = {
            one.run: saved.Saved(one.config, one.source, self.data, self._prepared, self._base)
            for one in orders
            if one.source is not None
        }
        with (self.run_dir(orders[0].run) / "train.log").open("a", encoding="utf-8") as log:
            return saved.answers(runs, asked, self.mixer, log)

    def clear_staging(self, run: int) -> None:
        """Remove what an earlier kernel left half-written."""
        shutil.rmtree(self.run_dir(run) / checkpoints.STAGING, ignore_errors=True)

    def _settle(self, run: int, report: messages.Report) -> messages.Report:
        self._last = run
        if isinstance(report, messages.Prepared):
            self._base_of[run] = report.base
        failed = isinstance(report, messages.Failed) and report.is_over
        if failed or isinstance(report, messages.Closed):
            self._sessions.pop(run, None)
            self._forget(run)
        return report

    def _bring_in(self, run: int, command: messages.Command) -> messages.Failed | None:
        """Bring to the device what a command will use; how it failed, if there is no room."""
        there = self._residency
        if there is None or isinstance(command, messages.Close | messages.AbortEvaluation):
            return None
        try:
            there.admit(run)
        except torch.OutOfMemoryError as error:
            return messages.Failed(f"OutOfMemoryError: {error}", "", False, "training")
        coming = next((turn for turn in self._turns if turn != run), None)
        if coming is not None and isinstance(command, messages.Advance):
            there.prefetch(run, coming)
        return None

    def _forget(self, owner: int | str) -> None:
        if self._residency is not None:
            self._residency.forget(owner)

    def _accept(self, run: int, saved: messages.Saved, target: Path, kind: str) -> None:
        def done(error: BaseException | None) -> None:
            if error is not None:
                self._failed_write = error
                return
            try:
                self._emit(kind, run, sync=True, step=saved.step, rows=saved.rows)
                checkpoints.prune(self.run_dir(run), self.keep, self._pinned.get(run, set()))
            except OSError as failed:
                self._failed_write = failed

        self._writer.accept(checkpoints.Job(saved.folder, target, saved.rows, done))

    def _base(self, config: RunConfig) -> models.Base:
        """The base of a config, loaded at its first use. Called in run threads, one at a time."""
        there = self._residency
        for base in self._bases:
            if models.serves(base, config, self.create_model):
                if there is not None:
                    there.admit(base.name)
                return base
        name = f"base-{len(self._bases) + 1}"
        if there is None:
            base = models.load_base(config, self.create_model, self._device, name)
        else:
            base = models.load_base(
                config,
                self.create_model,
                self._device,
                name,
                lambda size_bytes: there.make_room(size_bytes, name, f"the base model {name}"),
            )
            self._hold(name, base.model)
        self._bases.append(base)
        return base

    def _hold(self, name: str, model: Any) -> None:
        """Let a frozen model on the device count, and move, as long as this executor lives."""
        if self._residency is not None:
            tensors = [*model.parameters(), *model.buffers()]
            self._residency.settle(name, tensors, 0, fixed=True)

    def device_bytes(self) -> int | None:
        """What bases and runs may hold on the device at a time; None if there is no budget."""
        return None if self._residency is None else self._residency.budget.device_bytes

    def moved(self) -> residency.Moved | None:
        """What was moved to keep within the device's budget; None if there is no budget."""
        return None if self._residency is None else self._residency.moved

    def moving_seconds(self) -> float:
        """Seconds for which training has waited for tensors to be moved."""
        return 0.0 if self._residency is None else self._residency.moved.seconds

    def facts(self) -> Mapping[str, Any]:
        """Counts for status displays and tests: open sessions and loaded bases. Any: numbers."""
        return {"sessions": len(self._sessions), "bases": len(self._bases)}
