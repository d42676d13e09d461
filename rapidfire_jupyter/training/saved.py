"""Answers of runs that are not open: their saved weights on skeletons of bases, for a moment."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.training import answering, generation, mixed, models, prepared, trainers
from rapidfire_jupyter.training.context import RunContext
from rapidfire_jupyter.training.messages import Ask

Texts = dict[int, tuple[str, ...]]  # by run


@dataclass(frozen=True)
class Saved:
    """A run's weights on disk, and what is needed to load them.

    Attributes:
        base: Gives the base of a config.
    """

    config: RunConfig
    source: Path
    data: trainers.FitData
    kept: prepared.PreparedData
    base: Callable[[RunConfig], models.Base]


@dataclass(frozen=True)
class _Loaded:
    """A run that can answer. Any: a model, a tokenizer, how to decode."""

    run: int
    model: Any
    tokenizer: Any
    how: Any
    prompts: tuple[tuple[int, ...], ...]
    base: models.Base
    adapter: mixed.Adapter | None

    @property
    def alike(self) -> tuple[Any, ...]:
        """What is equal for runs that may answer together."""
        apart = self.run if self.adapter is None else 0
        return apart, self.base.name, self.prompts, self.how.to_json_string()


def answers(runs: Mapping[int, Saved], asked: Ask, mixer: mixed.Mixer, log: TextIO) -> Texts:
    """What they answer. The caller holds the baton; streams and settings of the user's stay.

    Raises:
        OpError: Weights cannot be loaded, or do not answer.
    """
    found: list[Texts] = []
    failed: list[BaseException] = []

    def work() -> None:
        context = RunContext(log)
        context.enter()
        try:
            found.append(_answers(runs, asked, mixer))
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


def _answers(runs: Mapping[int, Saved], asked: Ask, mixer: mixed.Mixer) -> Texts:
    found: Texts = {}
    groups: dict[tuple[Any, ...], list[_Loaded]] = {}
    for run, known in runs.items():
        one = _loaded(run, known, asked)
        group = groups.setdefault(one.alike, [])
        group.append(one)
        most = mixed.runs_at_once(one.prompts, len(one.prompts))
        if one.adapter is None or len(group) >= most:
            found |= _together(groups.pop(one.alike), mixer)
    for group in groups.values():
        found |= _together(group, mixer)
    return found


def _loaded(run: int, known: Saved, asked: Ask) -> _Loaded:
    seed, base = trainers.run_seed(known.config, known.data.seed), known.base(known.config)
    adapted = (known.source / "adapter_config.json").exists()
    peft_config = trainers.peft_object(known.config) if adapted else None  # else weights are copied
    fresh = models.skeleton(base, known.config, peft_config, seed)
    model, processor = models.with_weights(*fresh, known.source, seed)
    model.eval()
    sheet = answering.sheet(model, processor, known.config, known.data, known.kept)
    prompts = answering.asked_by_a_person(model, sheet, asked.prompts)
    how = generation.greedy(model, sheet.tokenizer, asked.max_new_tokens)
    adapter = mixed.adapter(model, base)
    return _Loaded(run, model, sheet.tokenizer, how, prompts, base, adapter)


def _together(group: list[_Loaded], mixer: mixed.Mixer) -> Texts:
    """Answers of runs that are alike: in shared batches, and of each alone what is left."""
    first, rows = group[0], len(group[0].prompts)
    made: list[list[tuple[int, ...] | None]] = [[None] * rows for _ in group]
    adapters = [one.adapter for one in group if one.adapter is not None]
    if len(adapters) > 1:
        made = mixer.decode(
            first.base, first.model, adapters, first.how, first.prompts, rows, lambda: None
        )
    found: Texts = {}
    for one, known in zip(group, made, strict=True):
        left = [place for place in range(rows) if known[place] is None]
        prompts = [one.prompts[place] for place in left]
        alone = generation.decode(one.model, one.how, prompts, rows, lambda: None)
        for place, answer in zip(left, alone, strict=True):
            known[place] = tuple(answer)
        found[one.run] = tuple(answering.as_texts(one.tokenizer, [ids or () for ids in known]))
    return found
