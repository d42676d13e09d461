"""The layouts that are known: what their columns are called, and which trainer takes which."""

from collections.abc import Mapping
from dataclasses import dataclass

_QUESTION = ("instruction", "question")
_INPUT = ("input", "context")
_SYSTEM = ("system", "system_prompt")
_OUTPUT = ("output", "response", "answer")


@dataclass(frozen=True)
class Kind:
    """A layout: what its columns are called.

    Attributes:
        needs: What each row must have: the part's name, and names its column may have.
        may: What a row may have beside it, in the same form.
        example: One row, for messages.
    """

    needs: Mapping[str, tuple[str, ...]]
    may: Mapping[str, tuple[str, ...]]
    example: str


KINDS: Mapping[str, Kind] = {
    "tokens": Kind({"input_ids": ("input_ids",)}, {}, '{"input_ids": [1, 5, 2]}'),
    "messages": Kind(
        {"messages": ("messages",)},
        {},
        '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}]}',
    ),
    "sharegpt": Kind(
        {"conversations": ("conversations", "conversation")},
        {},
        '{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}]}',
    ),
    "kto": Kind(
        {"prompt": ("prompt",), "completion": ("completion",), "label": ("label",)},
        {},
        '{"prompt": "...", "completion": "...", "label": true}',
    ),
    "instruction_kto": Kind(
        {"instruction": _QUESTION, "output": _OUTPUT, "label": ("label",)},
        {"input": _INPUT, "system": _SYSTEM},
        '{"instruction": "...", "input": "", "output": "...", "label": true}',
    ),
    "references": Kind(
        {"prompt": ("prompt",), "references": ("references",)},
        {},
        '{"prompt": "...", "references": ["...", "..."]}',
    ),
    "prompt_completion": Kind(
        {"prompt": ("prompt",), "completion": ("completion", "response")},
        {},
        '{"prompt": "...", "completion": "..."}',
    ),
    "instruction": Kind(
        {"instruction": _QUESTION, "output": _OUTPUT},
        {"input": _INPUT, "system": _SYSTEM},
        '{"instruction": "...", "input": "", "output": "..."}',
    ),
    "text": Kind({"text": ("text",)}, {}, '{"text": "..."}'),
    "preference": Kind(
        {"prompt": ("prompt",), "chosen": ("chosen",), "rejected": ("rejected",)},
        {},
        '{"prompt": "...", "chosen": "...", "rejected": "..."}',
    ),
    "instruction_preference": Kind(
        {"instruction": _QUESTION, "chosen": ("chosen",), "rejected": ("rejected",)},
        {"input": _INPUT, "system": _SYSTEM},
        '{"instruction": "...", "input": "", "chosen": "...", "rejected": "..."}',
    ),
    "implicit_preference": Kind(
        {"chosen": ("chosen",), "rejected": ("rejected",)},
        {},
        '{"chosen": [{"role": "user", ...}, ...], "rejected": [{"role": "user", ...}, ...]}',
    ),
    "prompt": Kind({"prompt": ("prompt",)}, {}, '{"prompt": "...", "answer": "..."}'),
    "instruction_prompt": Kind(
        {"instruction": _QUESTION},
        {"input": _INPUT, "system": _SYSTEM},
        '{"question": "...", "answer": "..."}',
    ),
}
FOR_TRAINER: Mapping[str, tuple[str, ...]] = {
    "SFT": (
        "tokens",
        "messages",
        "sharegpt",
        "kto",
        "references",
        "prompt_completion",
        "instruction",
        "text",
    ),
    "DPO": ("preference", "instruction_preference", "implicit_preference"),
    "GRPO": ("prompt", "instruction_prompt"),
    "RLOO": ("prompt", "instruction_prompt"),
    "Reward": ("preference", "instruction_preference", "implicit_preference"),
    "KTO": ("kto", "instruction_kto"),
    "Distillation": ("messages", "sharegpt", "prompt", "instruction_prompt"),
    "GKD": ("messages", "sharegpt", "prompt_completion", "instruction"),
}
# Trainers that make their own answers to prompts, and those of them that ask reward functions.
GENERATING = ("GRPO", "RLOO", "Distillation")
REWARDED = ("GRPO", "RLOO")
NAMES = frozenset(
    name
    for kind in KINDS.values()
    for names in (*kind.needs.values(), *kind.may.values())
    for name in names
)
