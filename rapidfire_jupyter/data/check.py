"""`check_data`: what is wrong with data, told before anything is trained.

Without a tokenizer everything is counted in Arrow, fast enough for millions of rows; `run_fit` does
that part itself. With one, rows are tokenised as TRL would.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapidfire_jupyter.data import conversations, duplicates, layouts, lengths
from rapidfire_jupyter.data.columns import dataset_of
from rapidfire_jupyter.data.layouts import Layout
from rapidfire_jupyter.data.report import DataReport, Finding, Level, Part, row_count
from rapidfire_jupyter.data.sets import as_dataset
from rapidfire_jupyter.data.values import is_blank, is_chat
from rapidfire_jupyter.errors import DataError

FEW_ROWS = 1000
EVAL_SHARE = (0.05, 0.20)
NEAR_ROWS = 5000  # near-duplicates are looked for in no more rows, unless asked for
_LEARNT = ("completion", "output", "text", "chosen", "rejected")
_ASKED = ("prompt", "instruction")
# Problems of conversations that no trainer should meet; the others are warned of.
_BAD_TURNS = ("empty", "role", "reply", "blank")
# What models write around their turns; text that holds it may be read as the end of a turn.
_SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|assistant|>",
    "<|user|>",
    "<|system|>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "[INST]",
    "[/INST]",
)


@dataclass(frozen=True)
class _Read:
    """A data set with its layout and texts. Any: datasets.Dataset."""

    name: str
    data: Any
    table: pa.Table
    layout: Layout
    texts: dict[str, pa.ChunkedArray]
    hashes: Any


def check_data(
    train: Any,
    eval: Any = None,
    tokenizer: Any = None,
    max_length: int | Sequence[int] | None = None,
    *,
    trainer_type: str | None = None,
    kind: str | None = None,
    near_duplicates: float | bool | None = None,
) -> DataReport:
    """Check data sets, and tell everything that was found at once.

    Args:
        train: A datasets.Dataset, a list of dicts or a DataFrame. Any: they share no type.
        eval: The same, to evaluate on; or None.
        tokenizer: Counts tokens and knows special ones. Any: a tokenizer of transformers.
        max_length: Lengths in tokens to count truncated rows for; needs a tokenizer.
        trainer_type: "SFT", "DPO", ...; None takes the first that has such columns.
        kind: The layout to use, where rows have several (see `layouts.KINDS`).
        near_duplicates: Least similarity of rows to tell of, True for 0.85, False for not looking.
            None looks in up to 5,000 rows if the package datasketch is installed.

    Raises:
        DataError: An argument is no data set, or cannot be used.
    """
    limits = _limits(max_length, tokenizer)
    parts: list[Part] = []
    findings: list[Finding] = []
    read: list[_Read] = []
    given = [as_dataset(train, "train"), None if eval is None else as_dataset(eval, "eval")]
    for name, data in zip(("train", "eval"), given, strict=True):
        if data is None:
            continue
        part, found, one = _check_one(name, data, trainer_type, kind)
        if one is not None:
            read.append(one)
            found += _near(one, near_duplicates)
            found += _special_tokens(one, tokenizer)
            if tokenizer is not None and not any(f.level == "error" for f in found):
                part, more = _measured(part, one, tokenizer, limits)
                found += more
        parts.append(part)
        findings += found
    findings += sizes(*given)
    if len(read) == 2:
        findings += _overlap(*read)
    order = {"error": 0, "warning": 1, "note": 2}
    findings.sort(key=lambda finding: order[finding.level])
    return DataReport(tuple(parts), tuple(findings))


def _limits(max_length: int | Sequence[int] | None, tokenizer: Any) -> tuple[int, ...]:
    if max_length is None:
        return ()
    values = (max_length,) if isinstance(max_length, int) else tuple(max_length)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DataError(f"max_length must be whole numbers >= 1, got {value!r}")
    if tokenizer is None:
        raise DataError("max_length is counted in tokens: give the tokenizer too")
    return values


def _check_one(
    name: str, data: Any, trainer_type: str | None, kind: str | None
) -> tuple[Part, list[Finding], _Read | None]:
    """What can be told of one data set without tokens."""
    table = layouts.as_table(data)
    found = []
    if not hasattr(data, "__len__"):
        text = f"a stream: only its first {row_count(table.num_rows)} were checked"
        found.append(_finding("stream", "note", name, [], text))
        data = dataset_of(table)
    allowed = layouts.allowed_kinds(table, trainer_type, kind)
    kinds, codes = layouts.row_kinds(table, allowed)
    counts = np.bincount(codes, minlength=len(kinds) + 1)
    by_kind = tuple((k, int(n)) for k, n in zip([*kinds, "none"], counts, strict=True) if n)
    part = Part(name, table.num_rows, by_kind, None)
    try:
        layout = layouts.recognise(table, trainer_type, kind, name)
        texts = duplicates.part_texts(table, layout, name)
        hashes = duplicates.row_hashes(table, layout, name)
    except DataError as error:
        lacking = codes == len(kinds)
        text = _without(name, str(error))
        return part, [*found, _finding("layout", "error", name, lacking, text)], None
    one = _Read(name, data, table, layout, texts, hashes)
    found += [_finding("layout", "note", name, [], note) for note in layout.notes]
    found += _blank(one)
    found += _turns(one)
    found += _pairs(one)
    repeats = duplicates.first_of(one.hashes) != np.arange(table.num_rows)
    if repeats.any():
        text = f"{row_count(int(repeats.sum()))} equal to an earlier one; clean_data drops them"
        found.append(_finding("duplicates", "warning", name, repeats, text))
    return replace(part, layout=layout), found, one


def _blank(one: _Read) -> list[Finding]:
    """Parts without a letter in them."""
    found = []
    for part, texts in one.texts.items():
        names = dict(one.layout.columns)[part]
        if part not in (*_LEARNT, *_ASKED) or is_chat(one.table.column(names[0])):
            continue
        blank = is_blank(texts)
        if not blank.any():
            continue
        shown = row_count(int(blank.sum()))
        if part in _ASKED:
            text = f"{shown} with an empty {part}"
            found.append(_finding("empty", "warning", one.name, blank, text))
        elif blank.all():
            text = f"{part} is empty in all {shown}: there is nothing to learn; check the column"
            found.append(_finding("empty", "error", one.name, blank, text))
        else:
            text = f"{shown} with an empty {part}: nothing to learn; clean_data drops them"
            found.append(_finding("empty", "warning", one.name, blank, text))
    return found


def _turns(one: _Read) -> list[Finding]:
    """What is wrong with conversations."""
    found = []
    for part, names in one.layout.columns:
        column = one.table.column(names[0])
        if part == "references" or not is_chat(column):
            continue
        turns = conversations.turns_of(column, f"{one.name}, column {names[0]!r}")
        for problem, rows in conversations.problems(turns).items():
            if part not in ("messages", "conversations") and problem == "start":
                continue  # an answer does start with the assistant
            unanswered = part == "prompt" or one.layout.trainer_type == "Distillation"
            if unanswered and problem in ("reply", "blank"):
                continue  # a prompt has no reply yet
            level: Level = "error" if problem in _BAD_TURNS else "warning"
            text = f"{part}: {row_count(int(rows.sum()))}: {conversations.PROBLEMS[problem]}"
            if problem == "role":
                text += f" ({_unknown_roles(turns)}); known are {', '.join(conversations.ROLES)}"
            if level == "error":
                text += "; mend them, or drop them with clean_data"
            found.append(_finding(f"turns_{problem}", level, one.name, rows, text))
    return found


def _unknown_roles(turns: conversations.Turns) -> str:
    unknown = turns.roles.filter(pa.array(conversations.role_codes(turns.roles) < 0))
    return ", ".join(map(repr, pc.unique(unknown).to_pylist()[:5]))


def _pairs(one: _Read) -> list[Finding]:
    """Preference pairs that prefer nothing."""
    if "rejected" not in one.texts:
        return []
    equal = pc.equal(one.texts["chosen"], one.texts["rejected"])
    same = pc.fill_null(equal, False).to_numpy()
    if not same.any():
        return []
    level: Level = "error" if same.all() else "warning"
    text = f"{row_count(int(same.sum()))} whose chosen and rejected answers are equal"
    return [_finding("equal_pairs", level, one.name, same, f"{text}; clean_data drops them")]


def _near(one: _Read, wanted: float | bool | None) -> list[Finding]:
    rows = one.table.num_rows
    if wanted is False:
        return []
    if wanted is None and (rows > NEAR_ROWS or not duplicates.has_datasketch()):
        return []
    threshold = duplicates.THRESHOLD if wanted is None or wanted is True else float(wanted)
    texts = duplicates.row_keys(one.texts).to_pylist()
    kept = np.flatnonzero(duplicates.first_of(one.hashes) == np.arange(rows))
    near = duplicates.near_duplicates([texts[row] for row in kept], threshold)
    if not near:
        return []
    numbers = [int(kept[row]) for row in near]
    text = (
        f"{row_count(len(near))} nearly equal to an earlier one (similarity at least {threshold:g})"
    )
    return [_finding("near_duplicates", "warning", one.name, numbers, text)]


def _special_tokens(one: _Read, tokenizer: Any) -> list[Finding]:
    """Texts in which a model's own marks are written out."""
    known = [str(token) for token in getattr(tokenizer, "all_special_tokens", ())]
    marks = dict.fromkeys([*known, *_SPECIAL])
    pattern = "|".join(map(_quoted, marks))
    rows = np.zeros(one.table.num_rows, dtype=bool)
    for texts in one.texts.values():
        held = pc.match_substring_regex(texts, pattern)
        rows |= np.asarray(pc.fill_null(held, False).to_numpy(), dtype=bool)
    if not rows.any():
        return []
    first = [texts.filter(pa.array(rows))[:100].to_pylist() for texts in one.texts.values()]
    some = " ".join(text or "" for texts in first for text in texts)
    names = ", ".join(mark for mark in marks if mark in some)
    text = f"{row_count(int(rows.sum()))} with special tokens written out in the text ({names})"
    return [_finding("special_tokens", "warning", one.name, rows, text)]


