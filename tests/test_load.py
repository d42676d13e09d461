"""Loading: what users have comes in as it is, and what is broken is named by file, line, column."""

import datetime
import gzip
import json
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import Dataset, DatasetDict, IterableDataset
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from rapidfire_jupyter.data.load import load_data
from rapidfire_jupyter.data.sets import fingerprint
from rapidfire_jupyter.errors import DataError

ROWS = [
    {"instruction": "Name the sky.", "input": "", "output": "Blue."},
    {"instruction": "Count to 2.", "input": "Slowly.", "output": 'One, "two".'},
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)
CSV = 'instruction,input,output\r\nName the sky.,,Blue.\r\nCount to 2.,Slowly.,"One, ""two""."\r\n'


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a file into this test's folder, which is the current one."""
    monkeypatch.chdir(tmp_path)

    def write(name, content):
        data = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return name

    return write


def refused(data, *args, **kwargs):
    """The message of the error that loading gives; it is one line."""
    with pytest.raises(DataError) as caught:
        load_data(data, *args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---- files as they should be


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", LINES),
        ("a.ndjson", LINES),
        ("a.json", json.dumps(ROWS, indent=1)),
        ("a.csv", CSV),
        ("a.tsv", CSV.replace("Name the sky.,,Blue.", "Name the sky.\t\tBlue.")
            .replace("instruction,input,output", "instruction\tinput\toutput")
            .replace("Count to 2.,Slowly.,", "Count to 2.\tSlowly.\t")),
        ("a.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)),
        ("a.csv.gz", gzip.compress(CSV.encode(), mtime=0)),
    ],
)  # fmt: skip
def test_the_same_rows_come_from_every_kind_of_file(write, name, content):
    data = load_data(write(name, content))

    assert data.to_list() == ROWS
    assert set(map(str, data.features.values())) == {"Value('string')"}


def test_parquet_gives_lists_of_messages_and_drops_pandas_index(write):
    frame = pd.DataFrame(
        {"prompt": pd.Categorical(["a", "b", "a"]), "completion": [" x", None, " z"]},
        index=[7, 8, 9],
    )
    frame.to_parquet("frame.parquet")
    messages = [[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]]
    parquet.write_table(pa.table({"messages": messages}), "messages.parquet")

    data = load_data("frame.parquet")

    assert data.column_names == ["prompt", "completion"]
    assert data["prompt"][:] == ["a", "b", "a"]
    assert data["completion"][:] == [" x", None, " z"]
    assert load_data("messages.parquet")[0]["messages"] == messages[0]


def test_lines_of_a_text_file_are_rows_and_blank_lines_are_none(write):
    data = load_data(write("a.txt", "The tram stops.\r\n\n   \nA pigeon  boards. \n\nLast"))

    assert data["text"][:] == ["The tram stops.", "A pigeon  boards. ", "Last"]


def test_json_files_are_told_apart_by_what_they_hold_not_by_their_ending(write):
    listed = load_data(write("list.jsonl", json.dumps(ROWS)))
    lines = load_data(write("lines.json", LINES))
    pretty = load_data(write("pretty.json", "\n".join(json.dumps(r, indent=2) for r in ROWS)))
    one = load_data(write("one.json", json.dumps(ROWS[0], indent=2)))

    assert listed.to_list() == lines.to_list() == pretty.to_list() == ROWS
    assert one.to_list() == ROWS[:1]


def test_blank_lines_and_carriage_returns_are_no_rows(write):
    text = '{"prompt":"one","completion":" 1"}\r\n\r\n   \r\n{"prompt":"two","completion":" 2"}\r\n'

    assert load_data(write("a.jsonl", text))["prompt"][:] == ["one", "two"]


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", LINES), ("a.csv", CSV)])
def test_a_byte_order_mark_changes_nothing(write, name, content):
    plain = load_data(write(name, content))
    marked = load_data(write("bom_" + name, "\ufeff" + content))

    assert marked.to_list() == plain.to_list()
    assert marked.features == plain.features


