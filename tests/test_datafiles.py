"""One case for each kind of file that users bring: from its bytes to rows in TRL's columns, or no.

Each case names what is loaded, for which trainer, and what must come of it: the first row as TRL
gets it, parts of what the report says, or parts of the message it is refused with.
"""

import gzip
import io
import json
from dataclasses import dataclass

import pyarrow as pa
import pytest
import tiny
from pyarrow import parquet

from rapidfire_jupyter.data.check import check_data
from rapidfire_jupyter.data.layouts import recognise
from rapidfire_jupyter.data.load import load_data
from rapidfire_jupyter.data.mapping import to_trl
from rapidfire_jupyter.errors import DataError


@dataclass(frozen=True)
class Case:
    """A file and what must come of it.

    Attributes:
        name: Its name, whose ending tells its kind.
        content: Its bytes.
        first: The first row as TRL gets it; None if the file is refused.
        rows: How many rows are loaded.
        says: Texts that the report must hold, or the message of the refusal.
        trainer: Whom the data are for.
        max_length: Tokens that the report counts for.
    """

    name: str
    content: bytes
    first: dict | None = None
    rows: int | None = None
    says: tuple[str, ...] = ()
    trainer: str = "SFT"
    max_length: int | None = None


def lines(*rows, encoding="utf-8"):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(encoding)


def table(**columns):
    sink = io.BytesIO()
    parquet.write_table(pa.table(columns), sink)
    return sink.getvalue()


def turns(*pairs, keys=("role", "content")):
    return [dict(zip(keys, pair, strict=True)) for pair in pairs]


def shared(*pairs):
    return {"conversations": turns(*pairs, keys=("from", "value"))}


SKY = {"instruction": "Name it.", "input": "A sky.", "output": "Sky."}
SEA = {"instruction": "Say hi.", "input": "", "output": 'Hi, "you".'}
SKY_TEXT = {
    "prompt": "### Instruction:\nName it.\n\n### Input:\nA sky.\n\n### Response:\n",
    "completion": "Sky.",
}
CSV = b'instruction,input,output\r\nName it.,A sky.,Sky.\r\nSay hi.,,"Hi, ""you""."\r\n'
PC = [{"prompt": "one", "completion": " 1"}, {"prompt": "two", "completion": " 2"}]
CHAT = turns(("user", "Open?"), ("assistant", "Yes."))
NO = turns(("user", "Open?"), ("assistant", "No."))
CALL = {"type": "function", "function": {"name": "f", "arguments": {"room": "shed"}}}
RING = {"type": "function", "function": {"name": "g", "arguments": {"times": 2}}}

CONTROL = "nul \x00, sep \u2028, next \x85, \u200b and \ufeff inside"