def _quoted(mark: str) -> str:
    return "".join(f"\\x{{{ord(c):x}}}" if not c.isalnum() else c for c in mark)


def _measured(
    part: Part, one: _Read, tokenizer: Any, limits: tuple[int, ...]
) -> tuple[Part, list[Finding]]:
    """Token counts; what a maximum length cuts off."""
    try:
        measured = lengths.measure(one.data, one.layout, tokenizer, limits, one.name)
    except DataError as error:
        text = _without(one.name, str(error))
        return part, [_finding("template", "error", one.name, [], text)]
    found = []
    for limit in measured.limits:
        if limit.emptied == part.rows:
            text = (
                f"nothing is left to learn at max_length={limit.max_length}: in all "
                f"{row_count(part.rows)} the prompt fills it; raise max_length"
            )
            rows = limit.emptied_rows
            found.append(Finding("emptied", "error", one.name, part.rows, rows, text))
        elif limit.emptied:
            text = (
                f"{row_count(limit.emptied)} with nothing left to learn at "
                f"max_length={limit.max_length}: the trainer drops them"
            )
            rows = limit.emptied_rows
            found.append(Finding("emptied", "warning", one.name, limit.emptied, rows, text))
        if limit.truncated:
            text = f"{row_count(limit.truncated)} longer than max_length={limit.max_length}"
            rows = limit.truncated_rows
            found.append(Finding("truncated", "warning", one.name, limit.truncated, rows, text))
    return replace(part, lengths=measured), found


