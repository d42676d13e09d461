"""Questions: of every layout, the prompt that the model gets ends before the answer."""

import json

import pytest
import tiny
from datasets import Dataset, IterableDataset

from rapidfire_jupyter.data.kinds import FOR_TRAINER
from rapidfire_jupyter.data.layouts import recognise
from rapidfire_jupyter.data.load import load_data
from rapidfire_jupyter.data.mapping import to_trl
from rapidfire_jupyter.data.questions import Question, even_rows, pick, question, questions, shown
from rapidfire_jupyter.training.generation import prompt_ids, references

ASKED, ANSWER = "where is my order", "it will be updated today"
USER, SAID = {"role": "user", "content": ASKED}, {"role": "assistant", "content": ANSWER}
BAD = {"role": "assistant", "content": "contact the team"}
EARLIER = [
    {"role": "system", "content": "help me please"},
    {"role": "user", "content": "thank you"},
    {"role": "assistant", "content": "we are sorry"},
]
SHAREGPT = [{"from": "human", "value": ASKED}, {"from": "gpt", "value": ANSWER}]
LAYOUTS = {
    "messages": ("SFT", {"messages": [*EARLIER, USER, SAID]}),
    "messages that end with the user": ("SFT", {"messages": [USER, SAID, EARLIER[1]]}),
    "sharegpt": ("SFT", {"conversations": SHAREGPT}),
    "kto": ("SFT", {"prompt": ASKED, "completion": f" {ANSWER}", "label": True}),
    "references": ("SFT", {"prompt": ASKED, "references": [f" {ANSWER}", " today"]}),
    "prompt_completion": ("SFT", {"prompt": ASKED, "completion": f" {ANSWER}"}),
    "prompt_completion of messages": ("SFT", {"prompt": [*EARLIER, USER], "completion": [SAID]}),
    "completion of several turns": (
        "SFT",
        {"prompt": EARLIER[:2], "completion": [BAD, USER, SAID]},
    ),
    "instruction": ("SFT", {"instruction": ASKED, "input": "item number", "output": ANSWER}),
    "preference": ("DPO", {"prompt": ASKED, "chosen": f" {ANSWER}", "rejected": " no"}),
    "preference of messages": ("DPO", {"prompt": [USER], "chosen": [SAID], "rejected": [BAD]}),
    "instruction_preference": ("DPO", {"instruction": ASKED, "chosen": ANSWER, "rejected": "no"}),
    "implicit_preference": (
        "DPO",
        {"chosen": [*EARLIER, USER, SAID], "rejected": [*EARLIER, USER, BAD]},
    ),
    "implicit_preference of texts": (
        "DPO",
        {"chosen": f"{ASKED} {ANSWER}", "rejected": f"{ASKED} contact the team"},
    ),
}


def in_trls_columns(row, trainer, tokenizer):
    data = load_data([row, row])
    return to_trl(data, recognise(data, trainer), tokenizer)


def trained_on(data, trainer, tokenizer):
    """The token ids that TRL trains on: prompt and answer of the first row."""
    import trl
    from peft import LoraConfig

    config = getattr(trl, f"{trainer}Config")(output_dir="unused", use_cpu=True, report_to="none")
    made = getattr(trl, f"{trainer}Trainer")(
        model=tiny.model(),
        args=config,
        train_dataset=data,
        processing_class=tokenizer,
        peft_config=LoraConfig(target_modules=["q_proj"]),
    )
    row = made.train_dataset[0]
    if trainer == "DPO":
        return row["prompt_ids"], row["prompt_ids"] + row["chosen_ids"]
    ids = row["input_ids"]
    mask = row.get("completion_mask")
    return (None if mask is None else ids[: mask.index(1)]), ids


