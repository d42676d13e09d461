"""Checking: what is wrong with data is counted, with its rows, before anything is trained."""

import json

import pytest
import tiny
from datasets import Dataset, DatasetDict, IterableDataset

from rapidfire_jupyter.data import check
from rapidfire_jupyter.data.check import check_data
from rapidfire_jupyter.data.duplicates import near_duplicates
from rapidfire_jupyter.errors import DataError


def turns(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


def found(report, kind, part="train"):
    """The findings of a kind: level, count and rows of each."""
    return [
        (f.level, f.count, f.rows) for f in report.findings if f.kind == kind and f.part == part
    ]


def texts(report):
    return [f.text for f in report.findings]


def rows_of(count):
    return [{"prompt": f"row {n:04d}", "completion": f" value {n * n}"} for n in range(count)]


def test_good_data_have_nothing_to_complain_about():
    report = check_data(
        rows_of(2000), [{"prompt": f"p{n}", "completion": " c"} for n in range(200)]
    )

    assert report.findings == ()
    assert repr(report) == (
        "train: 2000 rows (2000 prompt completion)\n"
        "eval: 200 rows (200 prompt completion)\n"
        "nothing to complain about"
    )
    report.refuse()


def test_rows_are_counted_by_layout_and_several_layouts_are_an_error():
    rows = [
        {"instruction": "A", "output": "a"},
        {"messages": turns(("user", "B"), ("assistant", "b"))},
        {"text": "D"},
        {"input": "nothing"},
    ]

    report = check_data(rows)

    assert report.parts[0].layouts == (
        ("messages", 1),
        ("instruction", 1),
        ("text", 1),
        ("none", 1),
    )
    assert report.parts[0].layout is None
    assert found(report, "layout") == [("error", 1, (4,))]
    with pytest.raises(DataError, match=r"^train: has rows of several layouts: 1 of messages"):
        report.refuse()


def test_null_parts_are_an_error_with_their_rows():
    rows = [{"prompt": None, "completion": " x"}, *rows_of(2), {"prompt": "y", "completion": None}]

    report = check_data(rows)

    assert found(report, "layout") == [("error", 2, (1, 4))]
    assert "'prompt' is null in row 1 and 'completion' is null in row 4" in texts(report)[0]


def test_empty_texts_are_counted_and_nothing_to_learn_at_all_is_an_error():
    rows = [("", " x"), ("y", ""), ("", ""), ("   ", "\n\t "), ("fine", " fine")]

    some = check_data([{"prompt": p, "completion": c} for p, c in rows])
    none = check_data([{"text": ""}] * 3)

    assert found(some, "empty") == [("warning", 3, (1, 3, 4)), ("warning", 3, (2, 3, 4))]
    some.refuse()
    assert found(none, "empty") == [("error", 3, (1, 2, 3))]
    with pytest.raises(DataError, match="text is empty in all 3 rows: there is nothing to learn"):
        none.refuse()


def test_equal_rows_are_counted_whatever_columns_beside_the_layout_hold():
    rows = [{"prompt": "same", "completion": " same", "id": n} for n in range(5)]
    rows.append({"prompt": "other", "completion": " other", "id": 0})

    assert found(check_data(rows), "duplicates") == [("warning", 4, (2, 3, 4, 5))]
    assert found(check_data([{"prompt": "a", "completion": "bc"},
                             {"prompt": "ab", "completion": "c"}]), "duplicates") == []  # fmt: skip


def test_equal_conversations_are_found_whatever_their_form():
    same = turns(("user", "hi"), ("assistant", "ho"))
    rows = [{"messages": same}, {"messages": turns(("user", "hi"), ("assistant", "hx"))}]
    rows.append({"messages": [{**same[0], "name": "bot"}, same[1]]})

    assert found(check_data(rows), "duplicates") == [("warning", 1, (3,))]


def test_nearly_equal_rows_are_found_and_equal_ones_not_counted_twice():
    text = "The quick brown fox jumps over the lazy dog near the old stone bridge at noon"
    rows = [{"text": text}, {"text": text}, {"text": text.upper() + "!"}, {"text": "Another one"}]

    report = check_data(rows, near_duplicates=True)

    assert found(report, "duplicates") == [("warning", 1, (2,))]
    assert found(report, "near_duplicates") == [("warning", 1, (3,))]
    assert found(check_data(rows, near_duplicates=0.999), "near_duplicates") == []
    assert found(check_data(rows, near_duplicates=False), "near_duplicates") == []


def test_near_duplicates_are_measured_exactly_not_guessed():
    words = [tiny.sentence(n, 20) for n in range(40)]
    rows = words + [text + " indeed" for text in words[:5]]

    near = near_duplicates(rows, 0.8)

    def pieces(text):
        return {text[i : i + 5] for i in range(len(text) - 4)}

    for row, first in near.items():
        a, b = pieces(rows[row]), pieces(rows[first])
        assert len(a & b) >= 0.8 * len(a | b)
    assert set(range(40, 45)) <= set(near)


def test_without_datasketch_it_is_said_how_to_get_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "datasketch", None)

    with pytest.raises(DataError, match="not installed; run `pip install datasketch`"):
        check_data(rows_of(3), near_duplicates=True)
    with pytest.raises(DataError, match="must be over 0 and <= 1, got 2"):
        near_duplicates(["a"], 2)


