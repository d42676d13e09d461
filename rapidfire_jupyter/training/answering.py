"""What a run is asked at chunk ends, its answers, and their metrics.

The rows are picked evenly from the eval set, the same for all runs; a row whose prompt and answer
cannot be told apart is not asked. Any: TRL trainers, tokenizers, JSON values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.data import tasks
from rapidfire_jupyter.data.questions import Question, pick, questions, shown
from rapidfire_jupyter.errors import OpError
from rapidfire_jupyter.training import (
    generation,
    mixed,
    models,
    prepared,
    scores,
    trainers,
    watching,
)
from rapidfire_jupyter.training.metrics import Warn, judges_texts, safe_compute_metrics

Tokens = tuple[int, ...]
T = TypeVar("T")
INSTRUCTION, RESPONSE = "### Instruction:\n", "\n\n### Response:\n"  # as data.mapping has them
MOST_SHOWN = 4_000  # characters of a prompt that are kept with its answer


@dataclass(frozen=True)
class Sheet:
    """What one run is asked: questions, their prompts as token ids, and right answers as texts.

    Attributes:
        tasks: The task of each question; empty names where the eval set is one.
    """

    questions: tuple[Question, ...]
    prompts: tuple[Tokens, ...]
    references: tuple[tuple[str, ...], ...]
    tokenizer: Any
    tasks: tuple[str, ...]


def sheet(
    model: Any,
    processor: Any,
    config: RunConfig,
    data: trainers.FitData,
    kept: prepared.PreparedData,
) -> Sheet:
    """The questions of a run's eval set; none if it has none, or its model writes no text.

    Each of several sets has the same number of questions; rows are numbered on from set to set.
    """
    tokenizer = getattr(processor, "tokenizer", processor)  # a processor has one
    asked: list[Question] = []
    names: list[str] = []
    if data.eval is not None and data.generate_rows and model.can_generate():
        sets = prepared.asked_sets(config, data.eval, kept, tokenizer)
        before = 0
        for name, rows in sets.items():
            own = questions(pick(rows, tasks.share_of(data.generate_rows, sets)))
            asked += [replace(one, row=before + one.row) for one in own]
            names += [name] * len(own)
            before += len(rows) if hasattr(rows, "__len__") else data.generate_rows
        scores.load()
    return Sheet(
        tuple(asked),
        tuple(tuple(generation.prompt_ids(tokenizer, one)) for one in asked),
        tuple(generation.references(tokenizer, one) for one in asked),
        tokenizer,
        tuple(names),
    )


def asked_by_a_person(
    model: Any, known: Sheet, prompts: Sequence[str | tuple[Mapping[str, Any], ...]]
) -> tuple[Tokens, ...]:
    """Token ids of a person's prompts, in the form that the run's own prompts have.

    A text becomes a user's message where those are messages, and an instruction where those are
    headed as one.

    Raises:
        OpError: The model writes no text.
    """
    if not model.can_generate():
        raise OpError("its model writes no text")
    first = known.questions[0].prompt if known.questions else ""
    chat = not isinstance(first, str)
    if not known.questions:
        chat = bool(getattr(known.tokenizer, "chat_template", None))

    def formed(prompt: str | tuple[Mapping[str, Any], ...]) -> Question:
        if isinstance(prompt, str) and chat:
            return Question(0, ({"role": "user", "content": prompt},))
        if isinstance(prompt, str) and str(first).startswith(INSTRUCTION):
            return Question(0, f"{INSTRUCTION}{prompt}{RESPONSE}")
        return Question(0, prompt)

    return tuple(tuple(generation.prompt_ids(known.tokenizer, formed(one))) for one in prompts)


def as_texts(tokenizer: Any, answers: Sequence[Tokens]) -> list[str]:
    """Answers as texts, without special tokens and blanks around."""
    return [tokenizer.decode(list(ids), skip_special_tokens=True).strip() for ids in answers]


@contextmanager
def _answering(trainer: Any, max_new_tokens: int) -> Iterator[Any]:
    """While inside, the model is in evaluation mode; gives how to decode, and changes nothing."""
    with watching.untouched(trainer):
        trainer.model.eval()
        yield generation.greedy(trainer.model, _tokenizer(trainer), max_new_tokens)


def answer(
    trainer: Any,
    prompts: Sequence[Tokens],
    max_new_tokens: int,
    between: Callable[[], None],
) -> tuple[Tokens, ...]:
    """A run's own answers to prompts, changing nothing of its trainer.

    Args:
        between: Called after each token; may raise to leave.
    """
    with _answering(trainer, max_new_tokens) as config:
        made = generation.decode(
            trainer.model, config, prompts, trainer.args.eval_batch_size, between
        )
    return tuple(map(tuple, made))


def loan(trainer: Any, base: models.Base, max_new_tokens: int) -> mixed.Loan | None:
    """What a run lends to a batch with others; None if it can only answer alone."""
    adapter = mixed.adapter(trainer.model, base)
    if adapter is None:
        return None
    config = generation.greedy(trainer.model, _tokenizer(trainer), max_new_tokens)
    return mixed.Loan(adapter, (base.name, trainer.args.eval_batch_size, config.to_json_string()))


def with_others(
    trainer: Any,
    ask: Callable[..., T],
    base: models.Base,
    loans: Sequence[mixed.Loan],
    prompts: Sequence[Tokens],
    max_new_tokens: int,
    between: Callable[[], None],
) -> T:
    """What a mixer tells of several runs, the trainer's own first, changing nothing of it.

    Args:
        ask: `Mixer.decode` or `Mixer.probe`.
        between: Called after each token; may raise to leave.
    """
    with _answering(trainer, max_new_tokens) as config:
        return ask(
            base,
            trainer.model,
            [one.adapter for one in loans],
            config,
            prompts,
            trainer.args.eval_batch_size,
            between,
        )


def judge(
    asked: Sheet,
    answers: Sequence[Tokens],
    compute_metrics: Callable[..., Any] | None,
    warn: Warn,
) -> tuple[dict[str, float], tuple[dict[str, Any], ...]]:
    """Metrics of the answers to a sheet, and each answer with its prompt, references and scores.

    Rows without references have no part in the metrics, except in the mean length.
    """
    texts = as_texts(asked.tokenizer, answers)
    known = [i for i, right in enumerate(asked.references) if right]
    predictions, right = [texts[i] for i in known], [asked.references[i] for i in known]
    own = scores.corpus_scores(predictions, right)
    for task in dict.fromkeys(filter(None, asked.tasks)):
        mine = [i for i in known if asked.tasks[i] == task]
        scored = scores.corpus_scores([texts[i] for i in mine], [asked.references[i] for i in mine])
        own |= {f"{task}_{name}": value for name, value in scored.items()}
    if known and compute_metrics is not None and judges_texts(compute_metrics):
        single = all(len(one) == 1 for one in right)
        given = [one[0] for one in right] if single else [list(one) for one in right]
        safe = safe_compute_metrics(compute_metrics, warn)
        own |= safe(predictions, given) if safe is not None else {}
    if answers:
        own["generated_tokens"] = sum(map(len, answers)) / len(answers)
    by_row = dict(zip(known, scores.row_scores(predictions, right), strict=True))
    samples = tuple(
        _sample(question, asked, place, texts[place], by_row.get(place, {}))
        for place, question in enumerate(asked.questions)
    )
    return {f"eval_{name.removeprefix('eval_')}": value for name, value in own.items()}, samples


def _sample(
    question: Question, asked: Sheet, place: int, text: str, row: Mapping[str, float]
) -> dict[str, Any]:
    told = shown(question.prompt) or asked.tokenizer.decode(list(asked.prompts[place]))
    return {
        "row": question.row,
        **({"task": asked.tasks[place]} if asked.tasks[place] else {}),
        "prompt": told[:MOST_SHOWN] + ("…" if len(told) > MOST_SHOWN else ""),
        "references": list(asked.references[place]),
        "prediction": text,
        "scores": {name: round(value, 6) for name, value in row.items()},
    }


def _tokenizer(trainer: Any) -> Any:
    processor = trainer.processing_class
    return getattr(processor, "tokenizer", processor)
