"""Reviewing rows: which are shown and how, what is decided holds by content, and is on disk."""

import json
import sys

import pandas as pd
import pytest
from datasets import Dataset, IterableDataset
from jupyter_client.manager import KernelManager
from page import Page
from test_kernel import environment

from rapidfire_jupyter import Experiment, review, storage
from rapidfire_jupyter.data import reviews
from rapidfire_jupyter.errors import DataError

ROWS = [{"prompt": f"Where is order {n}?", "completion": f" In house {n}."} for n in range(50)]
CHAT = {
    "messages": [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ],
    "task": "greeting",
}


def shown(rows, number=0):
    return [(p.name, p.text) for p in reviews.pieces(reviews.reviewable(rows), number, None, None)]


def numbers(reviewed):
    """The rows under review, in order."""
    found = []
    for place in range(1, 1000):
        reviewed.go(place)
        if found and found[-1] == reviewed.number:
            return found
        found.append(reviewed.number)
    raise AssertionError


def test_rows_are_read_as_their_layout_maps_them():
    instruction = {"instruction": "Add.", "input": "1 and 2", "output": "3"}

    assert shown([ROWS[3]]) == [("prompt", "Where is order 3?"), ("answer", " In house 3.")]
    assert shown([CHAT]) == [
        ("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello"), ("task", "greeting"),
    ]  # fmt: skip
    assert shown([instruction]) == [("user", "Add.\n\n1 and 2"), ("assistant", "3")]
    assert shown([{"chosen": "a b", "rejected": "a c"}]) == [("chosen", "a b"), ("rejected", "a c")]
    assert shown([{"text": "Plain."}]) == [("text", "Plain.")]


def test_rows_of_no_layout_are_read_column_by_column():
    odd = {"topic": "tea", "n": 3, "tags": ["a", "b"], "more": {"k": 1}, "none": None}
    bad = [ROWS[0], {"prompt": "Without an answer", "completion": None}]

    assert shown([odd]) == [
        ("topic", "tea"), ("n", "3"), ("tags", "a\nb"), ("more", '{"k": 1}'), ("none", ""),
    ]  # fmt: skip
    assert shown(bad, 1) == [("prompt", "Without an answer"), ("completion", "")]


def test_the_same_seed_chooses_the_same_rows_in_any_order(tmp_path):
    first = numbers(review(ROWS, 10, experiment=tmp_path))
    again = numbers(review(ROWS, 10, experiment=tmp_path))
    other = numbers(review(ROWS, 10, experiment=tmp_path, seed=7))
    turned = numbers(review(ROWS[::-1], 10, experiment=tmp_path))

    assert first == again == sorted(first) == sorted(51 - number for number in turned)
    assert len(first) == 10 and first != other


def test_equal_rows_are_looked_at_once(tmp_path):
    assert numbers(review([ROWS[0], ROWS[1], ROWS[0]], 5, experiment=tmp_path)) == [1, 2]


def test_decisions_are_saved_at_once_and_hold_for_the_same_content(tmp_path):
    reviewed = review(ROWS[:4], 4, experiment=tmp_path)
    reviewed.keep()
    reviewed.drop("not ours")
    reviewed.note("look again")
    assert reviewed.progress == "2 of 4, 1 dropped"
    assert reviewed.decisions().to_dict("records") == [
        {"row": 1, "verdict": "keep", "note": ""},
        {"row": 2, "verdict": "drop", "note": "not ours"},
        {"row": 3, "verdict": "", "note": "look again"},
    ]

    frame = pd.DataFrame([{"task": None, **row} for row in reversed(ROWS)])
    later = review(frame, 50, experiment=tmp_path)
    left, report = later.kept()

    assert later.progress == "2 of 50, 1 dropped"
    assert [row["prompt"] for row in left] == [r["prompt"] for r in ROWS[::-1] if r is not ROWS[1]]
    assert [(d.row, d.reason) for d in report.dropped] == [(49, "in review: not ours")]
    assert "1 dropped: in review: not ours" in repr(report)