def test_a_byte_order_mark_before_rows_with_varying_keys_changes_no_key(write):
    rows = [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "weight": 1}]},
        {"messages": [{"role": "user", "content": "hey", "name": "bot"}]},
    ]

    data = load_data(write("a.jsonl", "\ufeff" + "".join(json.dumps(r) + "\n" for r in rows)))

    assert data.to_list() == rows


# ---- text stays text, byte for byte

TEXTS = [
    "007",
    "1.50",
    "true",
    "null",
    "NA",
    "nan",
    "None",
    "2020-01-01",
    "2020-01-01T00:00:00Z",
    "1e5",
    " padded ",
    "",
    "12345678901234567890123",
    "nul \x00 inside",
    "form\ffeed",
    "line\u2028sep, paragraph\u2029sep, next\u0085line",
    "zero\u200bwidth and \ufeff inside",
    "\f",
    "a\r\nb\nc\rd",
    "emoji 🦊 and e\u0301",
    "{instruction} {0} {{ name }} {% if x %} %s %(x)s </s><|im_end|>",
    '<script>x</script><b> & "quoted"',
]


def test_text_in_json_lines_stays_as_it_is(write):
    rows = [{"text": text} for text in TEXTS]

    data = load_data(write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))
    raw = load_data(
        write("b.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    )

    assert data["text"][:] == raw["text"][:] == TEXTS


def test_cells_of_a_csv_file_stay_as_they_are(write):
    rows = "".join('"' + text.replace('"', '""') + f'",{n}\n' for n, text in enumerate(TEXTS))

    data = load_data(write("a.csv", "text,number\n" + rows))

    assert data["text"][:] == TEXTS
    assert data["number"][:] == [str(n) for n in range(len(TEXTS))]


def test_a_csv_of_texts_and_labels_keeps_both_as_text(write):
    data = load_data(write("a.csv", "text,label\r\nLovely clock,1\r\nBroken spoon,0\r\n"))

    assert data.to_list() == [
        {"text": "Lovely clock", "label": "1"},
        {"text": "Broken spoon", "label": "0"},
    ]


MIXED = [
    {"instruction": "Add 1 and 1.", "output": "2"},
    {"instruction": "Add 2 and 2.", "output": 4},
    {"instruction": "Is 3 odd?", "output": True},
    {"instruction": "List two.", "output": ["1", "2"]},
    {"instruction": "Say true.", "output": "true"},
    {"instruction": "Say it as JSON.", "output": '{"a": 1}'},
]


def test_values_of_several_types_in_one_column_keep_their_types(write):
    from_file = load_data(write("a.jsonl", "".join(json.dumps(row) + "\n" for row in MIXED)))
    from_list = load_data(MIXED)

    assert from_file.to_list() == from_list.to_list() == MIXED
    assert [type(v) for v in from_file["output"][:3]] == [str, int, bool]


def as_told(value):
    """A value with what 0 == 0.0 == False hides: text, truth values and numbers are told apart."""
    if isinstance(value, dict):
        return {key: as_told(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_told(item) for item in value]
    return bool if isinstance(value, bool) else str if isinstance(value, str) else None, value


@pytest.mark.parametrize("shape", [
    lambda value: value,
    lambda value: [value],
    lambda value: {"k": value},
    lambda value: {"k": [{"j": [value]}]},
], ids=["alone", "in a list", "in an object", "deep"])  # fmt: skip
@pytest.mark.parametrize(("first", "second"), [
    (0.0, False), (1.5, True), (1, True), (0, False), (False, 1.0), ("1", 1), ("true", True),
])  # fmt: skip
def test_no_value_becomes_one_of_another_type(write, first, second, shape):
    rows = [{"p": "x", "a": shape(value)} for value in (first, second, first, None)]

    from_file = load_data(write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows)))

    for data in (from_file, load_data(rows), load_data(pd.DataFrame(rows))):
        assert as_told(data["a"][:]) == as_told([row["a"] for row in rows])


def test_whole_numbers_and_fractions_are_one_column_of_numbers():
    assert load_data([{"a": 1}, {"a": 0.5}]).features["a"].dtype == "float64"
    assert load_data([{"a": 2**60 + 1}, {"a": 0.5}])["a"][:] == [2**60 + 1, 0.5]


def test_types_that_arrow_would_make_one_of_are_refused_with_their_row():
    day = datetime.date(2020, 1, 2)

    def refused(*values):
        with pytest.raises(DataError) as error:
            load_data([{"p": "x", "a": value} for value in values])
        return str(error.value)

    assert "row 2, column 'a': a value of type int among those of type date" in refused(day, 3)
    assert "row 3, column 'a': a value of type bytes among those" in refused("a", None, b"a")
    assert "column 'a': lists with values of several types" in refused([b"a"], ["a"])
    assert "give the values of a column one type" in refused(3, day)


def test_values_of_numpy_are_what_they_are_in_mixed_columns():
    values = [np.bool_(True), np.int64(3), "x"]

    assert as_told(load_data([{"a": v} for v in values])["a"][:]) == as_told([True, 3, "x"])


def test_values_of_several_types_keep_them_through_map_select_and_filter():
    data = load_data(MIXED)

    changed = data.map(lambda row: {"seen": True}).filter(lambda row: row["seen"]).select([0, 1, 4])

    assert changed["output"][:] == ["2", 4, "true"]


def test_types_that_change_after_many_rows_keep_every_value():
    rows = [{"answer": str(n)} for n in range(10_000)] + [{"answer": 5}, {"answer": None}]

    data = load_data(rows)

    assert data["answer"][:2] == ["0", "1"]
    assert data["answer"][-3:] == ["9999", 5, None]


def test_a_column_that_is_null_for_many_rows_and_then_text_is_text():
    rows = [{"text": "a", "input": None} for _ in range(10_001)] + [{"text": "b", "input": "late"}]

    data = load_data(rows)

    assert str(data.features["input"]) == "Value('string')"
    assert data[-1] == {"text": "b", "input": "late"}
    assert data[0]["input"] is None


def test_keys_that_come_and_go_are_null_where_they_are_not(write):
    lines = '{"a":"A"}\n{"a":"B","b":"x","c":"y"}\n{"b":"z"}\n'

    assert load_data(write("a.jsonl", lines)).to_list() == [
        {"a": "A", "b": None, "c": None},
        {"a": "B", "b": "x", "c": "y"},
        {"a": None, "b": "z", "c": None},
    ]


def test_whole_numbers_too_large_for_64_bits_become_text(write):
    lines = '{"id":12345678901234567890123,"text":"big"}\n{"id":1,"text":"small"}\n'

    data = load_data(write("a.jsonl", lines))

    assert data["id"][:] == ["12345678901234567890123", "1"]


def test_numbers_stay_numbers(write):
    lines = '{"a":1,"s":NaN}\n{"a":2,"s":Infinity}\n{"a":3,"s":1.5}\n'

    data = load_data(write("a.jsonl", lines))

    assert data["a"][:] == [1, 2, 3]
    assert [str(v) for v in data["s"]] == ["nan", "inf", "1.5"]


def test_arguments_of_tool_calls_keep_their_own_keys(write):
    def row(name, arguments):
        call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
        return {
            "messages": [
                {"role": "user", "content": "Do."},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "24"},
            ]
        }

    rows = [row("read", {"room": "shed"}), row("ring", {"times": 2})]

    data = load_data(write("a.jsonl", "".join(json.dumps(r) + "\n" for r in rows)))

    assert data.to_list() == rows


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=6)
    | st.integers(-8000, 8000).map(lambda n: n / 8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from("xyz"), inner, max_size=2),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("ab"), JSON_VALUES, min_size=1), min_size=1))