GOOD = [
    Case("alpaca.jsonl", lines(SKY, SEA), SKY_TEXT, 2),
    Case("alpaca.json", json.dumps([SKY, SEA], indent=1).encode(), SKY_TEXT, 2),
    Case("alpaca.csv", CSV, SKY_TEXT, 2),
    Case("alpaca.tsv", b"instruction\tinput\toutput\r\nName it.\tA sky.\tSky.\r\n", SKY_TEXT, 1),
    Case("alpaca.jsonl.gz", gzip.compress(lines(SKY, SEA), mtime=0), SKY_TEXT, 2),
    Case("prompt_completion.jsonl", lines(*PC), PC[0], 2),
    Case(
        "prompt_completion_chat.jsonl",
        lines({"prompt": CHAT[:1], "completion": CHAT[1:]}),
        {"prompt": CHAT[:1], "completion": CHAT[1:]},
    ),
    Case("messages.jsonl", lines({"messages": CHAT}, {"messages": NO}), {"messages": CHAT}, 2),
    Case("messages.parquet", table(messages=[CHAT, NO]), {"messages": CHAT}, 2),
    Case(
        "sharegpt.jsonl",
        lines({"id": "a", **shared(("system", "Be brief."), ("human", "Tin?"), ("gpt", "Pin."))}),
        {
            "id": "a",
            "messages": turns(("system", "Be brief."), ("user", "Tin?"), ("assistant", "Pin.")),
        },
    ),
    Case(
        "tools.jsonl",
        lines(
            *(
                {"messages": [CHAT[0], {**CHAT[1], "content": None, "tool_calls": [call]}]}
                for call in (CALL, RING)
            )
        ),
        {"messages": [CHAT[0], {"role": "assistant", "content": "", "tool_calls": [CALL]}]},
        2,
    ),
    Case("text.jsonl", lines({"text": "### Task: 2+3\n### Answer: 5"}),
         {"text": "### Task: 2+3\n### Answer: 5"}),
    Case("text.txt", b"The tram stops.\nA pigeon boards.\n\nIt has a ticket.\n",
         {"text": "The tram stops."}, 3),
    Case("text_label.csv", b"text,label\r\nLovely clock,1\r\nBroken spoon,0\r\n",
         {"text": "Lovely clock", "label": "1"}, 2, ("the column 'label' is not used by SFT",)),
    Case(
        "dpo_explicit.jsonl",
        lines({"prompt": "A mug.", "chosen": " A cup.", "rejected": " A thing."}),
        {"prompt": "A mug.", "chosen": " A cup.", "rejected": " A thing."},
        trainer="DPO",
    ),
    Case("dpo_implicit_chat.jsonl", lines({"chosen": CHAT, "rejected": NO}),
         {"chosen": CHAT, "rejected": NO}, trainer="DPO"),
    Case(
        "dpo_alpaca_style.jsonl",
        lines({"instruction": "Name it.", "input": "A sky.", "chosen": "Sky.", "rejected": "Sea."}),
        {"prompt": SKY_TEXT["prompt"], "chosen": "Sky.", "rejected": "Sea."},
        trainer="DPO",
    ),
    Case(
        "reward_pairs.jsonl",
        lines({"chosen": "Q: tidy?\nA: Yes.", "rejected": "Q: tidy?\nA: eh", "margin": 0.7}),
        {"chosen": "Q: tidy?\nA: Yes.", "rejected": "Q: tidy?\nA: eh", "margin": 0.7},
        says=("the column 'margin' is not used by DPO",),
        trainer="DPO",
    ),
    Case("reward_pairs_sft.jsonl", lines({"chosen": "a", "rejected": "b", "margin": 0.7}),
         says=("no layout known for SFT (they are implicit preference, for DPO or Reward)",)),
    Case("grpo_prompt_answer.jsonl", lines({"prompt": "1+2", "answer": "3"}),
         {"prompt": "1+2", "answer": "3"}, trainer="GRPO"),
    Case(
        "grpo_chat_prompt.jsonl",
        lines({"prompt": CHAT[:1], "ground_truth": 6, "level": "easy"}),
        {"prompt": CHAT[:1], "ground_truth": 6, "level": "easy"},
        trainer="GRPO",
    ),
    Case(
        "kto_unpaired.jsonl",
        lines(*({**PC[0], "label": label} for label in (True, False))),
        says=("'label' is false in row 2, and SFT would learn those answers as good ones",),
    ),
    Case(
        "eval_multi_refs.jsonl",
        lines({"prompt": "Say it rains.", "references": ["It rains.", "Rain falls."]}),
        {"prompt": "Say it rains.", "references": ["It rains.", "Rain falls."],
         "completion": "It rains."},
    ),
]  # fmt: skip