def test_what_is_left_out_can_be_left_out_of_other_data(tmp_path):
    reviewed = review(ROWS[:2], experiment=tmp_path)
    reviewed.drop()

    left, report = reviewed.kept([ROWS[1], ROWS[0], ROWS[0], ROWS[5]])

    assert left["prompt"][:] == [ROWS[1]["prompt"], ROWS[5]["prompt"]]
    assert [d.row for d in report.dropped] == [2, 3]
    assert isinstance(left, Dataset)


def test_a_changed_row_is_another_row(tmp_path):
    reviewed = review(ROWS[:1], experiment=tmp_path)
    reviewed.drop()

    changed = [{**ROWS[0], "completion": " In house 1."}, ROWS[1]]

    assert reviewed.kept(changed)[1].kept == 2
    assert review(changed, experiment=tmp_path).progress == "0 of 2, 0 dropped"


def test_going_about_and_taking_back(tmp_path):
    reviewed = review(ROWS[:3], experiment=tmp_path)

    reviewed.keep()
    assert reviewed.number == 2
    reviewed.back()
    reviewed.back()
    assert reviewed.number == 1 and reviewed.row == ROWS[0]
    reviewed.undecide()
    assert reviewed.progress == "0 of 3, 0 dropped" and reviewed.number == 1
    reviewed.go(3)
    reviewed.next()
    assert reviewed.number == 3
    reviewed.drop()
    assert reviewed.number == 1  # the first that is undecided
    reviewed.keep()
    reviewed.keep()
    assert reviewed.progress == "3 of 3, 1 dropped"


def test_it_is_a_text_where_there_is_no_notebook(tmp_path, capsys):
    reviewed = review([CHAT, {**CHAT, "task": "other"}], experiment=tmp_path)
    reviewed.keep("fine")
    reviewed.back()

    reviewed._ipython_display_()

    assert capsys.readouterr().out.splitlines() == [
        "review: 1 of 2, 0 dropped; row 1 of 2",
        "  keep fine",
        *("system:", "  Be kind.", "user:", "  Hi", "assistant:", "  Hello"),
        *("task:", "  greeting"),
    ]


def test_the_file_lies_beside_the_experiment(tmp_path, monkeypatch):
    exp = Experiment("reviewed", root=tmp_path)
    by_object = review(ROWS, experiment=exp)
    monkeypatch.chdir(tmp_path)
    here = review(ROWS)

    by_object.drop("why")
    told = json.loads((exp.folder / "review.json").read_text(encoding="utf-8"))
    exp.end()

    assert here.file == tmp_path / "review.json"
    assert [(one["verdict"], one["note"]) for one in told["rows"].values()] == [("drop", "why")]
    assert next(iter(told["rows"].values()))["text"].startswith("Where is order")
    assert review(ROWS, experiment=str(exp.folder)).progress == "1 of 50, 1 dropped"


def test_two_kernels_keep_each_others_decisions(tmp_path):
    one, two = (review(ROWS[:3], experiment=tmp_path) for _ in range(2))

    one.keep()
    two.go(3)
    two.drop()

    assert len(reviews.read(one.file)) == 2
    assert one.kept()[1].kept == 2


def test_what_cannot_be_saved_is_not_decided_and_nothing_is_lost(tmp_path, monkeypatch):
    reviewed = review(ROWS[:3], experiment=tmp_path)
    reviewed.keep()
    before = reviewed.file.read_bytes()

    def full(point, path):
        if point == "write:before":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(storage, "watcher", full)
    with pytest.raises(DataError, match=r"cannot be written \(No space left"):
        reviewed.drop()

    assert reviewed.progress == "1 of 3, 0 dropped" and reviewed.number == 2
    assert reviewed.file.read_bytes() == before


def test_bad_arguments_and_files_are_refused(tmp_path):
    def refused(*args, **kwargs):
        with pytest.raises(DataError) as error:
            review(*args, **kwargs)
        return str(error.value)

    assert "n must be a whole number >= 1, got 0" in refused(ROWS, 0)
    assert "n must be a whole number >= 1, got True" in refused(ROWS, True)
    assert "experiment must be an Experiment or its folder, got 7" in refused(ROWS, experiment=7)
    assert "or its folder, got 'a\\x00'" in refused(ROWS, experiment="a\0")
    stream = IterableDataset.from_generator(lambda: iter(ROWS))
    assert "needs all rows at hand, got a stream" in refused(stream)
    (tmp_path / "review.json").write_text('{"rows": {"a": {"verdict": "maybe", "note": ""}}}')
    assert "cannot be read as a review" in refused(ROWS, experiment=tmp_path)
    (tmp_path / "review.json").write_text("{")
    assert "mend it, or move it away" in refused(ROWS, experiment=tmp_path)


