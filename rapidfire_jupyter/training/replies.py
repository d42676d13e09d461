"""What a parked run says when it is asked: its evaluation, its answers, what it lends and judges.

Everything happens in the run's thread and leaves its trainer as it was.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from rapidfire_jupyter.data import tasks
from rapidfire_jupyter.data.questions import even_rows
from rapidfire_jupyter.training import answering, watching
from rapidfire_jupyter.training.failures import failure
from rapidfire_jupyter.training.messages import (
    Ask,
    Decode,
    Decoded,
    Lend,
    Lent,
    Mix,
    Mixed,
    Observe,
    Observed,
    Probe,
    Probed,
    Report,
    Score,
    Scored,
    Spell,
    Spelt,
    Task,
)
from rapidfire_jupyter.training.metrics import clean_row
from rapidfire_jupyter.training.models import Base

logger = logging.getLogger(__name__)

T = TypeVar("T")

Question = Observe | Lend | Decode | Mix | Probe | Spell | Score


class LeaveEvaluation(BaseException):
    """Raised inside an evaluation that is to be done again later."""


class Replies:
    """One run's. Any: a TRL trainer, and a TrainerCallback.

    Args:
        step: Gives the step where the run is.
        watching: While inside, the run may be parked between two batches or tokens, and left.
        watcher: Its `on_prediction_step` is called there.
    """

    def __init__(
        self,
        trainer: Any,
        base: Base,
        task: Task,
        step: Callable[[], int],
        watching: Callable[[], AbstractContextManager[None]],
        watcher: Any,
    ) -> None:
        self._trainer, self._base, self._task = trainer, base, task
        self._step, self._watching, self._watcher = step, watching, watcher
        self._sheet: answering.Sheet | None = None

    def to(self, question: Question) -> Report:
        """What the run says."""
        match question:
            case Observe():
                return self._observe()
            case Lend():
                return self._lend(question.asked)
            case Decode():
                return self._decode(question)
            case Mix():
                return self._mix(question)
            case Probe():
                return self._probe(question)
            case Spell():
                return Spelt(tuple(answering.as_texts(self._asked().tokenizer, question.answers)))
            case Score():
                return self._score(question)

    def _observe(self) -> Report:
        trainer = self._trainer
        if trainer.eval_dataset is None or trainer.args.eval_strategy != "no":
            return Observed(None, self._step())  # the trainer evaluates by itself
        given = tasks.by_name(trainer.eval_dataset)
        count = tasks.share_of(self._task.data.eval_rows, given)
        datasets = {name: _some(one, count) for name, one in given.items()}
        try:
            with self._watching():
                metrics, losses = watching.chunk_evaluation(trainer, datasets, self._watcher)
        except LeaveEvaluation:
            return Observed(None, self._step(), left=True)
        row = clean_row(metrics, self._warn)
        return Observed(row, self._step(), losses=tuple(losses))

    def _asked(self) -> answering.Sheet:
        """What this run is asked at chunk ends; made once."""
        if self._sheet is None:
            task, trainer = self._task, self._trainer
            self._sheet = answering.sheet(
                trainer.model, trainer.processing_class, task.config, task.data, task.prepared
            )
        return self._sheet

    def _lend(self, asked: Ask | None) -> Report:
        trainer, known, error = self._trainer, self._asked(), ""
        prompts, longest = known.prompts, self._task.data.max_new_tokens
        if asked is not None:
            longest = asked.max_new_tokens
            try:
                prompts = answering.asked_by_a_person(trainer.model, known, asked.prompts)
            except Exception as failed:  # a chat template that refuses them, for example
                prompts, error = (), failure(failed).error
        loan = answering.loan(trainer, self._base, longest) if prompts else None
        rows = trainer.args.eval_batch_size
        return Lent(prompts, longest, rows, self._step(), loan, error)

    def _decode(self, question: Decode) -> Report:
        try:
            with self._watching():
                answers = answering.answer(
                    self._trainer, question.prompts, question.max_new_tokens, self._between
                )
        except LeaveEvaluation:
            return Decoded(None, self._step(), left=True)
        except Exception as error:  # it costs this run its answers, not its training
            return Decoded(None, self._step(), error=failure(error).error)
        return Decoded(answers, self._step())

    def _mix(self, question: Mix) -> Report:
        made, left = self._with_others(question, self._task.mixer.decode, "runs answer alone")
        answers = None if made is None else tuple(map(tuple, made))
        return Mixed(answers, self._step(), left)

    def _probe(self, question: Probe) -> Report:
        why = "nothing is known of what answers cost"
        seconds, left = self._with_others(question, self._task.mixer.probe, why)
        return Probed(seconds, self._step(), left)

    def _with_others(
        self, question: Mix | Probe, ask: Callable[..., T], why: str
    ) -> tuple[T | None, bool]:
        """What is told of runs together, None if nothing is; and whether it was left early.

        Args:
            why: What follows from an exception; what is wrong shows when runs answer, if at all.
        """
        try:
            with self._watching():
                return answering.with_others(
                    self._trainer,
                    ask,
                    self._base,
                    question.loans,
                    question.prompts,
                    question.max_new_tokens,
                    self._between,
                ), False
        except LeaveEvaluation:
            return None, True
        except Exception:
            logger.debug(why, exc_info=True)
            return None, False

    def _score(self, question: Score) -> Report:
        compute_metrics = self._task.config.model.compute_metrics
        with watching.untouched(self._trainer):
            metrics, samples = answering.judge(
                self._asked(), question.answers, compute_metrics, self._warn
            )
        return Scored(metrics, samples, self._step())

    def _between(self) -> None:
        self._watcher.on_prediction_step(None, None, None)

    def _warn(self, text: str) -> None:
        self._task.emit("alert", text=text)


def _some(dataset: Any, count: int) -> Any:  # Any: datasets.Dataset, or a stream
    """`count` rows of a data set, evenly picked; the first ones of a stream; 0 for all."""
    if hasattr(dataset, "__len__"):
        return dataset.select(even_rows(len(dataset), count))
    return dataset.take(count) if count else dataset