def _without(name: str, message: str) -> str:
    """A message without the name it starts with: a finding has it already."""
    for after in (": ", ", ", " "):
        message = message.removeprefix(name + after)
    return message


def sizes(train: Any, evaluation: Any) -> list[Finding]:
    """Notes on few rows and on an unusual share to evaluate on. Any: data sets; None, a stream."""
    found = []
    rows = [len(data) if hasattr(data, "__len__") else None for data in (train, evaluation)]
    if rows[0] is not None and rows[0] < FEW_ROWS:
        text = f"{row_count(rows[0])} are few: under {FEW_ROWS:,}, runs may differ by chance"
        found.append(Finding("few_rows", "note", "train", rows[0], (), text))
    if rows[0] is not None and rows[1] is not None:
        share = rows[1] / (rows[1] + rows[0])
        if not EVAL_SHARE[0] <= share <= EVAL_SHARE[1]:
            text = f"{100 * share:.1f} % of all rows are for evaluation; 5 % to 20 % is usual"
            found.append(Finding("eval_share", "note", "eval", rows[1], (), text))
    return found


def _overlap(train: _Read, evaluation: _Read) -> list[Finding]:
    """Rows to evaluate on that are trained on, and questions of theirs that are."""
    found = []
    if train.layout.kind != evaluation.layout.kind:
        text = f"its layout is {evaluation.layout.kind}, that of train is {train.layout.kind}"
        found.append(_finding("layout", "note", "eval", [], text.replace("_", " ")))
    both = np.zeros(evaluation.table.num_rows, dtype=bool)
    if tuple(train.texts) == tuple(evaluation.texts):
        both = duplicates.shared_rows(evaluation.hashes, train.hashes)
        if both.any():
            text = f"{row_count(int(both.sum()))} also in train; evaluate on others"
            found.append(_finding("overlap", "warning", "eval", both, text))
    for part in _ASKED:
        if part in train.texts and part in evaluation.texts:
            asked = duplicates.shared_texts(evaluation.texts[part], train.texts[part]) & ~both
            if asked.any():
                text = f"{row_count(int(asked.sum()))} whose {part} is in train too"
                found.append(_finding("prompt_overlap", "note", "eval", asked, text))
    return found


def _finding(
    kind: str, level: Level, part: str, rows: "np.ndarray[Any, Any] | Iterable[int]", text: str
) -> Finding:
    """A finding of a mask of rows, or of row numbers counted from 0."""
    numbers = np.flatnonzero(rows) if isinstance(rows, np.ndarray) else np.array(list(rows), int)
    return Finding(kind, level, part, len(numbers), tuple(int(n) + 1 for n in numbers[:10]), text)