def test_what_is_no_note_no_verdict_and_no_place_is_refused_and_nothing_is_written(tmp_path):
    reviewed = review(ROWS[:3], experiment=tmp_path)

    for ask, text in (
        (lambda: reviewed.note(3), "a note is a text of whole characters, got 3"),
        (lambda: reviewed.keep(["a"]), "a note is a text of whole characters, got ['a']"),
        (lambda: reviewed.drop("\ud800"), "a note is a text of whole characters, got '\\ud800'"),
        (lambda: reviewed.decide("maybe"), "a verdict is 'keep', 'drop' or '' for none, got"),
        (lambda: reviewed.decide("keep", key="a"), "no row under review has the key 'a'"),
        (lambda: reviewed.go(1.5), "a place is a whole number from 1, got 1.5"),
    ):
        with pytest.raises(DataError) as refused:
            ask()
        assert text in str(refused.value)

    assert reviewed.progress == "0 of 3, 0 dropped" and not reviewed.file.exists()


def test_dropping_all_rows_is_refused(tmp_path):
    reviewed = review(ROWS[:1], experiment=tmp_path)
    reviewed.drop()

    with pytest.raises(DataError, match="no row is left: all of them were dropped in review"):
        reviewed.kept()


def test_rows_of_values_that_json_lacks_have_a_key_too(tmp_path):
    rows = [{"p": "x", "data": b"a"}, {"p": "x", "data": b"b"}]

    reviewed = review(rows, experiment=tmp_path)
    reviewed.drop()

    assert reviewed.kept()[0][0]["data"] == b"b"
    assert shown(rows) == [("p", "x"), ("data", "(1 bytes)")]


@pytest.fixture
def page(tmp_path):
    """A fresh kernel with a page and a subshell."""
    manager = KernelManager(kernel_name="python3")
    manager.kernel_spec.argv[0] = sys.executable
    manager.start_kernel(cwd=str(tmp_path), env=environment(tmp_path))
    opened = Page(manager.client())
    opened.open_subshell()
    yield opened
    opened.close()
    manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_clicks_act_beside_a_busy_cell_and_are_saved(page, tmp_path):
    page.good(
        f"""
        import time
        from rapidfire_jupyter import review
        reviewed = review({ROWS[:3]!r}, experiment=".")
        reviewed
        """
    )
    model = next(i for i, state in page.models.items() if "_shown" in state)
    shown = page.models[model]["_shown"]
    assert shown["progress"] == "0 of 3, 0 dropped" and shown["row"] == 1
    assert shown["pieces"][0] == ["prompt", ROWS[0]["prompt"], 0, False]
    output = next(content for kind, content in page.outputs_seen if kind == "display_data")
    assert output["data"]["text/plain"] == "review: 0 of 3, 0 dropped, saved in review.json"

    cell = page.start("while reviewed.progress != '1 of 3, 1 dropped': time.sleep(0.01)")
    click = {"do": "drop", "key": shown["key"], "note": "old"}
    page.comm_msg({"method": "custom", "content": click}, model)
    page.finish(cell)
    page.until(lambda: page.updates)  # the row is shown after it is decided

    told = page.updates[-1]["_shown"]
    assert (told["row"], told["progress"], told["error"]) == (2, "1 of 3, 1 dropped", "")
    (decision,) = json.loads((tmp_path / "review.json").read_text(encoding="utf-8"))["rows"].items()
    assert decision[0] == shown["key"] and decision[1]["note"] == "old"

    (tmp_path / "review.json").write_text("{")
    page.comm_msg({"method": "custom", "content": {**click, "key": told["key"]}}, model)
    page.comm_msg({"method": "custom", "content": {"do": 3}}, model)  # is passed over
    page.until(lambda: "cannot be read as a review" in page.updates[-1]["_shown"]["error"])
    assert page.updates[-1]["_shown"]["progress"] == "1 of 3, 1 dropped"
