"""How alike the chunks of a plan are, and strata that make them more so.

Each chunk is compared with all rows: by the words in it (its unigrams, before any tokenising, so
that one figure holds for all runs; by tokens where a tokenizer is given or the data are token ids),
and by how long its rows are. The measure is the Jensen-Shannon
divergence to base 2, JS = (KL(c || m) + KL(w || m)) / 2 with m = (c + w) / 2: 0 for equal, 1 bit for
disjoint distributions; the Kullback-Leibler divergence KL(c || w) is told too. A chunk of few rows
differs by chance, so each figure stands beside that of random chunks of the same size: `DRAWS`
seeded shuffles of the rows. Over their mean plus `DEVIATIONS` standard deviations it is no chance.
"""  # noqa: E501

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rapidfire_jupyter.data import duplicates, layouts
from rapidfire_jupyter.data.plan import ChunkPlan
from rapidfire_jupyter.data.split import column_codes
from rapidfire_jupyter.data.values import is_text, text_column
from rapidfire_jupyter.errors import DataError

DRAWS = 20
DEVIATIONS = 5
WORDS = 4096  # the most frequent are told apart; the others count as one
LENGTHS = 16  # bins of row lengths, by quantiles
STRATA_LENGTHS = 8
SAMPLE_ROWS = 50_000  # rows that are measured, at most,
SAMPLE_CHARACTERS = 10_000_000  # and their text
TOKENIZED_ROWS = 1000  # at once
MOST_CHUNKS = 64  # that are measured
MOST_GROUPS = 12
Numbers = Any  # a numpy array

Strategy = Literal["shuffle", "stratified", "auto"]


@dataclass(frozen=True)
class Chunk:
    """One chunk beside all rows. Divergences in bits.

    Attributes:
        words: In its rows, or tokens; estimated where not all rows were measured.
        word_js, word_kl: Of its words, or tokens.
        word_chance, word_limit: JS of random chunks of its size: mean, and what no chance exceeds.
        length_js, length_kl, length_chance, length_limit: The same of its rows' lengths in these.
        groups: Share of its rows in each value of a column.
    """

    rows: int
    words: int
    word_js: float
    word_kl: float
    word_chance: float
    word_limit: float
    length_js: float
    length_kl: float
    length_chance: float
    length_limit: float
    groups: Mapping[str, float]

    @property
    def uneven(self) -> bool:
        """Whether it differs from all rows by more than chance."""
        return self.word_js > self.word_limit or self.length_js > self.length_limit