def test_rows_to_evaluate_on_that_are_trained_on_are_counted():
    train = rows_of(20)
    evaluation = [train[3], {"prompt": train[4]["prompt"], "completion": " other"},
                  {"prompt": "new", "completion": " new"}]  # fmt: skip

    report = check_data(train, evaluation)

    assert found(report, "overlap", "eval") == [("warning", 1, (1,))]
    assert found(report, "prompt_overlap", "eval") == [("note", 1, (2,))]


def test_data_to_evaluate_on_are_checked_as_the_others_are():
    bad = check_data(rows_of(5), [{"question": "What hums?", "reference_answer": "The fridge."}],
                     trainer_type="SFT")  # fmt: skip
    other = check_data(rows_of(5), [{"text": "x"}])

    with pytest.raises(
        DataError, match=r"^eval: has the columns question, reference_answer, which"
    ):
        bad.refuse()
    assert "its layout is text, that of train is prompt completion" in texts(other)


def test_one_row_to_evaluate_on_is_enough():
    check_data(rows_of(5), rows_of(6)[5:]).refuse()


def test_few_rows_and_an_unusual_share_for_evaluation_are_noted():
    report = check_data(rows_of(101), [{"prompt": "only", "completion": " one"}])

    assert "101 rows are few: under 1,000, runs may differ by chance" in texts(report)
    assert "1.0 % of all rows are for evaluation; 5 % to 20 % is usual" in texts(report)


def test_order_of_roles_is_reported_row_by_row():
    rows = [
        turns(("user", "one"), ("user", "two"), ("assistant", "ok")),
        turns(("assistant", "I start"), ("user", "hm"), ("assistant", "ok")),
        turns(("user", "no reply follows")),
        turns(("User", "capital"), ("Assistant", "role")),
        turns(("narrator", "unknown"), ("assistant", "ok")),
        [],
        turns(("user", "late system"), ("system", "rule"), ("assistant", "ok")),
        turns(("system", "rule"), ("user", "fine"), ("assistant", "fine")),
        turns(("user", "silent"), ("assistant", "  ")),
    ]

    report = check_data([{"messages": row} for row in rows])

    assert found(report, "turns_twice") == [("warning", 1, (1,))]
    assert found(report, "turns_start") == [("warning", 1, (2,))]
    assert found(report, "turns_reply") == [("error", 1, (3,))]
    assert found(report, "turns_role") == [("error", 1, (5,))]
    assert found(report, "turns_empty") == [("error", 1, (6,))]
    assert found(report, "turns_late_system") == [("warning", 1, (7,))]
    assert found(report, "turns_blank") == [("error", 1, (9,))]
    assert any("('narrator')" in text for text in texts(report))


def test_sharegpt_is_reported_as_messages_are():
    def row(*pairs):
        return {"conversations": [{"from": f, "value": v} for f, v in pairs]}

    report = check_data(
        [
            row(("human", "a"), ("human", "b"), ("gpt", "c")),
            row(("gpt", "first"), ("human", "x"), ("gpt", "y")),
            row(("user", "alias"), ("chatbot", "alias")),
            row(),
            row(("human", "dangling")),
        ]
    )

    assert found(report, "turns_twice") == [("warning", 1, (1,))]
    assert found(report, "turns_start") == [("warning", 1, (2,))]
    assert found(report, "turns_empty") == [("error", 1, (4,))]
    assert found(report, "turns_reply") == [("error", 1, (5,))]
    assert found(report, "turns_role") == []


