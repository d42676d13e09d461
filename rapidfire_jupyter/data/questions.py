"""From a row in TRL's columns to a prompt and the answers that would be right.

| columns | prompt | references |
| --- | --- | --- |
| `messages` | all turns before the assistant's last one | that turn |
| `prompt` and `completion` | the prompt; messages: all turns before the last answer | the answer |
| the same with `references` | as above | all of them |
| the same with a `label` that is false | none: the answer is a bad one | |
| `chosen`, with or without `prompt` | the prompt, or what both answers begin with | `chosen` |
| `prompt` alone | the prompt | a column `answer`, `solution`, ..., if it is there |
| `input_ids` with `completion_mask` or `labels` | the tokens before the last learned stretch | it |
| `text`, or `input_ids` alone | none: nothing says where an answer begins | |

The prompt never holds its own answer. Any: JSON values of rows, and data sets.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

_ANSWERS = ("references", "reference", "answer", "solution", "ground_truth", "output", "response")
Message = Mapping[str, Any]
Prompt = str | tuple[Message | int, ...]  # a text, messages, or token ids


@dataclass(frozen=True)
class Question:
    """A prompt whose answers can be judged.

    Attributes:
        row: Number of its row in the data set, from 0.
        prompt: A text, or messages that end before the answer, or token ids.
        references: Right answers; none if they are not known.
        answer_ids: The reference as token ids, in place of `references`, of rows of token ids.
        template: Keyword arguments for the chat template: its tools and the row's own.
    """

    row: int
    prompt: Prompt
    references: tuple[str, ...] = ()
    answer_ids: tuple[int, ...] = ()
    template: Mapping[str, Any] = field(default_factory=dict)


def pick(dataset: Any, count: int) -> list[tuple[int, Mapping[str, Any]]]:
    """`count` rows with their numbers, evenly picked; the first ones of a stream; 0 for all."""
    if not hasattr(dataset, "select"):
        return list(enumerate(islice(dataset, count or None)))
    numbers = even_rows(len(dataset), count)
    return list(zip(numbers, dataset.select(numbers), strict=True))


def even_rows(rows: int, count: int) -> list[int]:
    """Numbers of `count` of `rows` rows, evenly picked; of all of them if `count` is 0."""
    if not count or rows <= count:
        return list(range(rows))
    return list(range(0, rows, rows // count))[:count]


def questions(rows: Iterable[tuple[int, Mapping[str, Any]]]) -> list[Question]:
    """The questions that rows in TRL's columns hold; rows without one are left out."""
    found = (question(row, number) for number, row in rows)
    return [one for one in found if one is not None]


def question(row: Mapping[str, Any], number: int = 0) -> Question | None:
    """The question that a row in TRL's columns holds; None if it holds none."""
    if row.get("label") is not None and not row["label"] and "completion" in row:
        return None
    template = _template(row)
    if row.get("messages"):
        return _of_conversation(row["messages"], (), number, template)
    answer = row.get("completion") or row.get("chosen")
    prompt = row.get("prompt")
    if answer and not prompt and "rejected" in row:
        prompt, answer = _what_both_begin_with(answer, row["rejected"])
    if isinstance(prompt, list) and isinstance(answer, list | None):
        known = _texts(row.get("references"))
        if answer:
            return _of_conversation([*prompt, *answer], known, number, template)
        return Question(number, _clean(prompt), _known_answers(row), template=template)
    if isinstance(prompt, str) and isinstance(answer, str):
        known = _texts(row.get("references")) or _texts(answer)
        return Question(number, prompt, known) if known else None
    if isinstance(prompt, str) and answer is None:
        return Question(number, prompt, _known_answers(row))
    if row.get("input_ids"):
        return _of_tokens(row, number)
    return None


def shown(prompt: Prompt) -> str:
    """A prompt as a person reads it: a single user's turn as it is, else each turn with its role.

    A system's turn before a single user's turn is left out: it is the same for all rows mostly.
    Token ids give an empty text.
    """
    if isinstance(prompt, str):
        return prompt
    turns = [
        (str(turn["role"]), _text(turn.get("content")))
        for turn in prompt
        if not isinstance(turn, int)
    ]
    said = [turn for turn in turns if turn[0] != "system"]
    if len(said) == 1:
        return said[0][1]
    return "\n".join(f"{role}: {text}" for role, text in turns)


def _of_conversation(
    turns: Sequence[Message], known: tuple[str, ...], number: int, template: Mapping[str, Any]
) -> Question | None:
    """Split before the assistant's last turn; what follows it is left out."""
    places = [i for i, turn in enumerate(turns) if str(turn["role"]).lower() == "assistant"]
    if not places or not places[-1]:
        return None
    known = known or _texts(_text(turns[places[-1]].get("content")))
    if not known:
        return None
    return Question(number, _clean(turns[: places[-1]]), known, template=template)


def _of_tokens(row: Mapping[str, Any], number: int) -> Question | None:
    ids = list(row["input_ids"])
    if row.get("labels"):
        learned = [label != -100 for label in row["labels"]]
    elif row.get("completion_mask"):
        learned = [bool(on) for on in row["completion_mask"]]
    else:
        return None
    end = max((i + 1 for i, on in enumerate(learned) if on), default=0)
    start = max((i + 1 for i, on in enumerate(learned[:end]) if not on), default=0)
    if not 0 < start < end:
        return None
    return Question(number, tuple(ids[:start]), answer_ids=tuple(ids[start:end]))


def _what_both_begin_with(chosen: Any, rejected: Any) -> tuple[Any, Any]:
    """Prompt and answer of a preference pair without a prompt, split where TRL splits it."""
    from trl.data_utils import extract_prompt

    if isinstance(chosen, list):  # a conversation: it is split before its last answer
        return [], chosen
    parts = extract_prompt({"chosen": chosen, "rejected": rejected})
    return parts["prompt"], parts["chosen"]


def _known_answers(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Right answers that a row of prompts has in a column for its reward functions."""
    return next((texts for name in _ANSWERS if (texts := _texts(row.get(name)))), ())


def _texts(value: Any) -> tuple[str, ...]:
    """A text, number or list of them as texts, without blank ones."""
    values = value if isinstance(value, list | tuple) else [value]
    texts = (str(v) for v in values if isinstance(v, str | int | float))
    return tuple(text for text in texts if text.strip())


def _text(content: Any) -> str:
    """The text of a message's content: a text, or parts of which some are texts."""
    if isinstance(content, list):
        return "".join(str(p.get("text") or "") for p in content if isinstance(p, Mapping))
    return content if isinstance(content, str) else ""


def _clean(turns: Sequence[Message]) -> tuple[Message, ...]:
    """Messages without keys that are null: a table gives each message the keys of all."""
    return tuple({k: v for k, v in turn.items() if v is not None} for turn in turns)


def _template(row: Mapping[str, Any]) -> dict[str, Any]:
    tools = row.get("tools")
    tools = json.loads(tools) if isinstance(tools, str) and tools.strip() else tools
    return {**({"tools": tools} if tools else {}), **(row.get("chat_template_kwargs") or {})}