@dataclass(frozen=True)
class Balance:
    """How alike the chunks of a plan are, in its first epoch.

    Attributes:
        measured: Rows that were looked at.
        chunks: Of the first `MOST_CHUNKS` chunks.
        unit: What was counted: "words" or "tokens".
    """

    strategy: str
    rows: int
    measured: int
    chunks: tuple[Chunk, ...]
    unit: str = "words"

    @property
    def uneven(self) -> tuple[int, ...]:
        """Numbers of the chunks that differ by more than chance, counted from 1."""
        return tuple(n for n, chunk in enumerate(self.chunks, start=1) if chunk.uneven)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, for JSON."""
        return asdict(self)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> "Balance":
        """What `to_dict` gave."""
        return cls(**{**stored, "chunks": tuple(Chunk(**chunk) for chunk in stored["chunks"])})

    def figure(self) -> Any:
        """The divergences of each chunk with those of random chunks, as a plotly figure.

        Raises:
            DataError: plotly is not installed.
        """
        try:
            import plotly.graph_objects as go
        except ImportError as error:
            raise DataError("figures need the package plotly; run `pip install plotly`") from error
        drawn = go.Figure()
        numbers = list(range(1, len(self.chunks) + 1))
        for what, named, color in (
            ("word", self.unit, "#2a6fdb"),
            ("length", "lengths", "#d9822b"),
        ):
            for key, name, dash in (
                ("js", named, "solid"),
                ("chance", f"{named} of random chunks", "dot"),
                ("limit", f"{named}: no chance above", "dash"),
            ):
                drawn.add_scatter(
                    x=numbers,
                    y=[getattr(chunk, f"{what}_{key}") for chunk in self.chunks],
                    name=name,
                    mode="lines+markers" if key == "js" else "lines",
                    line={"color": color, "dash": dash, "width": 2 if key == "js" else 1},
                )
        drawn.update_layout(
            template="plotly_white",
            xaxis_title="chunk",
            yaxis_title="Jensen-Shannon divergence to all rows, bits",
            margin={"l": 60, "r": 20, "t": 30, "b": 50},
        )
        return drawn

    def __repr__(self) -> str:
        lines = [f"{self.rows} rows in chunks of strategy {self.strategy!r}; divergences in bits"]
        for number, chunk in enumerate(self.chunks, start=1):
            lines.append(
                f"chunk {number}: {chunk.rows} rows, {self.unit} {chunk.word_js:.4f} "
                f"(chance {chunk.word_chance:.4f}), lengths {chunk.length_js:.4f} "
                f"(chance {chunk.length_chance:.4f}){', uneven' if chunk.uneven else ''}"
            )
        return "\n".join(lines)


def measure(
    data: Any, plan: ChunkPlan, column: str | None = None, tokenizer: Any = None
) -> Balance:
    """Measure the chunks of a plan.

    Args:
        data: The data set it is of. Any: a datasets.Dataset.
        plan: The plan; its first epoch is measured.
        column: Whose values to count in each chunk.
        tokenizer: Counts its tokens instead of words. Any: a tokenizer of transformers.

    Raises:
        DataError: There is no such column.
    """
    strategy = "stratified" if plan.strata else "shuffle"
    return measure_order(data, plan.order(0), plan.starts, strategy, column, tokenizer)


def measure_order(
    data: Any,
    order: Sequence[int],
    starts: Sequence[int],
    strategy: str,
    column: str | None = None,
    tokenizer: Any = None,
) -> Balance:
    """Measure chunks of rows in any order, see `measure`."""
    table = layouts.as_table(data)
    rows = table.num_rows
    starts = list(starts)[: MOST_CHUNKS + 1]
    place = np.empty(rows, dtype=np.int64)
    place[np.asarray(order)] = np.arange(rows)
    chunk_of = np.searchsorted(starts, place, side="right") - 1
    sizes = np.bincount(chunk_of, minlength=len(starts))
    sample = _sample(table)
    unit, words, lengths = _counted(table.take(pa.array(sample)), tokenizer)
    bins = np.searchsorted(_edges(lengths, LENGTHS), lengths, side="right")
    of = chunk_of[sample]
    shown = range(min(len(starts), MOST_CHUNKS))
    count = len(starts)
    measures = [_Measured(words, lengths, count), _Measured(bins, np.ones_like(lengths), count)]
    found = [one.of(of) for one in measures]
    random = np.random.default_rng(0)
    draws = [[one.of(shuffled)[0] for one in measures]
             for shuffled in (random.permutation(of) for _ in range(DRAWS))]  # fmt: skip
    chance, limit = _of_chance(np.array(draws), np.bincount(of, minlength=count))
    per_row = np.bincount(of, lengths, count) / np.maximum(np.bincount(of, minlength=count), 1)
    groups = _groups(table, column, chunk_of, count)
    chunks = tuple(
        Chunk(
            int(sizes[k]),
            round(float(per_row[k] * sizes[k])),
            word_js=float(found[0][0][k]),
            word_kl=float(found[0][1][k]),
            word_chance=float(chance[0][k]),
            word_limit=float(limit[0][k]),
            length_js=float(found[1][0][k]),
            length_kl=float(found[1][1][k]),
            length_chance=float(chance[1][k]),
            length_limit=float(limit[1][k]),
            groups=groups[k],
        )
        for k in shown
    )
    return Balance(strategy, rows, len(sample), chunks, unit)


def balanced(
    data: Any, plan: ChunkPlan, strategy: Strategy, column: str | None = None
) -> tuple[ChunkPlan, Balance]:
    """The plan in the order that a strategy gives it, and its balance.

    "stratified" gives each chunk its share of row lengths and of a column's values; "auto" does so
    only where a chunk of the shuffled rows differs by more than chance.

    Raises:
        DataError: There is no such column, or its values cannot be told apart.
    """
    if strategy != "stratified":
        shuffled = measure(data, plan, column)
        if strategy == "shuffle" or not shuffled.uneven:
            return plan, shuffled
    plan = replace(plan, strata=make_strata(data, column))
    return plan, measure(data, plan, column)


def make_strata(data: Any, column: str | None = None) -> tuple[int, ...]:
    """A stratum for each row: by its length, in eight bins of equal size, and a column's value.

    Raises:
        DataError: There is no such column, or its values cannot be told apart.
    """
    table = layouts.as_table(data)
    lengths = np.asarray(pc.utf8_length(row_texts(table)).to_numpy(zero_copy_only=False))
    strata = np.searchsorted(_edges(lengths, STRATA_LENGTHS), lengths, side="right")
    if column is not None:
        strata = strata + (STRATA_LENGTHS + 1) * column_codes(table, column)
    _, strata = np.unique(strata, return_inverse=True)
    return tuple(strata.tolist())


def row_texts(table: pa.Table) -> pa.ChunkedArray:
    """All that is trained on in each row, as one text."""
    try:
        layout = layouts.recognise(table)
        texts = list(duplicates.part_texts(table, layout, "the data").values())
    except DataError:  # columns that a formatting_func is for
        texts = [
            text_column(table.column(field.name)) for field in table.schema if is_text(field.type)
        ]
    filled = [pc.fill_null(column, "") for column in texts]
    if not filled:
        return pa.chunked_array([pa.array([""] * table.num_rows)])
    return filled[0] if len(filled) == 1 else pc.binary_join_element_wise(*filled, " ")


class _Measured:
    """Values, some per row, whose distribution in chunks is compared with that in all rows."""

    def __init__(self, values: Numbers, per_row: Numbers, chunks: int) -> None:
        self._values, self._per_row, self._chunks = values, per_row, chunks
        self._kinds = int(values.max()) + 1 if len(values) else 1
        self._all = np.bincount(values, minlength=self._kinds) / max(len(values), 1)

    def of(self, chunk_of: Numbers) -> tuple[Numbers, Numbers]:
        """JS and KL of each chunk, in bits, for rows in these chunks."""
        cells = np.repeat(chunk_of, self._per_row) * self._kinds + self._values
        counts = np.bincount(cells, minlength=self._chunks * self._kinds)
        counts = counts.reshape(self._chunks, self._kinds)
        mine = counts / np.maximum(counts.sum(1, keepdims=True), 1)  # (chunks, kinds)
        middle = (mine + self._all) / 2
        return (_kl(mine, middle) + _kl(self._all, middle)) / 2, _kl(mine, self._all)


def _of_chance(draws: Numbers, sizes: Numbers) -> tuple[Numbers, Numbers]:
    """Mean of random chunks of each chunk's size, and what no chance exceeds: (2, chunks) each."""
    alike = [np.flatnonzero(np.abs(sizes - size) <= size / 20) for size in sizes]
    chance = np.stack([draws[:, :, k].mean((0, 2)) for k in alike], axis=1)
    spread = np.stack([draws[:, :, k].std((0, 2)) for k in alike], axis=1)
    return chance, chance + DEVIATIONS * spread


