"""Layouts: recognised by columns and rows, mapped to what TRL takes, or refused with a reason."""

import json
import re

import pyarrow as pa
import pytest
import tiny
from datasets import ClassLabel, Dataset, Features, IterableDataset, Value
from trl.data_utils import is_conversational

from rapidfire_jupyter.data.formatting import format_rows
from rapidfire_jupyter.data.kinds import FOR_TRAINER, KINDS
from rapidfire_jupyter.data.layouts import recognise
from rapidfire_jupyter.data.load import load_data
from rapidfire_jupyter.data.mapping import CHATML, to_trl
from rapidfire_jupyter.errors import DataError

ALPACA = [
    {"instruction": "Name the sky.", "input": "", "output": "Blue."},
    {"instruction": "Shorten.", "input": "A long path.", "output": "A path."},
    {"instruction": "Say hi.", "input": None, "output": "Hi."},
]
CHAT = [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Ho."}]


def refused(rows, trainer_type=None, **kwargs):
    """The message of the error that recognising gives; it is one line."""
    data = rows if isinstance(rows, Dataset) else load_data(rows)
    with pytest.raises(DataError) as caught:
        recognise(data, trainer_type, what="train", **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def mapped(rows, trainer_type, tokenizer=None):
    """Rows as TRL gets them."""
    data = load_data(rows)
    return to_trl(data, recognise(data, trainer_type), tokenizer).to_list()


# ---- what is recognised


@pytest.mark.parametrize(
    ("trainer", "kind", "row"),
    [
        ("SFT", "prompt_completion", {"prompt": "Q:", "completion": " A"}),
        ("SFT", "prompt_completion", {"prompt": CHAT[:1], "completion": CHAT[1:]}),
        ("SFT", "messages", {"messages": CHAT}),
        ("SFT", "sharegpt", {"id": "a", "conversations": [{"from": "human", "value": "x"}]}),
        ("SFT", "instruction", {"instruction": "A", "input": "", "output": "a"}),
        ("SFT", "instruction", {"question": "A", "answer": "a"}),
        ("SFT", "instruction", {"instruction": "A", "context": "x", "response": "a"}),
        ("SFT", "text", {"text": "x"}),
        ("SFT", "tokens", {"input_ids": [1, 2, 3]}),
        ("SFT", "references", {"prompt": "Q", "references": ["a", "b"]}),
        ("DPO", "preference", {"prompt": "Q", "chosen": "a", "rejected": "b"}),
        ("DPO", "implicit_preference", {"chosen": CHAT, "rejected": [CHAT[0], CHAT[1]]}),
        ("DPO", "implicit_preference", {"chosen": "Q: a", "rejected": "Q: b"}),
        ("DPO", "instruction_preference", {"instruction": "A", "chosen": "a", "rejected": "b"}),
        ("GRPO", "prompt", {"prompt": "1+1", "answer": "2"}),
        ("GRPO", "prompt", {"prompt": CHAT[:1], "ground_truth": 6, "level": "easy"}),
        ("GRPO", "instruction_prompt", {"question": "1+1", "answer": "2"}),
        ("RLOO", "prompt", {"prompt": "1+1", "answer": "2"}),
        ("Reward", "preference", {"prompt": "Q", "chosen": "a", "rejected": "b"}),
        ("Reward", "implicit_preference", {"chosen": "Q: a", "rejected": "Q: b"}),
        ("KTO", "kto", {"prompt": "Q", "completion": "a", "label": False}),
        ("KTO", "instruction_kto", {"question": "Q", "answer": "a", "label": "0"}),
        ("Distillation", "messages", {"messages": CHAT}),
        ("Distillation", "prompt", {"prompt": "Q", "completion": "a"}),
        ("GKD", "messages", {"messages": CHAT}),
        ("GKD", "prompt_completion", {"prompt": "Q", "completion": "a"}),
    ],
)
def test_layouts_are_recognised_for_their_trainer(trainer, kind, row):
    layout = recognise(load_data([row]), trainer)

    assert layout.kind == kind
    assert layout.trainer_type == trainer


def test_without_a_trainer_the_first_one_with_such_columns_counts():
    pair = {"prompt": "Q", "chosen": "a", "rejected": "b"}

    assert recognise(load_data([pair])).kind == "preference"
    assert recognise(load_data([{"question": "1+1", "answer": "2"}])).kind == "instruction"
    assert recognise(load_data([{"prompt": "1+1", "answer": "2"}])).kind == "prompt"
    assert recognise(load_data([{"prompt": "Q", "completion": "a", "label": False}])).kind == "kto"


def test_every_layout_has_an_example_that_is_recognised():
    for trainer, kinds in FOR_TRAINER.items():
        for kind in kinds:
            text = KINDS[kind].example.replace("{...}", '{"role": "assistant", "content": "x"}')
            text = re.sub(r'("role": "\w+"), \.\.\.', r'\1, "content": "x"', text)
            text = re.sub(r'("from": "\w+"), \.\.\.', r'\1, "value": "x"', text)
            row = json.loads(text.replace(", ...", ""))

            assert recognise(load_data([row]), trainer).kind == kind


def test_column_names_are_compared_without_case_and_blanks():
    rows = [
        {"Instruction": "A", "Input": "", "Output": "a"},
        {" instruction ": "B", "input": "x", "output": "b"},
    ]

    layout = recognise(load_data(rows), "SFT")

    assert "'Instruction' and ' instruction ' are taken as instruction" in layout.notes
    assert mapped(rows, "SFT") == [
        {"prompt": "### Instruction:\nA\n\n### Response:\n", "completion": "a"},
        {"prompt": "### Instruction:\nB\n\n### Input:\nx\n\n### Response:\n", "completion": "b"},
    ]


def test_two_names_for_one_part_in_one_row_are_refused():
    message = refused([{"Text": "a", "text": "b"}], "SFT")

    assert message == (
        "train: the columns 'Text' and 'text' mean the same and are both filled in row 1; rename "
        "or remove one"
    )


def test_ambiguous_columns_are_said_aloud_and_the_unused_one_does_not_reach_trl():
    rows = [{"text": "t", "prompt": "p", "completion": " c"}] * 2

    layout = recognise(load_data(rows), "SFT")

    assert layout.kind == "prompt_completion"
    assert layout.notes == ("used: prompt, completion; not used, though a layout too: text",)
    assert mapped(rows, "SFT")[0] == {"prompt": "p", "completion": " c"}
    assert recognise(load_data(rows), "SFT", kind="text").kind == "text"


def test_rows_of_several_layouts_are_refused_with_their_counts():
    rows = [
        {"instruction": "A", "input": "", "output": "a"},
        {"messages": CHAT},
        {"prompt": "C", "completion": " c"},
        {"prompt": "E", "completion": " e"},
        {"text": "D d"},
    ]

    assert refused(rows, "SFT") == (
        "train has rows of several layouts: 1 of messages (messages), 2 of prompt completion "
        "(prompt, completion), 1 of instruction (instruction, output), 1 of text (text); keep one "
        "of them, or write a formatting_func"
    )


def test_rows_that_lack_a_part_are_named():
    rows = [{"prompt": None, "completion": " x"}, {"prompt": "y", "completion": None}]

    message = refused([*rows, {"prompt": "f", "completion": " f"}], "SFT")

    assert message == (
        "train: 'prompt' is null in row 1 and 'completion' is null in row 2; fill them, or drop "
        "these rows with clean_data"
    )
    assert "'output' is null in row 3" in refused(
        [{"instruction": "A", "output": "a"}] * 2 + [{"instruction": "C", "input": "y"}], "SFT"
    )
    assert "in each of its 2 rows, one of 'prompt', 'completion' is null" in refused(rows, "SFT")


def test_many_rows_are_named_by_the_first_five_and_a_count():
    rows = [{"text": "x"}] + [{"text": None}] * 8

    assert "null in rows 2, 3, 4, 5, 6, ... (8 in all)" in refused(rows, "SFT")


def test_unknown_columns_are_refused_with_what_is_known_and_an_example():
    message = refused([{"question": "What hums?", "reference_answer": "The fridge."}], "SFT")

    assert message.startswith(
        "train has the columns question, reference_answer, which are no layout known for SFT "
        "(they are instruction prompt, for GRPO or RLOO or Distillation); known are input_ids; "
    )
    assert 'for example {"prompt": "...", "completion": "..."}; rename the columns' in message


def test_data_of_another_trainer_are_refused_by_name():
    pairs = [{"prompt": "Q", "chosen": "a", "rejected": "b"}]
    labels = [{"prompt": "Q", "completion": "a", "label": False}]

    assert "(they are preference, for DPO or Reward)" in refused(pairs, "SFT")
    assert "(they are kto, for SFT or KTO)" in refused(labels, "DPO")
    assert "trainer_type='PPO'; it must be one of SFT, DPO, GRPO" in refused(pairs, "PPO")
    assert "(they are pairs: trl.data_utils.unpair_preference_dataset" in refused(pairs, "KTO")
    numbers = [{**row, "label": 3} for row in labels]
    assert "column 'label' must hold true or false, it holds int64" in refused(numbers, "KTO")
    assert "kind must be one of tokens, messages" in refused(pairs, "SFT", kind="chat")


def test_sft_does_not_learn_rows_that_are_labelled_false():
    rows = [{"prompt": "A shape.", "completion": c, "label": c == " Hexagon."} for c in
            (" Hexagon.", " Soup.")]  # fmt: skip

    assert refused(rows, "SFT") == (
        "train: 'label' is false in row 2, and SFT would learn those answers as good ones; keep "
        "only rows where it is true"
    )
    good = recognise(load_data(rows[:1]), "SFT")
    assert good.notes == ("the column 'label' is true in all rows: it is not used by SFT",)
    assert mapped(rows[:1], "SFT") == [{"prompt": "A shape.", "completion": " Hexagon."}]
    from_csv = [{**row, "label": str(row["label"]).lower()} for row in rows]
    assert "'label' is false in row 2" in refused(from_csv, "SFT")


def test_labels_and_margins_that_a_trainer_ignores_are_told():
    text = recognise(load_data([{"text": "Fine rope", "label": "1"}]), "SFT")
    pair = recognise(load_data([{"chosen": "a", "rejected": "b", "margin": 0.7}]), "DPO")

    assert text.notes == ("the column 'label' is not used by SFT",)
    assert pair.notes == ("the column 'margin' is not used by DPO",)


# ---- what columns hold


def test_booleans_and_lists_in_a_text_column_are_refused_with_the_row():
    def rows(value):
        return [{"instruction": "A", "output": "2"}, {"instruction": "B", "output": value}]

    assert refused(rows(True), "SFT") == (
        "train, column 'output', row 2: it must be text, got a boolean (true); write it as a string"
    )
    assert "row 2: it must be text, got a list" in refused(rows(["1"]), "SFT")
    assert "row 2: it must be text, got an object" in refused(rows({"a": 1}), "SFT")
    assert "row 1: it must be text, got a list" in refused([{"text": ["a"]}], "SFT")


def test_numbers_in_a_text_column_are_taken_as_text_and_counted():
    rows = [{"instruction": "A", "output": "02"}, {"instruction": "B", "output": 4}]

    assert recognise(load_data(rows), "SFT").notes == (
        "1 number in the column 'output' is taken as text",
    )
    assert [row["completion"] for row in mapped(rows, "SFT")] == ["02", "4"]
    assert [r["text"] for r in mapped([{"text": 1}, {"text": 2}], "SFT")] == ["1", "2"]


def test_nan_in_a_used_column_is_refused_and_elsewhere_kept():
    nan = float("nan")

    assert "row 2: it must be text, got a number (nan)" in refused([{"text": 1.5}, {"text": nan}])
    assert recognise(load_data([{"text": "a", "score": nan}]), "SFT").unused == ("score",)


def test_bytes_are_refused():
    data = load_data([{"prompt": b"a\xff", "completion": b" x"}])

    assert refused(data, "SFT") == (
        "train, column 'prompt': it holds bytes, not text; decode them and write it as text"
    )


def test_columns_for_the_model_must_hold_token_ids():
    message = refused([{"text": "one", "labels": "good", "input_ids": "x1"}], "SFT")

    assert message.startswith("train: the column 'input_ids' must hold lists of token ids")
    assert "the column 'labels' must hold" in refused([{"text": "one", "labels": 1}], "SFT")


def test_messages_must_be_messages():
    assert "column 'messages': it must hold lists of messages" in refused([{"messages": "hi"}])
    assert "prompt is text, but completion is messages" in refused(
        [{"prompt": "Q", "completion": CHAT[1:]}], "SFT"
    )


def test_reserved_names_are_refused_for_grpo():
    rows = [{"prompt": "1+1", "completions": "2", "answer": "2", "trainer_state": "x"}]

    assert refused(rows, "GRPO") == (
        "train: GRPO gives its reward functions arguments of the names completions, trainer_state, "
        "so no column may have them; rename them"
    )


def test_answers_of_grpo_keep_their_types_and_nulls_are_told():
    rows = [
        {"prompt": p, "answer": a} for p, a in (("1+1", 2), ("1/2", 0.5), ("2", "2"), ("", None))
    ]

    assert mapped(rows, "GRPO") == rows
    assert recognise(load_data(rows), "GRPO").notes == (
        "the column 'answer' is null in row 4: reward functions get None",
    )


# ---- what TRL gets


def test_instructions_become_text_or_with_a_chat_template_messages():
    text = mapped(ALPACA, "SFT")
    chat = mapped(ALPACA, "SFT", tiny.tokenizer())

    assert [row["prompt"] for row in text] == [
        "### Instruction:\nName the sky.\n\n### Response:\n",
        "### Instruction:\nShorten.\n\n### Input:\nA long path.\n\n### Response:\n",
        "### Instruction:\nSay hi.\n\n### Response:\n",
    ]
    assert [row["completion"] for row in text] == ["Blue.", "A path.", "Hi."]
    assert chat[1] == {
        "prompt": [{"role": "user", "content": "Shorten.\n\nA long path."}],
        "completion": [{"role": "assistant", "content": "A path."}],
    }


def test_a_system_text_goes_before_the_instruction():
    rows = [{"system": "Be brief.", "question": "Why?", "answer": "So."},
            {"system": "", "question": "How?", "answer": "Thus."}]  # fmt: skip

    assert mapped(rows, "SFT")[0]["prompt"].startswith("Be brief.\n\n### Instruction:\nWhy?")
    chat = mapped(rows, "SFT", tiny.tokenizer())
    assert [turn["role"] for turn in chat[0]["prompt"]] == ["system", "user"]
    assert [turn["role"] for turn in chat[1]["prompt"]] == ["user"]


def test_braces_and_percent_signs_are_not_formatted_again():
    wild = "{instruction} {0} {{ name }} {% if x %} %s %(x)s"

    row = mapped([{"instruction": wild, "input": wild, "output": "{output}"}], "SFT")[0]

    assert row["prompt"] == f"### Instruction:\n{wild}\n\n### Input:\n{wild}\n\n### Response:\n"
    assert row["completion"] == "{output}"


def test_pairs_of_instructions_get_a_prompt():
    rows = [{"instruction": "Shorten.", "input": "A path.", "chosen": "Path.", "rejected": "P."}]

    assert mapped(rows, "DPO") == [
        {
            "prompt": "### Instruction:\nShorten.\n\n### Input:\nA path.\n\n### Response:\n",
            "chosen": "Path.",
            "rejected": "P.",
        }
    ]
    assert is_conversational(mapped(rows, "DPO", tiny.tokenizer())[0])


def test_a_text_prompt_beside_whole_conversations_is_left_to_trl_to_extract():
    rows = [{"prompt": "Hi?", "chosen": CHAT, "rejected": [CHAT[0], {**CHAT[1], "content": "No."}]}]

    assert mapped(rows, "DPO") == [{k: rows[0][k] for k in ("chosen", "rejected")}]


def test_sharegpt_gets_standard_roles_and_keeps_its_system_turn():
    turns = [("system", "Be brief."), ("human", "Tin?"), ("gpt", "Pin."), ("chatbot", "Bin.")]
    rows = [{"id": "a1", "conversations": [{"from": f, "value": v} for f, v in turns]}]

    roles = ("system", "user", "assistant", "assistant")
    messages = [{"role": r, "content": v} for r, (_, v) in zip(roles, turns, strict=True)]
    assert mapped(rows, "SFT") == [{"id": "a1", "messages": messages}]


def test_roles_are_read_without_case_and_unknown_ones_refused_with_the_row():
    rows = [
        {"messages": [{"role": "User", "content": "x"}, {"role": " ASSISTANT", "content": "y"}]}
    ]

    assert [m["role"] for m in mapped(rows, "SFT")[0]["messages"]] == ["user", "assistant"]
    rows.append({"messages": [{"role": "narrator", "content": "x"}]})
    with pytest.raises(DataError, match=r"row 2: the role 'narrator' is unknown; known are user"):
        mapped(rows, "SFT")


def test_no_none_reaches_the_template_and_arguments_stay_per_row():
    def row(arguments):
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return {
            "messages": [
                {"role": "user", "content": "Do."},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "24"},
                {"role": "assistant", "content": "It is 24."},
            ]
        }

    rows = mapped([row({"room": "shed"}), row({"times": 2})], "SFT")

    texts = [tiny.tokenizer().apply_chat_template(r["messages"], tokenize=False) for r in rows]
    assert texts[0] == (
        "<|user|>Do.<eos><|assistant|><eos><|tool|>24<eos><|assistant|>It is 24.<eos>"
    )
    calls = [r["messages"][1]["tool_calls"][0]["function"]["arguments"] for r in rows]
    assert calls == [{"room": "shed"}, {"times": 2}]
    assert all(v is not None for r in rows for m in r["messages"] for v in m.values())


def test_keys_padded_with_null_by_a_table_are_left_out():
    table = pa.table({"messages": [[{"role": "user", "content": "x", "name": None}]]})

    data = Dataset(table)

    assert to_trl(data, recognise(data, "SFT"))[0] == {
        "messages": [{"role": "user", "content": "x"}]
    }


def test_text_parts_of_a_content_become_its_text():
    parts = [{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}]
    rows = [{"messages": CHAT}, {"messages": [{"role": "user", "content": parts}, CHAT[1]]}]

    assert mapped(rows, "SFT")[1]["messages"][0] == {"role": "user", "content": "two parts"}


def test_messages_written_as_json_text_are_read():
    rows = [{"messages": json.dumps(CHAT)}, {"messages": json.dumps(CHAT[:1])}]

    layout = recognise(load_data(rows), "SFT")

    assert layout.notes == ("the text in the column 'messages' is read as messages in JSON",)
    assert mapped(rows, "SFT") == [{"messages": CHAT}, {"messages": CHAT[:1]}]


def test_labels_of_kto_become_truth_values_however_they_are_written():
    rows = [{"prompt": "A shape.", "completion": " Hexagon.", "label": v} for v in ("1", "FALSE")]
    asked = [{"instruction": "Shorten.", "output": "Path.", "label": True}]

    assert [row["label"] for row in mapped(rows, "KTO")] == [True, False]
    assert mapped(asked, "KTO")[0] == {
        "label": True,
        "prompt": "### Instruction:\nShorten.\n\n### Response:\n",
        "completion": "Path.",
    }


def test_distillation_gets_conversations_up_to_their_last_answer():
    rows = [{"messages": CHAT}, {"messages": [*CHAT, CHAT[0]]}]

    assert [row["prompt"] for row in mapped(rows, "Distillation")] == [CHAT[:1], [*CHAT, CHAT[0]]]
    assert mapped([{"prompt": "Q", "completion": "a"}], "Distillation")[0]["prompt"] == "Q"
    with pytest.raises(DataError, match="row 1: there is no message before the answer"):
        mapped([{"messages": CHAT[1:]}], "Distillation")


def test_gkd_gets_conversations_whatever_the_rows_are():
    told = [{"messages": CHAT}]
    text = [{"prompt": "Hi?", "completion": "Ho."}]
    turns = [{"prompt": CHAT[:1], "completion": CHAT[1:]}]
    asked = [{"instruction": "Hi?", "output": "Ho."}]

    for rows in (told, text, turns, asked):
        assert mapped(rows, "GKD", tiny.tokenizer()) == told


def test_the_first_of_several_references_is_the_completion():
    rows = [{"prompt": "Say it rains.", "references": ["It rains.", "Rain falls."]}]

    assert mapped(rows, "SFT") == [{**rows[0], "completion": "It rains."}]


@pytest.mark.parametrize(
    ("trainer", "rows"),
    [
        ("SFT", [{"prompt": "Q", "completion": " a", "id": 1}]),
        ("SFT", [{"messages": CHAT}]),
        ("SFT", [{"text": "x"}]),
        ("DPO", [{"prompt": "Q", "chosen": "a", "rejected": "b"}]),
        ("GRPO", [{"prompt": "Q", "answer": 3, "text": "kept"}]),
    ],
)
def test_data_that_trl_takes_as_they_are_are_not_touched(trainer, rows):
    data = load_data(rows)

    assert to_trl(data, recognise(data, trainer)) is data


def test_rows_keep_their_order_through_a_selection():
    data = load_data(ALPACA).select([2, 0])

    assert to_trl(data, recognise(data, "SFT"))["completion"][:] == ["Hi.", "Blue."]


def test_messages_need_a_chat_template_and_a_default_one_is_offered():
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = None
    data = load_data([{"messages": CHAT}])

    with pytest.raises(DataError, match=r'chat_template="chatml"\) for a common one'):
        to_trl(data, recognise(data, "SFT"), tokenizer)

    tokenizer.chat_template = CHATML
    to_trl(data, recognise(data, "SFT"), tokenizer)
    assert tokenizer.apply_chat_template(CHAT, tokenize=False) == (
        "<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\nHo.<|im_end|><eos>\n"
    )


def test_a_stream_is_recognised_by_its_first_rows():
    stream = IterableDataset.from_generator(lambda: iter(ALPACA))

    assert recognise(stream, "SFT").kind == "instruction"
    assert list(stream) == ALPACA


# ---- formatting functions


def test_a_formatting_function_may_give_a_text_or_columns_per_row_or_per_batch():
    data = load_data(ALPACA)
    functions = {
        "text": lambda row: f"{row['instruction']} {row['output']}",
        "columns": lambda row: {"prompt": row["instruction"], "completion": row["output"]},
        "texts": lambda batch: [
            f"{i} {o}" for i, o in zip(batch["instruction"], batch["output"], strict=True)
        ],
        "lists": lambda batch: {"text": [i.upper() for i in batch["instruction"]]},
        "messages": lambda row: {"messages": [{"role": "user", "content": row["instruction"]}]},
    }

    made = {name: format_rows(data, f, "train").to_list() for name, f in functions.items()}

    assert made["text"] == made["texts"]
    assert made["text"][1] == {"text": "Shorten. A path."}
    assert made["columns"][1] == {"prompt": "Shorten.", "completion": "A path."}
    assert made["lists"][2] == {"text": "SAY HI."}
    assert made["messages"][0] == {"messages": [{"role": "user", "content": "Name the sky."}]}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda row: None, "for each row, got None on train, row 1"),
        (lambda row: 7, "for each row, got int on train, row 1"),
        (lambda row: [row["instruction"]], "for each row, got list on train, row 1"),
        (lambda row: row["nothing"], "failed on train, row 1: KeyError('nothing')"),
        (lambda row: row["input"].strip(), "failed on train, row 3: AttributeError"),
        (lambda batch: [None for _ in batch["input"]], "got None in it on train, rows 1 to 3"),
    ],
)
def test_a_formatting_function_that_gives_something_else_is_refused(function, message):
    with pytest.raises(DataError, match=re.escape(message)):
        format_rows(load_data(ALPACA), function, "train")


def test_a_batch_of_too_few_values_is_refused():
    def short(batch):
        return [text for text in batch["instruction"] if text != "Say hi."]

    with pytest.raises(
        DataError, match=r"3 values for a batch of 3 rows, got 2 for 'text' on train"
    ):
        format_rows(load_data(ALPACA), short, "train")


def test_a_stream_is_mapped_while_it_is_read():
    stream = IterableDataset.from_generator(lambda: iter(ALPACA * 60))
    plain = IterableDataset.from_generator(lambda: iter([{"text": "x"}]))

    made = list(to_trl(stream, recognise(stream, "SFT")))

    assert len(made) == 180
    assert made[1] == made[178] == mapped(ALPACA, "SFT")[1]
    assert to_trl(plain, recognise(plain, "SFT")) is plain


def test_columns_that_are_not_mapped_keep_their_meaning():
    features = Features(
        {**{n: Value("string") for n in ALPACA[0]}, "kind": ClassLabel(names=["a"])}
    )
    data = Dataset.from_list([{**row, "kind": 0} for row in ALPACA], features=features)

    made = to_trl(data, recognise(data, "SFT"))

    assert made.features["kind"] == features["kind"]
    assert made.column_names == ["kind", "prompt", "completion"]
