"""Answers of a run that is not open: its saved weights on a skeleton of the base, for a moment."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.training import answering, generation, models, prepared, trainers
from rapidfire_jupyter.training.context import RunContext
from rapidfire_jupyter.training.messages import Ask


@dataclass(frozen=True)
class Saved:
    """A run's weights on disk, and what is needed to load them."""

    config: RunConfig
    source: Path
    data: trainers.FitData
    kept: prepared.PreparedData
    base: Callable[[], models.Base]


def answers(run: Saved, asked: Ask, log: TextIO) -> tuple[str, ...]:
    """What they answer. The caller holds the baton; streams and settings of the user's stay.

    Raises:
        OpError: The weights cannot be loaded, or do not answer.
    """
    found: list[tuple[str, ...]] = []
    failed: list[BaseException] = []

    def work() -> None:
        context = RunContext(log)
        context.enter()
        try:
            found.append(_answers(run, asked))
        except BaseException as error:
            failed.append(error)
        finally:
            context.leave()

    thread = threading.Thread(target=work, name="rapidfire-answer", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise OpError(f"{type(failed[0]).__name__}: {failed[0]}".splitlines()[0]) from failed[0]
    return found[0]


def _answers(run: Saved, asked: Ask) -> tuple[str, ...]:
    seed = trainers.run_seed(run.config, run.data.seed)
    fresh = models.skeleton(run.base(), run.config, None, seed)
    model, tokenizer = models.with_weights(*fresh, run.source)
    model.eval()
    if not model.can_generate():
        raise OpError("its model writes no text")
    sheet = answering.sheet(model, tokenizer, run.config, run.data, run.kept)
    ids = answering.asked_by_a_person(sheet, asked.prompts)
    config = generation.greedy(model, sheet.tokenizer, asked.max_new_tokens)
    made = generation.decode(model, config, ids, len(ids), lambda: None)
    return tuple(answering.as_texts(sheet.tokenizer, [tuple(one) for one in made]))