def _kl(first: Numbers, second: Numbers) -> Numbers:
    """Sum of first * log2(first / second) over kinds; what first lacks counts nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = first * np.log2(first / second)
    return np.nansum(np.where(first > 0, terms, 0.0), axis=-1)


def _sample(table: pa.Table) -> Numbers:
    """Rows to measure, in order: all, or a seeded choice."""
    rows = table.num_rows
    first = table.slice(0, 1000)
    letters = pc.sum(pc.utf8_length(row_texts(first))).as_py() or 1
    most = min(SAMPLE_ROWS, max(int(SAMPLE_CHARACTERS * first.num_rows / letters), 1000))
    if rows <= most:
        return np.arange(rows)
    return np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def _counted(table: pa.Table, tokenizer: Any) -> tuple[str, Numbers, Numbers]:
    """What is counted, a number for each of these in all rows, and how many each row has."""
    if tokenizer is not None:
        return "tokens", *_numbered(_tokens(row_texts(table), tokenizer))
    with contextlib.suppress(DataError):
        layout = layouts.recognise(table)
        if layout.kind == "tokens":
            name = dict(layout.columns)["input_ids"][0]
            return "tokens", *_numbered(table.column(name).combine_chunks())
    words = pc.utf8_split_whitespace(row_texts(table)).combine_chunks()
    return "words", *_numbered(words)


def _tokens(texts: pa.ChunkedArray, tokenizer: Any) -> pa.Array:
    """The token ids of each text, without those that a tokenizer puts around it."""
    ids = [
        row
        for start in range(0, len(texts), TOKENIZED_ROWS)
        for row in tokenizer(
            texts.slice(start, TOKENIZED_ROWS).to_pylist(), add_special_tokens=False
        )["input_ids"]
    ]
    return pa.array(ids, pa.list_(pa.int32()))


def _numbered(lists: pa.Array) -> tuple[Numbers, Numbers]:
    """A number for each item of all rows' lists, and how many each row has."""
    counts = pc.fill_null(pc.list_value_length(lists), 0)
    lengths = np.asarray(counts.to_numpy(zero_copy_only=False))
    encoded = lists.flatten().dictionary_encode()
    codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False))
    counts = np.bincount(codes, minlength=1)
    if len(counts) > WORDS:
        frequent = np.argsort(-counts, kind="stable")[: WORDS - 1]
        new = np.full(len(counts), WORDS - 1)
        new[frequent] = np.arange(WORDS - 1)
        codes = new[codes]
    return codes.astype(np.int64), lengths.astype(np.int64)


def _edges(lengths: Numbers, bins: int) -> Numbers:
    """Borders between bins of about as many rows each."""
    return np.unique(np.quantile(lengths, np.linspace(0, 1, bins + 1)[1:-1]))


def _groups(
    table: pa.Table, column: str | None, chunk_of: Numbers, chunks: int
) -> list[dict[str, float]]:
    if column is None:
        return [{} for _ in range(chunks)]
    codes = column_codes(table, column)
    most = np.argsort(-np.bincount(codes), kind="stable")[:MOST_GROUPS]
    sizes = np.maximum(np.bincount(chunk_of, minlength=chunks), 1)
    shares = {
        str(table.column(column)[int(np.argmax(codes == code))].as_py()): np.bincount(
            chunk_of[codes == code], minlength=chunks
        )
        / sizes
        for code in most
    }
    return [{name: float(share[k]) for name, share in shares.items()} for k in range(chunks)]
