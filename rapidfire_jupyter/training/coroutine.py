"""One run as a coroutine: a daemon thread in which one TRL trainer is built and trained.

`train()` is entered once. At step boundaries the thread may hand the baton back to the engine and
wait for a command; its iterator, optimizer, scheduler and callbacks stay live meanwhile.
"""

import functools
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import ProgressCallback, TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils.notebook import NotebookProgressCallback

from rapidfire_jupyter import storage
from rapidfire_jupyter.config import flatten
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import RapidFireError
from rapidfire_jupyter.training import (
    attributes,
    checkpoints,
    estimates,
    gauge,
    generating,
    memory,
    origin,
    output,
    rollback,
    streams,
    trainers,
    watching,
)
from rapidfire_jupyter.training.context import (
    RunContext,
    rng_state,
    set_rng_state,
    set_unsaved_streams,
    unsaved_streams,
)
from rapidfire_jupyter.training.failures import failure, is_of_disk, kind_of
from rapidfire_jupyter.training.logged import Logged
from rapidfire_jupyter.training.messages import (
    AbortEvaluation,
    Advance,
    Close,
    Closed,
    Command,
    Continue,
    Decode,
    Finished,
    Lend,
    Mix,
    Observe,
    Observed,
    Parked,
    Prepared,
    Probe,
    Report,
    Save,
    Saved,
    SaveFailed,
    SaveFinal,
    Score,
    Spell,
    Task,
)
from rapidfire_jupyter.training.metrics import judges_texts, safe_compute_metrics
from rapidfire_jupyter.training.models import (
    Base,
    check_adapter_reaches,
    check_untouched,
    skeleton,
)
from rapidfire_jupyter.training.neighbours import Neighbours
from rapidfire_jupyter.training.rehearsals import Rehearsal
from rapidfire_jupyter.training.replies import LeaveEvaluation, Replies

logger = logging.getLogger(__name__)

_HOOKS = (
    "_maybe_log_save_evaluate",
    "_run_epoch",
    "_finalize_training",
    "_save_checkpoint",
    "_load_rng_state",
    "_load_from_checkpoint",
    "_init_training_state",
)
_SILENCED = (PrinterCallback, ProgressCallback, NotebookProgressCallback)


class _Unwind(BaseException):
    """Raised in a parked thread to end it."""