def test_prompts_and_answers_of_messages_are_no_whole_conversations():
    row = {"prompt": turns(("user", "q")), "completion": turns(("assistant", "a"))}

    assert [f for f in check_data([row]).findings if f.kind.startswith("turns")] == []


def test_calls_of_tools_are_something_said():
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}

    assert check_data([{"messages": [*turns(("user", "q")), call]}]).errors == ()


def test_pairs_that_prefer_nothing_are_counted():
    pairs = [{"prompt": "q", "chosen": "a", "rejected": "a"},
             {"prompt": "q", "chosen": "a", "rejected": "b"}]  # fmt: skip

    assert found(check_data(pairs), "equal_pairs") == [("warning", 1, (1,))]
    assert found(check_data(pairs[:1]), "equal_pairs") == [("error", 1, (1,))]


def test_special_tokens_written_out_are_reported():
    rows = [{"instruction": "Fill {instruction} and {{ name }}", "output": "{output}"},
            {"instruction": "Emit </s><|im_end|> [INST]", "output": "</s> then"}]  # fmt: skip

    plain = check_data(rows)
    ours = check_data([{"text": "a <pad> b"}, {"text": "a pad b"}], tokenizer=tiny.tokenizer())

    assert found(plain, "special_tokens") == [("warning", 1, (2,))]
    assert "in the text (<|im_end|>, </s>, [INST])" in " ".join(texts(plain))
    assert found(ours, "special_tokens") == [("warning", 1, (1,))]


# ---- with a tokenizer


LONG = [
    {"prompt": "help " * 40 if n in (6, 7) else f"help {n}", "completion": f" refund {n}"}
    for n in range(18)
]


def test_rows_with_nothing_left_to_learn_are_counted_for_each_length():
    report = check_data(LONG, tokenizer=tiny.tokenizer(), max_length=[24, 256])

    limits = {limit.max_length: limit for limit in report.parts[0].lengths.limits}
    assert (limits[24].emptied, limits[24].emptied_rows) == (2, (7, 8))
    assert (limits[256].truncated, limits[256].emptied) == (0, 0)
    assert ("warning", 2, (7, 8)) in found(report, "emptied")
    report.refuse()


def test_data_of_which_nothing_is_left_are_refused():
    rows = [{"prompt": "pebble " * 90, "completion": " end."}] * 4

    report = check_data(rows, tokenizer=tiny.tokenizer(), max_length=32)

    with pytest.raises(DataError, match="nothing is left to learn at max_length=32: in all 4 rows"):
        report.refuse()


@pytest.mark.parametrize(
    ("trainer_type", "rows"),
    [
        ("SFT", LONG),
        ("SFT", [{"messages": turns(("user", "help " * n), ("assistant", "ok"))} for n in (2, 60)]),
        ("SFT", [{"prompt": turns(("user", "help " * n)), "completion": turns(("assistant", "ok"))}
                 for n in (2, 60)]),
        ("DPO", [{"prompt": "help " * n, "chosen": " ok", "rejected": " no"} for n in (2, 60)]),
        ("DPO", [{"chosen": turns(("user", "help " * n), ("assistant", "ok")),
                  "rejected": turns(("user", "help " * n), ("assistant", "no"))} for n in (2, 60)]),
    ],
    ids=["text", "messages", "chat", "pairs", "implicit"],
)  # fmt: skip
def test_trl_keeps_as_many_rows_and_tokens_as_the_report_says(trainer_type, rows, tmp_path):
    import trl

    args = getattr(trl, f"{trainer_type}Config")(
        str(tmp_path), max_length=64, use_cpu=True, report_to="none", disable_tqdm=True
    )
    report = check_data(rows, None, tiny.tokenizer(), 64, trainer_type=trainer_type)
    reference = {"ref_model": tiny.model()} if trainer_type == "DPO" else {}
    trainer = getattr(trl, f"{trainer_type}Trainer")(
        model=tiny.model(), args=args, train_dataset=Dataset.from_list(rows),
        processing_class=tiny.tokenizer(), **reference,
    )  # fmt: skip

    limit = report.parts[0].lengths.limits[0]
    kept = trainer.train_dataset
    assert len(kept) == len(rows) - limit.emptied
    if trainer_type == "SFT":
        assert min(map(len, kept["input_ids"])) == report.parts[0].lengths.least
    else:
        both = zip(kept["prompt_ids"], kept["chosen_ids"], strict=True)
        assert min(len(p) + len(c) for p, c in both) == report.parts[0].lengths.least


