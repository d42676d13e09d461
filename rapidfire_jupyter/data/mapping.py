"""From a recognised layout to the columns that TRL takes, row for row.

| layout | becomes |
| --- | --- |
| messages, ShareGPT | `messages` with the roles system, user, assistant and tool |
| prompt and completion | the same; numbers as text |
| instruction, input, output | `prompt` and `completion`: messages if the tokenizer has a chat template, else text headed `### Instruction:`, `### Input:`, `### Response:` |
| text | `text` |
| prompt and references | `prompt` and, as `completion`, the first reference; `references` stays |
| preference pairs | `prompt`, `chosen`, `rejected`; without a prompt TRL takes what both begin with |
| labelled answers of KTO | `prompt`, `completion` and `label` as a truth value |
| prompt of GRPO, RLOO | `prompt`; every other column goes to the reward functions as it is |
| prompt or messages of Distillation | `prompt`: a conversation up to its last answer |
| messages or answers of GKD | `messages`, whose last one is the answer |

What needs no change is not touched: then the data set itself is returned.
"""  # noqa: E501

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rapidfire_jupyter.data.columns import dataset_of, python_values, rows_table
from rapidfire_jupyter.data.conversations import clean_messages
from rapidfire_jupyter.data.kinds import GENERATING
from rapidfire_jupyter.data.layouts import Layout, as_table
from rapidfire_jupyter.data.values import is_chat, text_column, truth_values
from rapidfire_jupyter.errors import DataError

# ChatML. Its marks need not be tokens, so an answer ends with the tokenizer's own end as well.
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>"
    "{% if eos_token and eos_token != '<|im_end|>' %}{{ eos_token }}{% endif %}{% endgeneration %}"
    "{% else %}{{ message['content'] }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_GENERATION = re.compile(r"{%-?\s*(end)?generation\s*-?%}")  # a tag that transformers adds to Jinja
BATCH = 100  # rows of a stream that are mapped at once
_ANSWERS = ("output", "chosen", "rejected")
_TRL_NAMES = ("messages", "prompt", "completion", "text", "chosen", "rejected", "conversations")


def to_trl(dataset: Any, layout: Layout, tokenizer: Any = None, what: str = "the data") -> Any:
    """The data set in TRL's columns, with as many rows in the same order.

    Args:
        dataset: A datasets.Dataset, or an IterableDataset, which is mapped while it is read. Any:
            as is what is returned.
        layout: As `recognise` gives it for this data set.
        tokenizer: Decides whether instructions become messages; None gives text. Any: a tokenizer
            of transformers.
        what: How messages call the data.

    Raises:
        DataError: The data are messages and the tokenizer has no chat template; or a conversation
            holds what is none.
    """
    if layout.conversational or layout.trainer_type == "GKD":
        refuse_without_template(tokenizer, what)
    if layout.kind == "tokens":
        return dataset
    if not hasattr(dataset, "__len__"):
        return _stream_to_trl(dataset, layout, tokenizer, what)
    table = as_table(dataset)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    made = _parts(columns, layout, has_template(tokenizer), what)
    used = {name for _, names in layout.columns for name in names}
    confusing = {name for name in layout.unused if name in _TRL_NAMES}
    drop = (used - set(made)) | (set() if layout.trainer_type in GENERATING else confusing)
    if layout.kind == "references":
        drop -= {"references"}
    if not drop and all(made[name] is columns.get(name) for name in made):
        return dataset
    for name in drop & set(table.column_names):
        table = table.drop_columns(name)
    for name, column in made.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, column)
        else:
            table = table.append_column(name, column)
    return dataset_of(table, {n: f for n, f in dataset.features.items() if n not in made})


def _stream_to_trl(stream: Any, layout: Layout, tokenizer: Any, what: str) -> Any:
    """A stream in TRL's columns; the same one if its first rows need no change."""
    sample = dataset_of(as_table(stream))
    first = to_trl(sample, layout, tokenizer, what)
    if first is sample:
        return stream

    def convert(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows = [
            dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)
        ]
        made: dict[str, list[Any]] = to_trl(
            dataset_of(rows_table(rows, what)), layout, tokenizer, what
        ).to_dict()
        return made

    gone = [name for name in sample.column_names if name not in first.column_names]
    return stream.map(convert, batched=True, batch_size=BATCH, remove_columns=gone)


def has_template(tokenizer: Any) -> bool:
    """Whether a tokenizer has a chat template. Any: a tokenizer of transformers, or None."""
    return bool(getattr(tokenizer, "chat_template", None))


def refuse_without_template(tokenizer: Any, what: str) -> None:
    """Refuse messages for a tokenizer without a chat template; without a tokenizer, nothing.

    Raises:
        DataError: It has none.
    """
    if tokenizer is not None and not has_template(tokenizer):
        raise DataError(
            f"{what} holds messages, but the tokenizer has no chat template; give "
            'RFModelConfig(chat_template="chatml") for a common one, or a template of your own'
        )


def chat_template(asked: str) -> str:
    """The chat template that `RFModelConfig(chat_template=...)` asks for: "chatml", or its text.

    Raises:
        DataError: It is no template.
    """
    from jinja2 import Environment, TemplateSyntaxError

    if asked == "chatml":
        return CHATML
    if "{" not in asked:
        raise DataError(
            f'chat_template must be "chatml" or the text of a Jinja template, got {asked!r}'
        )
    try:
        Environment().parse(_GENERATION.sub("", asked))
    except TemplateSyntaxError as error:
        raise DataError(f"chat_template is no Jinja template: {error}; mend it") from error
    return asked