AWKWARD = [
    Case("bom.jsonl", b"\xef\xbb\xbf" + lines(SKY, SEA), SKY_TEXT, 2),
    Case("bom.csv", b"\xef\xbb\xbf" + CSV, SKY_TEXT, 2),
    Case(
        "bom_varying_keys.jsonl",
        b"\xef\xbb\xbf" + lines({"messages": [CHAT[0], {**CHAT[1], "weight": 1}]},
                               {"messages": [CHAT[0], {**CHAT[1], "name": "bot"}]}),
        {"messages": [CHAT[0], {**CHAT[1], "weight": 1}]},
    ),
    Case("blank_lines_crlf.jsonl",
         b"\r\n   \r\n".join(lines(row).strip() for row in PC) + b"\r\n\r\n",
         PC[0], 2),
    Case("array_in_jsonl.jsonl", json.dumps(PC).encode(), PC[0], 2),
    Case("jsonl_named_json.json", lines(*PC), PC[0], 2),
    Case(
        "mixed_content.jsonl",
        lines({"messages": [{"role": "user", "content": [{"type": "text", "text": "Open?"}]},
                            CHAT[1]]}, {"messages": NO}),
        {"messages": CHAT},
    ),
    Case("null_then_string.jsonl",
         lines(*({**SKY, "input": None} for _ in range(5)), {**SKY, "input": "late"}),
         {"prompt": "### Instruction:\nName it.\n\n### Response:\n", "completion": "Sky."}, 6,
         ("4 rows equal to an earlier one",)),
    Case("case_columns.jsonl",
         lines({"Instruction": "Name it.", "Input": "A sky.", "Output": "Sky."},
               {" instruction ": "B", "input": "", "output": "b"}),
         SKY_TEXT, 2, ("'Instruction' and ' instruction ' are taken as instruction",)),
    Case("ambiguous_columns.jsonl", lines(*({"text": "t", **row} for row in PC)), PC[0], 2,
         ("used: prompt, completion; not used, though a layout too: text",)),
    Case("empty_strings.jsonl",
         lines({"prompt": "", "completion": " x"}, {"prompt": "y", "completion": ""}),
         {"prompt": "", "completion": " x"}, 2,
         ("1 row with an empty prompt", "1 row with an empty completion: nothing to learn")),
    Case("duplicate_rows.jsonl", lines(*[PC[0]] * 5, PC[1]), PC[0], 6,
         ("4 rows equal to an earlier one",)),
    Case("long_row.jsonl", lines(PC[0], {"prompt": "word " * 3000, "completion": " end"}), PC[0], 2,
         ("1 row with nothing left to learn at max_length=1024",), max_length=1024),
    Case("grpo_answer_types.jsonl",
         lines(*({"prompt": str(a), "answer": a} for a in (2, 0.5, "two", None))),
         {"prompt": "2", "answer": 2}, 4, ("the column 'answer' is null in row 4",), "GRPO"),
    Case("control_chars.jsonl",
         lines({"text": CONTROL}, {"text": "\f"}), {"text": CONTROL}, 2,
         ("1 row with an empty text",)),
    Case("html_in_text.jsonl",
         lines({"prompt": "<script>x=1</script><b>", "completion": " </textarea><img src=x>"}),
         {"prompt": "<script>x=1</script><b>", "completion": " </textarea><img src=x>"}),
    Case("template_braces.jsonl",
         lines({"instruction": "{instruction} {{ name }} </s>", "input": "%s", "output": "{o}"}),
         {"prompt": "### Instruction:\n{instruction} {{ name }} </s>\n\n### Input:\n%s"
                    "\n\n### Response:\n", "completion": "{o}"},
         says=("1 row with special tokens written out in the text (</s>)",)),
    Case("numbers.jsonl", b'{"id":12345678901234567890123,"text":"big"}\n{"id":1,"text":"small"}\n',
         {"id": "12345678901234567890123", "text": "big"}, 2),
    Case("nan_literal.jsonl", b'{"text":"a","score":Infinity}\n{"text":"b","score":NaN}\n',
         {"text": "a", "score": float("inf")}, 2),
    Case("eval_one_row.jsonl", lines(PC[0]), PC[0], 1),
    Case("tiny_train.jsonl", lines(*PC, {"prompt": "3", "completion": " 3"}), PC[0], 3,
         ("3 rows are few",)),
    Case("uneven_101.jsonl",
         lines(*({"prompt": f"row {n:03d}", "completion": f" value {n}"} for n in range(101))),
         {"prompt": "row 000", "completion": " value 0"}, 101),
    Case("messages_as_string.parquet", table(messages=[json.dumps(CHAT), json.dumps(NO)]),
         {"messages": CHAT}, 2, ("the text in the column 'messages' is read as messages in JSON",)),
]  # fmt: skip