def test_whatever_values_rows_have_they_come_out_as_they_went_in(rows):
    data = load_data(rows)

    names = list(dict.fromkeys(name for row in rows for name in row))
    assert data.to_list() == [{name: row.get(name) for name in names} for row in rows]
    for row, made in zip(rows, data, strict=True):
        for name, value in row.items():
            assert as_told(made[name]) == as_told(value)


# ---- files that are broken


def test_an_invalid_line_is_named_with_its_column(write):
    lines = '{"prompt":"one"}\n\n{"prompt":"two",}\n{"prompt":"three"}\n'

    message = refused(write("a.jsonl", lines))

    assert message.startswith("a.jsonl, line 3, column 1")
    assert "no valid JSON" in message
    assert message.endswith("each line must be one JSON object")


def test_single_quotes_are_named(write):
    message = refused(write("a.jsonl", "{'prompt': 'one'}\n{'prompt': 'two'}\n"))

    assert message.startswith("a.jsonl, line 1, column 2: no valid JSON (JSON needs double quotes")


def test_a_cut_last_line_is_named(write):
    message = refused(write("a.jsonl", '{"p":"one"}\n{"p":"two"}\n{"p":"thr'))

    assert message.startswith("a.jsonl, line 3, column 6: no valid JSON (the line is cut off)")


