"""How many tokens rows have, and what a maximum length leaves of them, as TRL would cut them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rapidfire_jupyter.data.kinds import GENERATING
from rapidfire_jupyter.data.layouts import Layout
from rapidfire_jupyter.data.mapping import to_trl
from rapidfire_jupyter.errors import DataError

BINS = 12
BATCH = 500


@dataclass(frozen=True)
class Limit:
    """What a maximum length does to a data set.

    Attributes:
        truncated: Rows that are longer.
        emptied: Rows of which nothing is left to learn from: TRL drops them.
        truncated_rows, emptied_rows: The first ten of each, counted from 1.
    """

    max_length: int
    truncated: int
    emptied: int
    truncated_rows: tuple[int, ...]
    emptied_rows: tuple[int, ...]


@dataclass(frozen=True)
class Lengths:
    """Tokens of the rows of a data set; of a preference pair, of its longer answer.

    Attributes:
        edges: Borders of the histogram's bins; one more than counts.
        counts: Rows in each bin.
        median, high: The middle, and what 95 % of rows do not exceed.
    """

    least: int
    median: float
    high: float
    most: int
    edges: tuple[int, ...]
    counts: tuple[int, ...]
    limits: tuple[Limit, ...]


def measure(
    data: Any, layout: Layout, tokenizer: Any, max_lengths: tuple[int, ...], what: str
) -> Lengths:
    """Measure a data set with a tokenizer. Any: a datasets.Dataset and a tokenizer of transformers.

    Raises:
        DataError: The chat template refuses a row, or there is none.
    """
    if layout.trainer_type in GENERATING or layout.kind in ("prompt", "instruction_prompt"):
        max_lengths = ()  # trainers that generate cut no prompts
    totals: list[int] = []
    prompts: list[int] = []
    for total, prompt in row_lengths(to_trl(data, layout, tokenizer, what), tokenizer, what):
        totals.append(total)
        prompts.append(prompt)
    sizes, starts = np.array(totals), np.array(prompts)
    top = max(int(sizes.max()), 1)
    edges = np.unique(np.linspace(0, top + 1, BINS + 1).astype(int))
    counts, _ = np.histogram(sizes, edges)
    return Lengths(
        int(sizes.min()),
        float(np.median(sizes)),
        float(np.percentile(sizes, 95)),
        top,
        tuple(map(int, edges)),
        tuple(map(int, counts)),
        tuple(_limit(limit, sizes > limit, starts >= limit) for limit in max_lengths),
    )


def _limit(max_length: int, longer: Any, emptied: Any) -> Limit:  # Any: numpy masks of rows
    first = [tuple(int(row) + 1 for row in np.flatnonzero(m)[:10]) for m in (longer, emptied)]
    return Limit(max_length, int(longer.sum()), int(emptied.sum()), *first)


def row_lengths(dataset: Any, tokenizer: Any, what: str) -> Iterator[tuple[int, int]]:
    """For each row of a data set in TRL's columns: all its tokens, and those not learnt from.

    Args:
        dataset: A datasets.Dataset, as from `to_trl`. Any: and a tokenizer of transformers.

    Raises:
        DataError: The chat template refuses a row; the message has its number and the reason.
    """
    first = 1
    for batch in dataset.iter(batch_size=BATCH):
        columns = {name: list(values) for name, values in batch.items()}
        size = len(next(iter(columns.values())))
        rows = [{name: values[k] for name, values in columns.items()} for k in range(size)]
        if "input_ids" in columns:
            yield from ((len(ids), 0) for ids in columns["input_ids"])
        elif "chosen" in columns:
            yield from _pairs(rows, tokenizer, what, first)
        elif "completion" in columns:
            yield from _answers(rows, "completion", tokenizer, what, first)
        else:
            name = next(n for n in ("messages", "text", "prompt") if n in columns)
            texts = [_render(r[name], r, tokenizer, what, first + k) for k, r in enumerate(rows)]
            if name == "text":
                texts = [_ended(text, tokenizer) for text in texts]
            chat = [not isinstance(row[name], str) for row in rows]
            yield from ((len(ids), 0) for ids in _tokenise(texts, chat, tokenizer))
        first += size


def _pairs(
    rows: list[dict[str, Any]], tokenizer: Any, what: str, first: int
) -> Iterator[tuple[int, int]]:
    if "prompt" not in rows[0]:
        from trl.data_utils import extract_prompt

        rows = [{**row, **extract_prompt(row)} for row in rows]
    chosen = list(_answers(rows, "chosen", tokenizer, what, first))
    rejected = list(_answers(rows, "rejected", tokenizer, what, first))
    for (a, before), (b, also_before) in zip(chosen, rejected, strict=True):
        yield max(a, b), min(before, also_before)


def _answers(
    rows: list[dict[str, Any]], name: str, tokenizer: Any, what: str, first: int
) -> Iterator[tuple[int, int]]:
    """Tokens of prompt and answer together, and of what both begin with: the prompt."""
    before, whole, chat = [], [], []
    for number, row in enumerate(rows, start=first):
        prompt, answer = row["prompt"], row[name]
        chat.append(not isinstance(prompt, str))
        before.append(_render(prompt, row, tokenizer, what, number, True))
        if isinstance(prompt, str):
            whole.append(prompt + _ended(answer, tokenizer))
        else:
            whole.append(_render(prompt + answer, row, tokenizer, what, number))
    pairs = zip(_tokenise(before, chat, tokenizer), _tokenise(whole, chat, tokenizer), strict=True)
    for start, ids in pairs:
        shared = next(
            (k for k, (a, b) in enumerate(zip(start, ids, strict=False)) if a != b),
            min(len(start), len(ids)),
        )
        yield len(ids), shared


def _render(
    value: Any,
    row: dict[str, Any],
    tokenizer: Any,
    what: str,
    number: int,
    prompt_only: bool = False,
) -> str:
    """A text as it is; messages as the chat template writes them, with the row's tools."""
    if isinstance(value, str):
        return value
    tools = row.get("tools")
    try:
        return str(
            tokenizer.apply_chat_template(
                value,
                tools=json.loads(tools) if isinstance(tools, str) else tools,
                tokenize=False,
                add_generation_prompt=prompt_only,
                **(row.get("chat_template_kwargs") or {}),
            )
        )
    except Exception as error:  # a template is code of its own: it may raise anything
        raise DataError(
            f"{what}, row {number}: the chat template refuses it: {error}; mend the row, or drop "
            "it with clean_data"
        ) from error


def _ended(text: str, tokenizer: Any) -> str:
    end = getattr(tokenizer, "eos_token", None) or ""
    return text if text.endswith(end) else text + end


def _tokenise(texts: list[str], chat: list[bool], tokenizer: Any) -> list[list[int]]:
    """Token ids; a rendered chat brings its special tokens along."""
    if not texts:
        return []
    ids: list[list[int]] = tokenizer(texts, add_special_tokens=not chat[0])["input_ids"]
    return ids