BROKEN = [
    Case("latin1.jsonl", lines({"prompt": "café", "completion": "x"}, encoding="latin-1"),
         says=("latin1.jsonl, line 1, byte 16: 0xe9 is not UTF-8",)),
    Case("latin1.csv", "prompt,completion\ncafé,x\n".encode("latin-1"),
         says=("latin1.csv, line 2, byte 4: 0xe9 is not UTF-8",)),
    Case("utf16.jsonl", lines(PC[0], encoding="utf-16"), says=("utf16.jsonl, line 1", "UTF-16")),
    Case("lone_surrogate.jsonl", b'{"text":"half \\ud83d here"}\n',
         says=("lone_surrogate.jsonl, line 1, column 'text': \\ud83d is half",)),
    Case("invalid_line.jsonl", lines(PC[0]) + b'{"prompt":"two",}\n' + lines(PC[1]),
         says=("invalid_line.jsonl, line 2, column 1",)),
    Case("single_quotes.jsonl", b"{'prompt': 'one'}\n", says=("line 1", "double quotes")),
    Case("truncated_last_line.jsonl", lines(*PC) + b'{"prompt":"thr',
         says=("line 3", "the line is cut off")),
    Case("wrapped_object.json", json.dumps({"version": 1, "data": PC}).encode(),
         says=("one object with 2 rows under 'data'", "give field='data'")),
    Case("empty_file.jsonl", b"", says=("empty_file.jsonl is empty",)),
    Case("header_only.csv", b"instruction,input,output\n", says=("header_only.csv is empty",)),
    Case("mixed_types.jsonl",
         lines(*({**SKY, "output": o} for o in ("2", 4, True, ["1", "2"]))),
         says=("column 'output', row 3: it must be text, got a boolean (true)",)),
    Case("missing_keys.jsonl",
         lines(SKY, {"instruction": "B", "output": "b"}, {"instruction": "C", "input": "y"}),
         says=("'output' is null in row 3",)),
    Case("mixed_formats.jsonl", lines(SKY, {"messages": CHAT}, PC[0], {"text": "D"}),
         says=("1 of messages", "1 of prompt completion", "1 of instruction", "1 of text")),
    Case("all_empty.jsonl", lines(*[{"text": ""}] * 3),
         says=("text is empty in all 3 rows: there is nothing to learn",)),
    Case("null_fields.jsonl",
         lines({"prompt": None, "completion": " x"}, {"prompt": "y", "completion": None}, PC[0]),
         says=("'prompt' is null in row 1 and 'completion' is null in row 2",)),
    Case("prompt_fills_max_length.jsonl",
         lines(*({"prompt": f"pebble {n} " * 90, "completion": " end."} for n in range(4))),
         says=("nothing is left to learn at max_length=32: in all 4 rows",), max_length=32),
    Case("roles.jsonl",
         lines(*({"messages": row} for row in
                 (CHAT, [], CHAT[:1], turns(("narrator", "x"), ("assistant", "y"))))),
         says=("conversations without a turn", "(row 2)", "and 2 more")),
    Case("sharegpt_roles.jsonl",
         lines(shared(("human", "a"), ("gpt", "b")), shared(("human", "dangling"))),
         says=("conversations without an assistant's turn", "(row 2)")),
    Case("grpo_reserved_columns.jsonl",
         lines({"prompt": "1+1", "completions": "2", "trainer_state": "x"}), trainer="GRPO",
         says=("arguments of the names completions, trainer_state",)),
    Case("model_columns.jsonl", lines({"text": "one", "labels": "good", "input_ids": "x1"}),
         says=("the column 'input_ids' must hold lists of token ids, it holds string",)),
    Case("eval_other_columns.jsonl", lines({"question": "What?", "reference_answer": "That."}),
         says=("has the columns question, reference_answer, which are no layout known for SFT",)),
    Case("dictionary_index.parquet",
         table(prompt=pa.array(["a", "b"]).dictionary_encode(), completion=pa.array([" x", None]),
               __index_level_0__=pa.array([7, 8])),
         says=("'completion' is null in row 2",)),
    Case("binary_columns.parquet", table(prompt=[b"a\xff"], completion=[b" x"]),
         says=("column 'prompt': it holds bytes, not text",)),
    Case("truncated.parquet", table(prompt=["x"] * 100)[:200],
         says=("truncated.parquet is no whole Parquet file",)),
]  # fmt: skip


def came_of(case, path):
    """The data set, its report and its rows for TRL."""
    path.write_bytes(case.content)
    data = load_data(path)
    tokenizer = None if case.max_length is None else tiny.tokenizer()
    report = check_data(data, None, tokenizer, case.max_length, trainer_type=case.trainer)
    report.refuse()
    return data, report, to_trl(data, recognise(data, case.trainer))


@pytest.mark.parametrize("case", GOOD + AWKWARD + BROKEN, ids=lambda case: case.name)
def test_a_file_is_taken_as_it_should_be_or_refused_in_one_line(case, tmp_path):
    if case.first is None:
        with pytest.raises(DataError) as caught:
            came_of(case, tmp_path / case.name)
        message = str(caught.value)
        assert "\n" not in message
        assert [text for text in case.says if text not in message] == []
        return

    data, report, rows = came_of(case, tmp_path / case.name)

    assert rows[0] == case.first
    assert len(rows) == len(data)
    assert case.rows is None or len(data) == case.rows
    assert [text for text in case.says if text not in repr(report)] == []


TRAINED = [case for case in GOOD + AWKWARD if case.first is not None and case.trainer != "GRPO"]


@pytest.mark.slow
@pytest.mark.parametrize("case", TRAINED, ids=lambda case: case.name)
def test_trl_tokenises_what_it_is_given_and_finds_no_none_in_it(case, tmp_path):
    import trl

    data, _, _ = came_of(case, tmp_path / case.name)
    tokenizer = tiny.tokenizer()
    args = getattr(trl, f"{case.trainer}Config")(
        str(tmp_path), use_cpu=True, report_to="none", disable_tqdm=True, max_length=None
    )
    reference = {"ref_model": tiny.model()} if case.trainer == "DPO" else {}

    trainer = getattr(trl, f"{case.trainer}Trainer")(
        model=tiny.model(), args=args, processing_class=tokenizer, **reference,
        train_dataset=to_trl(data, recognise(data, case.trainer), tokenizer),
    )  # fmt: skip

    made = trainer.train_dataset
    columns = ("input_ids",) if case.trainer == "SFT" else ("prompt_ids", "chosen_ids")
    texts = [tokenizer.decode([i for name in columns for i in row[name]]) for row in made]
    assert len(texts) == len(data)
    assert not any("None" in text for text in texts)
    if case.trainer == "SFT" and "prompt" in made.column_names:
        assert any(-100 in labels for labels in made["labels"])