def _parts(
    columns: Mapping[str, pa.ChunkedArray], layout: Layout, chat: bool, what: str
) -> dict[str, pa.ChunkedArray]:
    """The columns that TRL takes."""
    found = {part: _merged(columns, names) for part, names in layout.columns}
    kind = layout.kind
    if kind in ("messages", "sharegpt"):
        name = "messages" if kind == "messages" else "conversations"
        messages = clean_messages(found[name], f"{what}, column {name!r}")
        if layout.trainer_type == "Distillation":
            return {"prompt": _before_the_answer(messages, f"{what}, column {name!r}")}
        return {"messages": messages}
    if layout.trainer_type == "GKD":
        return {"messages": _as_messages(found, kind, what)}
    if kind == "references":
        return {
            "prompt": _one(found["prompt"], f"{what}, column 'prompt'"),
            "completion": _first_reference(found["references"]),
            "references": found["references"],
        }
    if kind.startswith("instruction"):
        made = _from_instruction(found, chat)
        return {**made, "label": _label(found["label"])} if "label" in found else made
    if kind == "preference" and is_chat(found["chosen"]) and not is_chat(found["prompt"]):
        del found["prompt"]  # the prompt is the first turn of both answers too
    return {
        part: _label(column) if part == "label" else _one(column, f"{what}, column {part!r}")
        for part, column in found.items()
        if part != "label" or layout.trainer_type == "KTO"
    }


def _label(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Labels as truth values, whether they are written so, as 0 and 1, or as text."""
    if pa.types.is_boolean(column.type) and not column.null_count:
        return column
    return pa.chunked_array([pa.array(truth_values(column), pa.bool_())])


def _before_the_answer(messages: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    """Each conversation up to its last answer of the assistant."""
    rows = python_values(messages)
    for number, row in enumerate(rows, start=1):
        if row and row[-1]["role"] == "assistant":
            row = rows[number - 1] = row[:-1]
        if not row:
            raise DataError(f"{where}, row {number}: there is no message before the answer")
    return rows_table([{"prompt": row} for row in rows], where).column("prompt")


def _as_messages(found: dict[str, pa.ChunkedArray], kind: str, what: str) -> pa.ChunkedArray:
    """Prompt and answer of each row as one conversation."""
    if kind == "instruction":
        made = _from_instruction(found, True)
        parts = made["prompt"], made["completion"]
    else:
        prompt, answer = (
            _one(found[part], f"{what}, column {part!r}") for part in ("prompt", "completion")
        )
        chat = is_chat(prompt)
        parts = (
            prompt if chat else _messages("user", prompt),
            answer if chat else _messages("assistant", answer),
        )
    pairs = zip(*map(python_values, parts), strict=True)
    return rows_table([{"messages": [*a, *b]} for a, b in pairs], what).column("messages")


def _merged(columns: Mapping[str, pa.ChunkedArray], names: tuple[str, ...]) -> pa.ChunkedArray:
    """Columns of one part as one column: in each row, the one that is filled."""
    if len(names) == 1:
        return columns[names[0]]
    return pc.coalesce(*(text_column(columns[name]) for name in names))


def _one(column: pa.ChunkedArray, where: str) -> pa.ChunkedArray:
    if is_chat(column):
        return clean_messages(column, where)
    return column if pa.types.is_large_string(column.type) else text_column(column)


def _first_reference(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_list(column.type):
        firsts = [row[0] if row else "" for row in column.to_pylist()]
        return pa.chunked_array([pa.array(firsts, pa.string())])
    return text_column(column)


def _from_instruction(found: dict[str, pa.ChunkedArray], chat: bool) -> dict[str, pa.ChunkedArray]:
    """Prompt and answers of instruction, input and system texts."""
    names = {"output": "completion", "chosen": "chosen", "rejected": "rejected"}
    instruction = text_column(found["instruction"])
    context = text_column(found["input"]) if "input" in found else None
    system = text_column(found["system"]) if "system" in found else None
    answers = {names[p]: text_column(c) for p, c in found.items() if p in _ANSWERS}
    if not chat:
        prompt = _joined("### Instruction:\n", instruction, "")
        if context is not None:
            prompt = pc.binary_join_element_wise(prompt, _if_any("\n\n### Input:\n", context), "")
        prompt = _joined("", prompt, "\n\n### Response:\n")
        if system is not None:
            prompt = pc.binary_join_element_wise(_if_any("", system, "\n\n"), prompt, "")
        return {"prompt": prompt, **answers}
    question = instruction
    if context is not None:
        question = pc.binary_join_element_wise(question, _if_any("\n\n", context), "")
    return {
        "prompt": _messages("user", question, system),
        **{name: _messages("assistant", answer) for name, answer in answers.items()},
    }


def _joined(before: str, column: pa.ChunkedArray, after: str) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(before, column, after, "")


def _if_any(before: str, column: pa.ChunkedArray, after: str = "") -> pa.ChunkedArray:
    """The column between two texts; an empty text where it is blank or null."""
    filled = pc.fill_null(pc.greater(pc.utf8_length(pc.utf8_trim_whitespace(column)), 0), False)
    return pc.if_else(filled, _joined(before, pc.fill_null(column, ""), after), "")


def _messages(
    role: str, column: pa.ChunkedArray, system: pa.ChunkedArray | None = None
) -> pa.ChunkedArray:
    texts = column.to_pylist()
    before = [None] * len(texts) if system is None else system.to_pylist()
    rows = [
        [
            *([{"role": "system", "content": rule}] if rule and rule.strip() else []),
            {"role": role, "content": text},
        ]
        for rule, text in zip(before, texts, strict=True)
    ]
    return pa.chunked_array([pa.array(rows)])