class Coroutine:
    """The run's end. Every method runs in the run's thread, holding the baton."""

    def __init__(
        self,
        task: Task,
        commands: "queue.SimpleQueue[Command]",
        reports: "queue.SimpleQueue[Report]",
        interrupt: threading.Event,
    ) -> None:
        self._task: Task | None = task
        self._commands, self._reports, self._interrupt = commands, reports, interrupt
        self._advance = Advance(0)
        self._logged = Logged(task)
        self._origin = origin.of(task)
        self._trainer: Any = None
        self._base: Base | None = None
        self._gauge: gauge.Gauge | None = None
        self._context: Any = None
        self._neighbours: Any = None  # Neighbours, once there is a context
        self._schedule: Any = None
        self._needs = estimates.Footprint(0, 0, 0, 0, 0)
        self._largest = estimates.NONE_YET
        self._save_wanted = False
        self._mark: rollback.Mark | None = None  # where weights and optimizer still are
        self._may_mark = False
        self._attributes: dict[str, Any] = {}  # plain ones, of a trainer given as a class, at first
        self._epoch_closing = False
        self._in_evaluation = False
        self._replies: Any = None  # Replies, once there is a trainer
        self._streams_after_redo: dict[str, Any] | None = None
        self._watching_evaluation = False
        # The trainer's own methods, behind ours. Any: bound methods of TRL trainers.
        self._step_done: Any = None
        self._run_epoch: Any = None
        self._finalize: Any = None
        self._load_rng_state: Any = None
        self._init_training_state: Any = None
        self._load_weights: Any = None
        self._place: streams.Place | None = None  # in a stream
        self._seat: generating.Seat | None = None  # among those that sample together
        self._resumed_at_end = False
        self._begun = False
        self._parked_in_evaluation = False
        self.remains: list[weakref.ref[Any]] = []  # what was trained; dead once it is freed

    def main(self) -> None:
        """Build, train and end; the last report says how."""
        try:
            last = self._run()
        except BaseException as error:  # it could not even open its folder
            last = failure(error)
        self._reports.put(last)

    def _run(self) -> Report:
        assert self._task is not None
        self._task.run_dir.mkdir(parents=True, exist_ok=True)
        path = self._task.run_dir / "train.log"
        with path.open("a", encoding="utf-8", errors="replace") as log:
            context = self._context = RunContext(log)
            self._neighbours = Neighbours(context, self._doubt)
            output.route_displays()
            context.enter()
            # torch tells MKL the number of threads when a thread first asks; an SVD does not ask,
            # and its result depends on it.
            torch.get_num_threads()
            try:
                self._train()
            except _Unwind:
                pass
            except BaseException as error:
                return failure(error, self._largest)
            finally:
                self._release()
                context.leave()
        return Closed()

    def _train(self) -> None:
        self._hand_over(self._build())
        try:
            begin = self._origin.path
            self._trainer.train(resume_from_checkpoint=str(begin) if begin else None)
        except Exception as error:
            there = self._mark
            if there is None or not memory.exhausted(error):
                raise
            failed = failure(error, self._largest)
            rollback.go_back(self._trainer, there, error)
            self._logged.count = there.rows
            self._neighbours.forget()
        else:
            self._hand_over(Finished(self._trainer.state.global_step))
            return
        self._hand_over(replace(failed, parked_at=there.step))

    # ---- the baton ----

    def _hand_over(self, report: Report) -> None:
        """Give the baton back and obey commands until one lets this run go on."""
        if self._begun:
            self._look_beside()
        if self._task is not None and self._task.room is not None:
            self._task.room.park(self._trainer)
        if isinstance(report, Parked) and self._gauge is not None:
            report = replace(report, read=self._gauge.read())
        while True:
            self._context.leave()
            self._reports.put(report)
            command = self._commands.get()
            output.route_displays()
            self._context.enter()
            self._neighbours.begin()
            match command:
                case Advance():
                    self._advance = command
                    return
                case Save():
                    report = self._save(command.beside)
                case SaveFinal():
                    report = self._save_final()
                case Observe() | Lend() | Decode() | Mix() | Probe() | Spell() | Score():
                    report = self._replies.to(command)
                case Continue():
                    if self._parked_in_evaluation:
                        return
                    report = Observed(None, self._step(), left=True)
                case AbortEvaluation():
                    if self._parked_in_evaluation:
                        raise LeaveEvaluation
                    report = Parked(self._step(), begun=self._begun)
                case Close():
                    raise _Unwind
            del command  # what other runs lent is theirs again

    def _boundary(self) -> None:
        """A step is done with its log, evaluation and best metric: the place to stop at."""
        trainer, step = self._trainer, self._trainer.state.global_step
        ending = trainer.control.should_training_stop or step >= trainer.state.max_steps
        if not bool(torch.isfinite(self._trainer._tr_loss)):
            self._log_lost(step)
            raise RapidFireError(
                f"the loss became {float(self._trainer._tr_loss)} at step {step}; lower "
                "learning_rate, set max_grad_norm, or look at the rows of this step"
            )
        self._look_beside()
        if self._gauge is not None:
            self._gauge.sample()
        aligned = step % self._schedule.multiple == 0
        if aligned and self._may_mark:
            self._mark = rollback.mark(trainer, self._logged.count, self._is_known())
        if self._seat is not None and aligned and not ending:
            self._seat.at(step)
        deadline = self._advance.deadline
        due = step >= self._advance.until or (deadline is not None and time.monotonic() >= deadline)
        if ending or (aligned and (due or self._save_wanted or self._interrupt.is_set())):
            wanted, self._save_wanted = self._save_wanted, False
            self._hand_over(Parked(step, save_wanted=wanted, ending=ending))

    def _log_lost(self, step: int) -> None:
        """Log a loss that is no number, unless the trainer has: its curve ends there."""
        rows = self._trainer.state.log_history
        if not rows or rows[-1].get("step") != step:
            self.on_log({"loss": float(self._trainer._tr_loss), "step": step})

    def _look_beside(self) -> None:
        self._neighbours.look(self._step(), self._draws.step or self._draws.batch)

    # ---- commands ----

    def _save(self, beside: int) -> Report:
        trainer, task = self._trainer, self._task
        assert task is not None
        rows = self._logged.count + beside
        facts = {
            "rows": rows,
            "config": encode(flatten(task.config)),
            "draws": [self._draws.batch, self._draws.step, list(self._draws.unsaved)],
            "ended": bool(trainer.control.should_training_stop),
            "max_steps": trainer.state.max_steps,
            "steps_per_epoch": self._schedule.steps_per_epoch,
            "rows_per_step": self._schedule.rows_per_step,
            "redo_evaluation": self._in_evaluation,
            "streams": unsaved_streams(),
            "largest": [self._largest.rows, self._largest.tokens],
            "activations": [
                self._needs.activations,
                self._needs.measured,
                *estimates.micro_batch(task.config),
            ],
        }
        if not self._is_known():
            facts["attributes"] = attributes.moved(trainer, self._attributes)
        if self._place is not None:
            facts["stream"] = self._place.at(self._step(), self._schedule.rows_per_step)
        return self._staged(lambda: checkpoints.stage(trainer, task.run_dir, facts), rows)

    def _save_final(self) -> Report:
        trainer, task = self._trainer, self._task
        assert task is not None
        return self._staged(
            lambda: checkpoints.stage_final(trainer, task.run_dir), self._logged.count
        )

    def _staged(self, stage: Callable[[], Path], rows: int) -> Report:
        """What becomes of writing a folder; a disk that fails is no fault of this run."""
        try:
            folder = stage()
        except Exception as error:
            if not is_of_disk(error):
                raise
            return SaveFailed(f"{type(error).__name__}: {error}", kind_of(error))
        state = self._trainer.state
        return Saved(folder, state.global_step, rows, state.best_global_step)

    # ---- building ----

    def _build(self) -> Prepared:
        task = self._task
        assert task is not None
        set_seed(task.data.seed)
        base = self._base = task.base()
        peft_config = trainers.peft_object(task.config)
        if task.room is not None and peft_config is None:
            task.room.build(base.name, base.trainable_bytes())
        seed = trainers.run_seed(task.config, task.data.seed)
        compute_metrics = None
        if not judges_texts(task.config.model.compute_metrics):
            compute_metrics = safe_compute_metrics(task.config.model.compute_metrics, self._warn)
        trainer, rows = trainers.build_trainer(
            task.config,
            skeleton(base, task.config, peft_config, seed),
            base,
            task.data,
            task.prepared,
            task.frozen,
            str(task.run_dir / checkpoints.STAGING),
            compute_metrics,
        )
        self._trainer, self._largest = trainer, estimates.UNKNOWN
        self._replies = Replies(trainer, base, task, self._step, self._watching, _Watcher(self))
        check_untouched(base)
        needs = estimates.footprint(trainer, base.model)
        self._take_room(needs)  # what is sure must fit before anything is tried
        checked = not self._origin.extra and task.rehearsals.knows(task.config)  # the like of it
        if not checked:
            with watching.untouched(trainer):
                check_adapter_reaches(trainer.model)
        schedule = self._schedule = trainers.make_schedule(
            trainer, task.config, task.data.plan, rows
        )
        task.references.serve(trainer, task.config, base, peft_config)
        if task.generations is not None:
            self._seat = task.generations.serve(
                task.run_id, trainer, task.config, base, schedule.multiple
            )
        self._install()
        self._origin, notes = origin.adapted(self._origin, task, trainer, schedule)
        extra = self._origin.extra
        if task.config.trainer.own_order:
            trainers.wind_on_sampler(trainer, self._origin.step // schedule.steps_per_epoch)
        inexact: tuple[str, ...] = ()
        if extra:
            self._draws = watching.Draws(*extra.get("draws", (True, True)))
            inexact = tuple(origin.doubts(task, trainer, peft_config, self._draws))
            kept, measured, *then = extra.get("activations", (0, False, 1, None))
            kept, self._largest = estimates.scaled(
                kept,
                estimates.Largest(*extra.get("largest", ())),
                tuple(then),
                estimates.micro_batch(task.config),
            )
        else:
            told = task.rehearsals.get(task.config, self._rehearse)
            self._draws, self._largest = told.draws, told.largest
            kept, measured = told.activations, told.measured
            ahead = origin.doubts(task, trainer, peft_config, self._draws)
            notes = (*notes, *(f"a restart will not be exact: {one}" for one in ahead))
        self._needs = needs = replace(needs, activations=kept, measured=measured)
        self._take_room(needs)
        peek = watching.first_batch(trainer, task.config.trainer.pairs)
        storage.write_json(task.run_dir / "peek.json", peek)
        if streams.is_stream(trainer.train_dataset):
            inexact = (*inexact, *self._take_place(peek))
        if trainers.uses_vllm(task.config):
            inexact = (*inexact, "vLLM samples its answers, with kernels and numbers of its own")
        if self._neighbours.had_a_cell() and self._origin.path is None:
            inexact = (*inexact, "a cell ran while its adapter was made and may have drawn numbers")
        if self._seat is not None and self._origin.path is None:
            self._seat.at(0)
        disk_bytes = 3 * needs.gradients  # weights and two moments
        return Prepared(schedule, self._origin.step, base.name, disk_bytes, inexact, notes, needs)

    def _rehearse(self) -> Rehearsal:
        trainer = self._trainer
        with estimates.measuring(trainer.model, skip=trainer.args.torch_compile) as found:
            try:
                draws = watching.rehearse(trainer, self._is_known())
            finally:
                self._largest = found.largest
        return Rehearsal(draws, *estimates.activations(trainer, found), found.largest)

    def _take_room(self, needs: estimates.Footprint) -> None:
        room = self._task.room if self._task is not None else None
        if room is not None:
            self._largest = replace(self._largest, room=room.share(self._trainer, needs))
            room.take(self._trainer, needs)

    def _take_place(self, peek: Any) -> tuple[str, ...]:
        """Find this run's place in its stream; gives why it is not exact."""
        trainer, task = self._trainer, self._task
        assert task is not None
        place = streams.place(self._origin.extra, self._origin.step, self._schedule.rows_per_step)
        again = peek
        if not self._draws.batch:
            again = watching.first_batch(trainer, task.config.trainer.pairs)
        reasons = tuple(streams.reasons(trainer, peek, again, place.began))
        place.began = place.began or streams.digest(peek)
        self._place = place
        return reasons

    def _is_known(self) -> bool:
        """Whether the trainer is one of those by name, of which all is known that it keeps."""
        return self._task is None or self._task.config.trainer.cls is None

    def _step(self) -> int:
        return int(self._trainer.state.global_step) if self._begun else self._origin.step

    def _install(self) -> None:
        """Put the session between the trainer and its own methods."""
        trainer = self._trainer
        missing = [name for name in _HOOKS if not hasattr(trainer, name)]
        if missing:
            raise RapidFireError(
                f"this transformers version has no Trainer.{missing[0]}; install transformers>=5.24"
            )
        for callback in _SILENCED:
            trainer.remove_callback(callback)
        trainer.accelerator.free_memory = functools.partial(_reset, trainer.accelerator)
        trainer.add_callback(_Watcher(self))
        self._step_done = trainer._maybe_log_save_evaluate
        self._run_epoch = trainer._run_epoch
        self._load_rng_state = trainer._load_rng_state
        self._finalize = trainer._finalize_training
        self._init_training_state = trainer._init_training_state
        self._load_weights = trainer._load_from_checkpoint
        trainer._load_from_checkpoint = self._on_load_weights
        trainer._init_training_state = self._on_init_training_state
        trainer._finalize_training = self._on_finalize
        trainer._maybe_log_save_evaluate = self._on_step_done
        trainer._run_epoch = self._on_run_epoch
        trainer._load_rng_state = self._on_load_rng_state
        trainer._save_checkpoint = self._on_save_point
        if self._task is not None and (self._task.resume or self._task.source):
            trainer.args.eval_on_start = False

    # ---- between the trainer and its methods ----

    def _on_step_done(self, *args: Any, **kwargs: Any) -> None:
        # The end of a pass through a stream is no boundary: what is left of it belongs to a step.
        may_leave = self._epoch_closing == self._step_closes_epoch()
        while True:
            streams = rng_state()
            try:
                with _watch_evaluation(self, may_leave):
                    self._step_done(*args, **kwargs)
                break
            except LeaveEvaluation:
                set_rng_state(streams)
                self._in_evaluation = True
                try:
                    self._hand_over(Parked(self._trainer.state.global_step))
                finally:
                    self._in_evaluation = False
            except Exception as error:
                if may_leave and self._may_mark and memory.exhausted(error) == "evaluation":
                    self._in_evaluation = True  # it will be done again, from a checkpoint
                    rows, known = self._logged.count, self._is_known()
                    self._mark = rollback.mark(self._trainer, rows, known, streams)
                raise
        closing, self._epoch_closing = self._epoch_closing, False
        if closing == self._step_closes_epoch():  # of an epoch's last step, after on_epoch_end only
            self._boundary()

    def _step_closes_epoch(self) -> bool:
        control, step = self._trainer.control, self._trainer.state.global_step
        stopping = control.should_training_stop or control.should_epoch_stop
        return bool(stopping or step % self._schedule.steps_per_epoch == 0)

    def _on_init_training_state(self, *args: Any) -> tuple[int, int]:
        """Epochs that are done, and batches of the next: of a stream, the trainer cannot know."""
        epochs, batches = self._init_training_state(*args)
        if self._place is None or self._origin.path is None:
            return epochs, batches
        steps = self._place.rows // self._schedule.rows_per_step
        return self._place.passes, steps * self._trainer.args.gradient_accumulation_steps

    def _on_load_weights(self, checkpoint: str, *args: Any, **kwargs: Any) -> None:
        """Load a checkpoint's weights; PEFT makes adapters in 16 bit (QLoRA's) anew in float32."""
        if checkpoints.restore_encoder(self._trainer.model, Path(checkpoint)):
            return
        made = {n: p.dtype for n, p in self._trainer.model.named_parameters()}
        self._load_weights(checkpoint, *args, **kwargs)
        for name, parameter in self._trainer.model.named_parameters():
            if parameter.dtype != made.get(name, parameter.dtype):
                parameter.data = parameter.data.to(made[name])

    def _on_run_epoch(self, **kwargs: Any) -> None:
        trainer = self._trainer
        if self._place is not None:
            rows_per_step = self._schedule.rows_per_step
            self._place.begin_pass(kwargs["epoch"], trainer.state.global_step, rows_per_step)
        sampler = getattr(trainer, "rapidfire_sampler", None)
        if sampler is not None:
            sampler.epoch = kwargs["epoch"]
        if self._resumed_at_end:
            trainer.control.should_training_stop = True
            return
        if self._redo_evaluation() and trainer.control.should_training_stop:
            trainer.control = trainer.callback_handler.on_epoch_end(
                trainer.args, trainer.state, trainer.control
            )
            self._on_step_done(
                trainer._tr_loss,
                None,
                kwargs["model"],
                None,
                kwargs["epoch"],
                None,
                kwargs["start_time"],
            )
            return
        self._run_epoch(**kwargs)

    def _on_finalize(self, *args: Any) -> Any:
        self._redo_evaluation()
        return self._finalize(*args)

    def _redo_evaluation(self) -> bool:
        """Do the evaluation that the checkpoint was taken in the middle of, if it was."""
        if not self._origin.extra.pop("redo_evaluation", False):
            return False
        assert self._origin.path is not None
        trainer = self._trainer
        self._load_rng_state(str(self._origin.path))
        set_unsaved_streams(self._origin.extra.get("streams", {}))
        self._step_done(
            trainer._tr_loss, None, trainer.model, None, trainer.state.epoch, None, time.time()
        )
        self._streams_after_redo = rng_state()
        return True

    def _on_load_rng_state(self, checkpoint: str | None) -> None:
        if self._streams_after_redo is not None:
            set_rng_state(self._streams_after_redo)
            self._streams_after_redo = None
        else:
            self._load_rng_state(checkpoint)
            set_unsaved_streams(self._origin.extra.get("streams", {}))

    def _on_save_point(self, model: Any, trial: Any) -> None:
        """The user's save strategy asks for a checkpoint: it is taken at the boundary."""
        self._save_wanted = True
        state = self._trainer.state
        if state.best_global_step == state.global_step:
            state.best_model_checkpoint = self._best_path(state.best_global_step)

    def _best_path(self, step: int) -> str:
        assert self._task is not None
        return str(self._task.run_dir / "checkpoints" / f"checkpoint-{step}")

    def on_train_begin(self, trainer: Any) -> None:
        """After a checkpoint was loaded: what its files lack."""
        self._begun = True
        self._gauge = gauge.Gauge(trainer)
        self._may_mark = rollback.can_mark(trainer)
        if not self._is_known():
            self._attributes = attributes.plain(trainer)
        state, extra = trainer.state, self._origin.extra
        if not extra:
            if self._advance.until <= 0:
                self._hand_over(Parked(0))
            return
        checkpoints.restore_extra(trainer, extra)
        attributes.give(trainer, extra.get("attributes", {}))
        if state.best_global_step:
            path = Path(self._best_path(state.best_global_step))
            state.best_model_checkpoint = str(path) if path.is_dir() else None
        ended = extra.get("ended", False) and extra.get("max_steps") == state.max_steps
        self._resumed_at_end = ended or state.global_step >= state.max_steps
        if self._advance.until <= state.global_step:
            self._hand_over(Parked(state.global_step))

    def on_log(self, row: dict[str, Any]) -> None:
        """Each row of the trainer's log becomes an event."""
        if any(name.startswith("eval_") for name in row):
            self._watching_evaluation = False  # it cannot be done again: it is in the log in part
        self._logged.add(row, self._trainer)

    def on_update(self) -> None:
        """Weights and optimizer states are about to change."""
        self._mark = None

    def on_prediction_step(self) -> None:
        """Between two batches of an evaluation: let the engine do what it was asked."""
        if self._interrupt.is_set() and self._watching_evaluation:
            self._parked_in_evaluation = True
            try:
                self._hand_over(Parked(self._step(), in_evaluation=True))
            finally:
                self._parked_in_evaluation = False

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """While inside, an evaluation may be parked in, and left."""
        self._watching_evaluation = True
        try:
            yield
        finally:
            self._watching_evaluation = False

    def wants_chunk(self, kind: str, step: int) -> bool:
        """Whether a strategy "chunk" puts an evaluation or a save at this step."""
        assert self._task is not None
        given = trainers.given_args(self._task.config).get(f"{kind}_strategy")
        return given == "chunk" and step in self._schedule.chunk_ends

    def _emit(self, kind: str, **data: Any) -> None:
        assert self._task is not None
        self._task.emit(kind, **data)

    def _doubt(self, reason: str) -> None:
        self._emit("run_inexact", reason=reason)

    def _warn(self, text: str) -> None:
        self._emit("alert", text=text)

    def _release(self) -> None:
        """Let go of everything, so that nothing of the run outlives its thread."""
        trainer, task = self._trainer, self._task
        if task is not None and task.generations is not None:
            task.generations.forget(task.run_id)
        self._trainer = self._task = self._base = None
        self._gauge = self._replies = self._seat = self._neighbours = None
        self._step_done = self._run_epoch = self._finalize = self._load_rng_state = None
        self._init_training_state = self._load_weights = None
        if trainer is not None:
            handle = getattr(trainer, "neftune_hook_handle", None)
            if handle is not None:
                handle.remove()
            trainer.accelerator.gradient_state.dataloader_references = [None]
            trainer.accelerator._models.clear()
            trainer.accelerator.__dict__.pop("free_memory", None)
            self.remains = [weakref.ref(p) for p in trainer.model.parameters() if p.requires_grad]
            for module in trainer.model.modules():  # TRL and accelerate tie models into cycles
                for name in ("forward", "_original_forward", "generate"):
                    module.__dict__.pop(name, None)
            trainer.__dict__.clear()
        self._context.accelerate_state.clear()


class _Watcher(TrainerCallback):
    """Tells the session what happens in the trainer; has no say but for "chunk" strategies."""

    def __init__(self, coroutine: Coroutine) -> None:
        self._coroutine = coroutine

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._coroutine.on_train_begin(self._coroutine._trainer)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._coroutine.on_update()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._coroutine.wants_chunk("eval", state.global_step):
            control.should_evaluate = True
        if self._coroutine.wants_chunk("save", state.global_step):
            control.should_save = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._coroutine._epoch_closing = True

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._coroutine.on_log(state.log_history[-1])

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._coroutine.on_prediction_step()


class _watch_evaluation:  # noqa: N801 - reads as a statement
    """While inside, an evaluation of the trainer may be parked in, and left."""

    def __init__(self, coroutine: Coroutine, may_leave: bool) -> None:
        self._coroutine = coroutine
        self._may_leave = may_leave

    def __enter__(self) -> None:
        trainer = self._coroutine._trainer
        self._coroutine._watching_evaluation = self._may_leave
        state = trainer.accelerator.gradient_state
        self._loaders = list(state.dataloader_references)
        self._training = trainer.model.training

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._coroutine._watching_evaluation = False
        if isinstance(error, LeaveEvaluation) or (error is not None and memory.exhausted(error)):
            trainer = self._coroutine._trainer
            state = trainer.accelerator.gradient_state
            state.dataloader_references = self._loaders
            trainer.model.train(self._training)
            metrics = getattr(trainer, "_metrics", None)
            if metrics is not None:
                metrics["eval"].clear()


def _reset(accelerator: Any, *objects: Any) -> tuple[Any, ...]:
    """What `Accelerator.free_memory` does when training begins, but for the garbage collection.

    That goes through the whole process and takes a quarter second; a new trainer has nothing to
    free. Any: accelerate's objects.
    """
    for name in ("_schedulers", "_optimizers", "_models", "_dataloaders"):
        setattr(accelerator, name, [])
    accelerator.step = 0
    return objects