def test_rows_that_are_split_or_shared_among_lines_are_refused(write):
    split = refused(write("split.jsonl", '{"p":[1\n2]}\n{"p":[3]}\n'))
    shared = refused(write("shared.jsonl", '{"p":1},{"p":2}\n{"p":3}\n'))
    text = refused(write("text.jsonl", '{"p":"a\nb"}\n{"p":"c"}\n'))

    assert split.startswith("split.jsonl, line 1, column ")
    assert shared.startswith("shared.jsonl, line 1, column 8")
    assert text.startswith("text.jsonl, line 1, column 6")


def test_rows_that_are_no_objects_are_refused(write):
    number = refused(write("a.jsonl", '{"p":"one"}\n7\n'))
    listed = refused(write("b.json", '[{"p":"one"},\n "two"]'))

    assert number == (
        'a.jsonl, line 2: a row must be an object such as {"text": "..."}, got a number (7)'
    )
    assert listed.startswith("b.json, line 2, column 2: a row must be an object")


def test_a_broken_list_is_named_with_line_and_column(write):
    comma = refused(write("a.json", '[\n {"p": 1},\n {"p": 2,}\n]'))
    end = refused(write("b.json", '[\n {"p": 1},\n {"p": 2}\n'))
    after = refused(write("c.json", '[{"p": 1}]\n{"p": 2}'))

    assert comma.startswith("a.json, line 3, column ")
    assert end.startswith("b.json, line 3, column 10: no valid JSON: the list of rows does not end")
    missing = refused(write("d.json", '[{"p": 1}\n {"p": 2}]'))
    assert missing.startswith("d.json, line 2, column 2: no valid JSON: the list of rows misses a")
    assert after.startswith("c.json, line 2, column 1: no valid JSON: text after the end")


def test_rows_under_a_key_are_refused_until_the_field_is_given(write):
    wrapped = {"version": 1, "data": [{"prompt": "one"}, {"prompt": "two"}]}
    name = write("a.json", json.dumps(wrapped))

    assert refused(name) == (
        "a.json is one object with 2 rows under 'data', not a list of rows; give field='data'"
    )
    assert load_data(name, field="data")["prompt"][:] == ["one", "two"]
    assert "there is no field 'rows', it has 'version', 'data'" in refused(name, field="rows")
    assert "field 'version' is a number (1), not a list" in refused(name, field="version")