@pytest.mark.parametrize("chat", [True, False], ids=["chat template", "plain"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_prompt_is_what_training_rows_begin_with_and_ends_before_the_answer(name, chat):
    trainer, row = LAYOUTS[name]
    tokenizer = tiny.tokenizer()
    if not chat:
        tokenizer.chat_template = None
        if any(
            isinstance(value, list) and value[:1] and isinstance(value[0], dict)
            for value in row.values()
        ):
            return  # refused: messages need a chat template
    data = in_trls_columns(row, trainer, tokenizer)

    (one, _) = questions(pick(data, 2))
    ids = prompt_ids(tokenizer, one)
    prompt, whole = trained_on(data, trainer, tokenizer)

    assert ANSWER not in tokenizer.decode(ids) and ASKED in tokenizer.decode(ids)
    assert ids == whole[: len(ids)]
    assert tokenizer.decode(whole[len(ids) :]).strip().startswith(ANSWER)
    if prompt is not None and "several turns" not in name:
        assert ids == prompt
    assert references(tokenizer, one)[0] == ANSWER
    assert (
        not chat or isinstance(one.prompt, str) or tokenizer.decode(ids).endswith("<|assistant|>")
    )


def test_each_layout_of_sft_and_dpo_is_asked_or_known_to_have_no_answer():
    asked = {recognise(load_data([row]), trainer).kind for trainer, row in LAYOUTS.values()}

    known = {kind for trainer in ("SFT", "DPO") for kind in FOR_TRAINER[trainer]}
    assert known - asked == {"text", "tokens"}


def test_all_references_of_a_row_are_right_answers():
    tokenizer = tiny.tokenizer()
    data = in_trls_columns(LAYOUTS["references"][1], "SFT", tokenizer)

    assert references(tokenizer, questions(pick(data, 1))[0]) == (ANSWER, "today")


def test_rows_whose_answer_is_bad_blank_or_unknown_are_not_asked():
    assert question({"prompt": "a", "completion": "b", "label": False}) is None
    assert question({"prompt": "a", "completion": "  "}) is None
    assert question({"messages": [USER]}) is None
    assert question({"messages": [SAID]}) is None
    assert question({"messages": [USER, {"role": "assistant", "content": None}]}) is None
    assert question({"text": "a b c"}) is None
    assert question({"input_ids": [1, 2, 3]}) is None


def test_prompts_of_grpo_are_asked_and_judged_where_a_column_has_the_answer():
    tokenizer = tiny.tokenizer()
    rows = [{"prompt": "what is 1 + 1", "answer": 2}, {"prompt": "say it", "answer": None}]
    data = to_trl(load_data(rows), recognise(load_data(rows), "GRPO"), tokenizer)

    with_answer, without = questions(pick(data, 0))

    assert (with_answer.prompt, with_answer.references) == ("what is 1 + 1", ("2",))
    assert (without.prompt, without.references) == ("say it", ())


def test_rows_of_token_ids_are_split_at_their_last_learned_stretch():
    tokenizer = tiny.tokenizer()
    ids = tokenizer("how do i cancel my order")["input_ids"]
    learned = [token if i >= len(ids) - 2 else -100 for i, token in enumerate(ids)]

    one = question({"input_ids": ids, "labels": learned})

    assert prompt_ids(tokenizer, one) == ids[:-2]
    assert references(tokenizer, one) == (tokenizer.decode(ids[-2:]).strip(),)


def test_tools_and_template_arguments_reach_the_chat_template():
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = (
        "{{ tools[0].function.name if tools else '' }}{{ mood }}" + tokenizer.chat_template
    )
    tool = {"type": "function", "function": {"name": "refund", "parameters": {}}}
    row = {
        "messages": [USER, SAID],
        "tools": json.dumps([tool]),
        "chat_template_kwargs": {"mood": "sorry"},
    }

    text = tokenizer.decode(prompt_ids(tokenizer, question(row)))

    assert text.startswith("refundsorry<|user|>")


def test_a_tokenizer_that_ends_each_text_does_not_end_the_prompt():
    class Ending:
        eos_token, eos_token_id = "<eos>", 2

        def __call__(self, text):
            return {"input_ids": [7, 8, 2]}

    assert prompt_ids(Ending(), Question(0, "a b")) == [7, 8]
    assert prompt_ids(Ending(), Question(0, "a<eos>")) == [7, 8, 2]


def test_the_same_rows_are_picked_whatever_they_hold_and_a_stream_gives_its_first():
    data = Dataset.from_list([{"prompt": str(n), "completion": "x"} for n in range(10)])
    stream = IterableDataset.from_generator(lambda: ({"prompt": str(n)} for n in range(10)))

    assert [n for n, _ in pick(data, 4)] == even_rows(10, 4) == [0, 2, 4, 6]
    assert [n for n, _ in pick(data, 0)] == list(range(10))
    assert [row["prompt"] for _, row in pick(stream, 3)] == ["0", "1", "2"]


def test_a_person_sees_a_single_turn_as_it_is_and_several_with_their_roles():
    assert shown("Q: a") == "Q: a"
    assert shown((EARLIER[0], USER)) == ASKED
    assert shown((*EARLIER, USER)).splitlines()[-1] == f"user: {ASKED}"