def test_a_template_that_refuses_a_row_is_named_with_the_row():
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{{ m['content'] }}{% endfor %}"
    )
    good = turns(("user", "a"), ("assistant", "b"))
    rows = [
        {"messages": m} for m in (good, turns(("user", "a"), ("user", "c"), ("assistant", "b")))
    ]

    report = check_data(rows, tokenizer=tokenizer)

    with pytest.raises(
        DataError, match="row 2: the chat template refuses it: roles must alternate"
    ):
        report.refuse()


def test_a_missing_chat_template_is_an_error():
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = None

    report = check_data([{"messages": turns(("user", "a"), ("assistant", "b"))}], None, tokenizer)

    with pytest.raises(DataError, match="holds messages, but the tokenizer has no chat template"):
        report.refuse()


def test_lengths_that_are_none_are_refused():
    with pytest.raises(DataError, match="max_length must be whole numbers >= 1, got 0"):
        check_data(rows_of(2), tokenizer=tiny.tokenizer(), max_length=0)
    with pytest.raises(DataError, match="give the tokenizer too"):
        check_data(rows_of(2), max_length=8)


# ---- the report


def test_the_report_is_plain_data_and_shows_texts_of_the_data_as_text():
    rows = [{"text": "x", "<script>alert(1)</script>": 1, "messages": None}] * 2
    report = check_data([{"<i>": "x"}])
    whole = check_data(rows_of(30), rows_of(2), tiny.tokenizer(), [8, 64])

    assert "<i>" not in report._repr_html_()
    assert "&lt;i&gt;" in report._repr_html_()
    assert "<script>" not in check_data(rows)._repr_html_()
    assert json.loads(json.dumps(whole.to_dict()))["parts"][0]["rows"] == 30
    assert "max_length=8: 30 rows truncated" in repr(whole)
    assert "<th>max_length</th>" in whole._repr_html_()
    assert sum(whole.parts[0].lengths.counts) == 30


def test_errors_come_first_and_more_of_them_are_told():
    rows = [{"messages": []}, {"messages": turns(("user", "x"))}]

    report = check_data(rows)

    levels = [finding.level for finding in report.findings]
    assert levels == sorted(levels, key=["error", "warning", "note"].index)
    with pytest.raises(DataError, match=r"\(row 1\) \(and 1 more: see check_data\)$"):
        report.refuse()


def test_near_duplicates_are_not_looked_for_in_many_rows_unless_asked(monkeypatch):
    monkeypatch.setattr(check, "NEAR_ROWS", 2)
    text = "The quick brown fox jumps over the lazy dog near the old stone bridge at noon"
    rows = [{"text": text}, {"text": text + "!"}, {"text": "x"}]

    assert found(check_data(rows), "near_duplicates") == []
    assert found(check_data(rows, near_duplicates=0.9), "near_duplicates") == [("warning", 1, (2,))]


def test_of_a_stream_the_first_rows_are_checked():
    stream = IterableDataset.from_generator(lambda: iter([{"text": ""}] * 500))

    report = check_data(stream, tokenizer=tiny.tokenizer())

    assert report.parts[0].rows == 100
    assert "a stream: only its first 100 rows were checked" in texts(report)
    assert "are few" not in texts(report)
    assert found(report, "empty")[0][:2] == ("error", 100)


def test_what_is_no_data_set_is_refused():
    with pytest.raises(DataError, match="train is a DatasetDict with the splits a; give one"):
        check_data(DatasetDict({"a": Dataset.from_list(rows_of(2))}))
    with pytest.raises(DataError, match="eval has no rows; give at least one"):
        check_data(rows_of(2), Dataset.from_list([]))
    with pytest.raises(DataError, match=r"train must be a datasets.Dataset, a list of dicts"):
        check_data("train.jsonl")
