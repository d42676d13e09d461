"""Cleaning: what the report suggests is done, and every row that is dropped is told of."""

import json

import pandas as pd
import pytest
from datasets import Dataset, IterableDataset

from rapidfire_jupyter.data.check import check_data
from rapidfire_jupyter.data.clean import Dropped, clean_data
from rapidfire_jupyter.errors import DataError


def turns(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


GOOD = [{"prompt": f"p{n}", "completion": f" c{n}"} for n in range(4)]


def test_good_data_stay_the_same_object():
    data = Dataset.from_list(GOOD)

    cleaned, report = clean_data(data)

    assert cleaned is data
    assert (report.rows, report.kept, report.dropped) == (4, 4, ())
    assert repr(report) == "4 rows of 4 kept"


def test_every_dropped_row_is_told_with_its_reason():
    rows = [
        GOOD[0],
        {"prompt": None, "completion": " x"},
        {"prompt": "y", "completion": None},
        {"prompt": "z", "completion": " \n"},
        GOOD[0],
        {"prompt": "", "completion": " an empty prompt stays"},
        GOOD[0],
        GOOD[1],
    ]

    cleaned, report = clean_data(rows)

    assert cleaned.to_list() == [rows[0], rows[5], rows[7]]
    assert report.dropped == (
        Dropped(2, "prompt is null"),
        Dropped(3, "completion is null"),
        Dropped(4, "completion is empty"),
        Dropped(5, "equal to an earlier row", 1),
        Dropped(7, "equal to an earlier row", 1),
    )
    assert report.reasons["equal to an earlier row"] == 2
    assert "3 rows of 8 kept" in repr(report)
    assert json.loads(json.dumps(report.to_dict()))["dropped"][4]["of"] == 1
    assert "<td>2</td><td style='text-align:left'>equal to an earlier row" in report._repr_html_()


def test_cleaned_data_have_no_errors_left():
    rows = [
        {"messages": turns(("user", "one"), ("assistant", "ok"))},
        {"messages": []},
        {"messages": turns(("user", "no reply"))},
        {"messages": turns(("narrator", "unknown"), ("assistant", "ok"))},
        {"messages": turns(("user", "silence"), ("assistant", ""))},
        {"messages": None},
        {"messages": turns(("user", "one"), ("assistant", "ok"))},
        {"messages": turns(("user", "two"), ("assistant", "ok"))},
    ]

    cleaned, report = clean_data(rows)

    assert check_data(rows).errors
    assert check_data(cleaned).errors == ()
    assert [drop.row for drop in report.dropped] == [2, 3, 4, 5, 6, 7]
    assert [drop.reason for drop in report.dropped][:4] == [
        "messages without a turn",
        "messages without an assistant's turn",
        "messages with a turn of an unknown role",
        "messages whose assistant says nothing",
    ]


def test_what_is_not_asked_for_is_not_done():
    rows = [*GOOD, GOOD[0], {"prompt": "q", "completion": " "}]

    cleaned, report = clean_data(rows, empty=False, duplicates=False)
    kept, _ = clean_data(
        [{"messages": []}, {"messages": turns(("user", "x"))}], conversations=False
    )

    assert cleaned.to_list() == rows
    assert report.dropped == ()
    assert len(kept) == 2


def test_texts_are_stripped_only_if_asked_for_and_counted():
    rows = [{"prompt": " p\n", "completion": " c "}, {"prompt": "p", "completion": "c"}]

    plain, _ = clean_data(rows)
    stripped, report = clean_data(rows, strip=True, duplicates=False)

    assert plain.to_list() == rows
    assert stripped.to_list() == [{"prompt": "p", "completion": "c"}] * 2
    assert report.stripped == 1
    assert "1 row stripped of blanks" in repr(report)
    assert clean_data(rows, strip=True)[1].dropped == (Dropped(2, "equal to an earlier row", 1),)


def test_nearly_equal_rows_are_dropped_if_asked_for():
    text = "The quick brown fox jumps over the lazy dog near the old stone bridge at noon"
    rows = [{"text": "first"}, {"text": text}, {"text": text + "!"}, {"text": "last"}]

    cleaned, report = clean_data(rows, near_duplicates=True)

    assert [row["text"] for row in cleaned] == ["first", text, "last"]
    assert report.dropped == (Dropped(3, "nearly equal to an earlier row", 2),)
    assert clean_data(rows)[1].dropped == ()


def test_rows_that_are_evaluated_on_are_taken_out_of_training():
    cleaned, report = clean_data(GOOD, not_in=[GOOD[2], {"prompt": "x", "completion": "y"}])

    assert cleaned.to_list() == [GOOD[0], GOOD[1], GOOD[3]]
    assert report.dropped == (Dropped(3, "in the data to evaluate on"),)


def test_pairs_that_prefer_nothing_and_rows_labelled_false_go():
    pairs = [{"prompt": "q", "chosen": "a", "rejected": "a"},
             {"prompt": "q", "chosen": "a", "rejected": "b"}]  # fmt: skip
    labels = [{"prompt": "q", "completion": c, "label": c == "a"} for c in ("a", "b")]

    assert clean_data(pairs)[1].dropped == (Dropped(1, "chosen and rejected are equal"),)
    assert clean_data(labels, trainer_type="SFT")[1].dropped == (Dropped(2, "label is false"),)
    assert clean_data(labels)[1].dropped == ()


def test_rows_of_several_layouts_need_to_be_told_which_to_keep():
    rows = [GOOD[0], {"text": "x"}, GOOD[1], {"text": "y"}, {"text": "z"}]

    with pytest.raises(DataError, match="the data has rows of several layouts: 2 of prompt compl"):
        clean_data(rows)
    cleaned, report = clean_data(rows, kind="prompt_completion")

    assert [row["prompt"] for row in cleaned] == ["p0", "p1"]
    assert [drop.row for drop in report.dropped] == [2, 4, 5]
    check_data(cleaned).refuse()


def test_frames_and_selections_are_counted_by_their_own_rows():
    frame = pd.DataFrame({"text": ["a", "", "a"]}, index=[7, 8, 9])
    chosen = Dataset.from_list([*GOOD, GOOD[1]]).select([4, 3, 1])

    assert [drop.row for drop in clean_data(frame)[1].dropped] == [2, 3]
    cleaned, report = clean_data(chosen)
    assert cleaned["prompt"][:] == ["p1", "p3"]
    assert report.dropped == (Dropped(3, "equal to an earlier row", 1),)


def test_no_row_left_is_refused_with_the_reasons():
    with pytest.raises(DataError, match="no row is left: 2 text is empty"):
        clean_data([{"text": ""}, {"text": " "}])


def test_a_stream_is_refused():
    stream = IterableDataset.from_generator(lambda: iter(GOOD))

    with pytest.raises(DataError, match="needs all rows at hand, got a stream"):
        clean_data(stream)