def test_one_row_with_messages_is_no_wrapped_file(write):
    row = {"messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "x"}]}

    assert load_data(write("a.json", json.dumps(row))).to_list() == [row]


@pytest.mark.parametrize(("name", "row"), [("a.jsonl", '{"p":"%s"}\n'), ("a.csv", "%s,x\n")])
def test_bytes_that_are_no_utf8_are_named_by_line_and_byte(write, name, row):
    text = ("p,q\n" if name == "a.csv" else row % "head") + row % "plain" + row % "café"

    message = refused(write(name, text.encode("latin-1")))

    byte = 4 if name == "a.csv" else 10
    assert message.startswith(f"{name}, line 3, byte {byte}: 0xe9 is not UTF-8")
    assert "café" in message
    assert load_data(name, encoding="latin-1")[-1]["p"] == "café"


def test_another_encoding_is_named_and_read_if_it_is_given(write):
    name = write("a.jsonl", '{"p":"a"}\n{"p":"ü"}\n'.encode("utf-16"))

    assert refused(name) == (
        "a.jsonl, line 1, byte 1: the file is UTF-16 (it starts with ff fe), only UTF-8 is read; "
        "save it as UTF-8, or give encoding='utf-16'"
    )
    assert load_data(name, encoding="utf-16")["p"][:] == ["a", "ü"]
    assert "a.jsonl is not ascii" in refused(name, encoding="ascii")


def test_half_of_a_surrogate_pair_is_named_by_line_and_column(write):
    lines = '{"text":"fine"}\n{"text":"half \\ud83d here"}\n'

    message = refused(write("a.jsonl", lines))

    assert message == (
        "a.jsonl, line 2, column 'text': \\ud83d is half of a surrogate pair, which is no Unicode "
        "text; write the whole character"
    )
    assert "row 1, column 'm'" in refused([{"m": [{"role": "\ud83d"}]}])


def test_an_empty_file_and_a_header_alone_are_refused(write):
    assert refused(write("a.jsonl", "")) == (
        "a.jsonl is empty: it holds no rows; give at least one row"
    )
    assert "a.json is empty" in refused(write("a.json", "[]"))
    assert "a.txt is empty" in refused(write("a.txt", "\n \n"))
    assert "a.csv is empty" in refused(write("a.csv", ""))
    assert "holds no rows but the header instruction, input" in refused(
        write("b.csv", "instruction,input\n")
    )


def test_rows_of_a_csv_with_other_cells_than_its_header_are_named_by_line(write):
    more = refused(write("a.csv", 'p,q\n1,2\n"x\ny",2\n3,4,5\n'))
    fewer = refused(write("b.csv", "p,q\n1\n"))

    assert more == (
        "a.csv, line 5: 3 cells, but the header has 2 columns (p, q); put quotes around text that "
        "holds ','"
    )
    assert fewer.startswith("b.csv, line 2: 1 cell, but the header has 2 columns")


def test_headers_that_cannot_be_right_are_refused(write):
    semicolons = write("a.csv", "p;q\n1;2\n")

    assert "give delimiter=';'" in refused(semicolons)
    assert load_data(semicolons, delimiter=";").to_list() == [{"p": "1", "q": "2"}]
    assert "the column 'p' is there more than once" in refused(write("b.csv", "p,p\n1,2\n"))


def test_damaged_files_are_named(write):
    parquet.write_table(pa.table({"p": ["x"] * 100}), "whole.parquet")
    with open("whole.parquet", "rb") as whole:
        half = whole.read()[:200]
    packed = gzip.compress(LINES.encode(), mtime=0)

    assert "half.parquet is no whole Parquet file" in refused(write("half.parquet", half))
    assert "half.jsonl.gz cannot be read" in refused(write("half.jsonl.gz", packed[:-20]))
    assert "bad.csv.gz cannot be read" in refused(write("bad.csv.gz", b"no gzip"))


def test_deep_nesting_is_refused(write):
    deep = '{"p":' + "[" * 200_000 + "]" * 200_000 + "}\n"

    assert "nested too deeply" in refused(write("a.jsonl", deep))


# ---- where from


def test_a_folder_a_glob_and_a_list_read_files_one_after_another(write):
    write("d/b.jsonl", '{"p":"2"}\n')
    write("d/a.jsonl", '{"p":"1"}\n')
    write("d/.hidden/c.jsonl", '{"p":"hidden"}\n')
    write("d/notes.md", "not data")

    assert load_data("d")["p"][:] == ["1", "2"]
    assert load_data("d/*.jsonl")["p"][:] == ["1", "2"]
    assert load_data(["d/b.jsonl", "d/a.jsonl"])["p"][:] == ["2", "1"]


def test_splits_of_a_folder_are_told_by_the_names_of_its_files(write):
    write("d/train.jsonl", '{"p":"t"}\n')
    write("d/validation-0.jsonl", '{"p":"v"}\n')

    assert "holds the splits train, validation; give one of them" in refused("d")
    assert load_data("d", split="train")["p"][:] == ["t"]
    assert load_data("d", split="eval")["p"][:] == ["v"]
    assert "has no split 'test'" in refused("d", split="test")


def test_files_of_several_kinds_or_unknown_ones_are_refused(write):
    write("d/a.jsonl", LINES)
    write("d/b.csv", CSV)
    write("e/readme.md", "x")

    assert "several kinds (CSV, JSON); give a glob" in refused("d")
    assert "e holds no .jsonl, .ndjson" in refused("e")
    assert "files of this ending are not read" in refused("e/readme.md")


def test_a_column_that_differs_between_files_is_named(write):
    for name, column in (("a", ["x"]), ("b", [1])):
        parquet.write_table(pa.table({"p": column}), f"{name}.parquet")

    assert refused("*.parquet") == (
        "b.parquet: column 'p' is int64, but in a.parquet it is string; write both alike"
    )


def test_options_for_the_hub_are_refused_for_files(write):
    assert refused(write("a.jsonl", LINES), revision="main") == (
        "load_data has no argument 'revision' for files; those go to datasets.load_dataset for a "
        "name on the Hub"
    )


def test_a_long_list_is_read_in_blocks(write):
    rows = [{"p": str(n)} for n in range(20_001)]

    data = load_data(write("a.json", json.dumps(rows)))

    assert data["p"][-1] == "20000"
    assert len(data) == 20_001


def test_a_path_that_is_not_there_is_refused(write):
    assert refused("no/such/file.jsonl").startswith("there is no file or folder no/such/file.jsonl")
    assert "there is no file or folder no*.jsonl" in refused("no*.jsonl")


def test_a_name_that_is_nothing_here_is_looked_for_on_the_hub(monkeypatch, write):
    asked = []

    def load_dataset(name, split=None, **options):
        asked.append((name, split, options))
        return DatasetDict({"train": Dataset.from_list(ROWS), "test": Dataset.from_list(ROWS[:1])})

    monkeypatch.setattr("datasets.load_dataset", load_dataset)

    assert "some/name has the splits train, test; give one" in refused("some/name")
    load_data("some/name", split="test", revision="main")
    assert asked == [("some/name", None, {}), ("some/name", "test", {"revision": "main"})]


def test_code_of_a_data_set_is_trusted_only_where_the_user_says_so(monkeypatch, write):
    asked = []
    monkeypatch.setattr(
        "datasets.load_dataset",
        lambda *args, **kwargs: asked.append(kwargs) or Dataset.from_list(ROWS),
    )

    load_data("me/rows")
    load_data("me/rows", split="train", trust_remote_code=True)

    assert "trust_remote_code" not in asked[0]
    assert asked[1]["trust_remote_code"] is True


def test_a_hub_that_cannot_be_asked_is_told_in_one_line(write):
    assert "'nobody/nothing' is no file or folder here, and the Hub did not give" in refused(
        "nobody/nothing"
    )


def test_urls_of_fsspec_work_as_paths_do():
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/load_test/a.jsonl.gz", gzip.compress(LINES.encode(), mtime=0))
    memory.pipe("/load_test/b.csv", CSV.encode())
    parquet.write_table(pa.table({"p": ["x"]}), "load_test/c.parquet", filesystem=memory)

    assert load_data("memory://load_test/a.jsonl.gz").to_list() == ROWS
    assert load_data("memory://load_test/*.csv").to_list() == ROWS
    assert load_data("memory://load_test/c.parquet").to_list() == [{"p": "x"}]


@pytest.mark.parametrize(("url", "package"), [
    ("s3://bucket/a.jsonl", "s3fs"), ("s3://bucket/folder", "s3fs"), ("gs://bucket/a.csv", "gcsfs"),
    ("az://box/a.csv", "adlfs"), ("https://host/a.jsonl", "aiohttp requests"),
])  # fmt: skip
def test_a_url_whose_package_is_not_there_names_it(monkeypatch, url, package):
    known = sys.modules["fsspec.registry"]._registry
    monkeypatch.delitem(known, url.partition("://")[0], raising=False)
    for name in ("s3fs", "gcsfs", "adlfs", "aiohttp", "requests", "fsspec.implementations.http"):
        monkeypatch.setitem(sys.modules, name, None)

    assert refused(url) == (f"{url} needs a package that is not installed: pip install {package}")


def test_what_a_storage_cannot_open_is_told_in_one_line(monkeypatch):
    from fsspec.implementations.memory import MemoryFileSystem

    class GoneError(Exception):
        """No OSError, as clients of storages raise."""

    def fail(*args, **kwargs):
        raise GoneError("name or service not known")

    monkeypatch.setattr(MemoryFileSystem, "isfile", fail)

    message = "memory://box/a.jsonl cannot be opened: name or service not known; check the path"
    assert refused("memory://box/a.jsonl") == message
    assert "Protocol not known: foo; check the path" in refused("foo://box/a.jsonl")


def test_the_hub_switched_off_is_told_as_that():
    off = "HF_HUB_OFFLINE switches the Hub off; unset it, or give a path of this machine"

    assert refused("hf://datasets/me/x/a.jsonl") == (
        f"hf://datasets/me/x/a.jsonl cannot be looked for: {off}"
    )
    assert refused("me/x").endswith(off)


def test_what_datasets_saved_is_loaded_again(tmp_path):
    data = Dataset.from_list(ROWS)
    data.save_to_disk(tmp_path / "one")
    DatasetDict({"train": data, "test": data.select([0])}).save_to_disk(tmp_path / "two")

    assert load_data(tmp_path / "one").to_list() == ROWS
    assert load_data(tmp_path / "two", split="test").to_list() == ROWS[:1]


def test_objects_are_taken_as_they_are():
    data = Dataset.from_list(ROWS)
    stream = IterableDataset.from_generator(lambda: iter(ROWS))

    assert load_data(data) is data
    assert load_data(stream) is stream
    assert load_data(DatasetDict({"train": data})) is data
    assert "the DatasetDict has the splits a, b" in refused(DatasetDict({"a": data, "b": data}))
    assert "split='x' needs a DatasetDict" in refused(data, split="x")
    assert "must be a datasets.Dataset, a list of dicts or a DataFrame, got int" in refused(7)
    assert "got list without rows" in refused([])


def test_a_list_gives_what_datasets_would_give_where_that_is_right():
    rows = [
        {"a": "x", "n": 1, "f": 1.5, "b": True, "m": [{"role": "user", "content": "hi"}]},
        {"a": None, "n": 2, "f": 2.0, "b": None, "m": []},
    ]

    ours, theirs = load_data(rows), Dataset.from_list(rows)

    assert ours.features == theirs.features
    assert ours.to_list() == theirs.to_list()
    assert fingerprint(ours) == fingerprint(theirs)


def test_lists_may_hold_what_json_cannot():
    moment = datetime.datetime(2020, 1, 2, 3, 4)

    assert load_data([{"at": moment, "p": "x"}])[0]["at"] == moment


def test_a_frame_is_taken_and_mixed_columns_keep_their_values():
    frame = pd.DataFrame({"p": ["007", "NA"], "a": [1, "1"]}, index=["x", "y"])

    data = load_data(frame)

    assert data.to_list() == [{"p": "007", "a": 1}, {"p": "NA", "a": "1"}]
    assert "the data has no rows" in refused(pd.DataFrame({"p": []}))


def test_nothing_but_the_given_file_is_opened(write, monkeypatch):
    name = write("a.jsonl", LINES)
    write("b.jsonl", '{"p":"secret"}\n')
    opened = []
    import fsspec.implementations.local as local

    plain = local.LocalFileSystem.open
    monkeypatch.setattr(
        local.LocalFileSystem,
        "open",
        lambda self, path, *args, **kwargs: (
            opened.append(path),
            plain(self, path, *args, **kwargs),
        )[1],
    )

    load_data(name)

    assert {path.rpartition("/")[2] for path in opened} == {"a.jsonl"}


def test_messages_that_change_after_many_rows_keep_every_value():
    plain = {"m": [{"role": "user", "content": "hi"}]}
    rows = [plain] * 20_000
    others = [
        {"m": [{"role": "user", "content": 7}]},
        {"m": [{"role": "user", "content": "hi", "name": "bot"}]},
        {"m": "text"},
        {"m": [None]},
        {"m": []},
        {"m": None},
    ]

    for other in others:
        data = load_data([*rows, other, plain])
        assert data[-2:]["m"] == [other["m"], plain["m"]]
        assert data[0] == plain
