"""Answers of a model to prompts: greedy, in left-padded batches of like lengths, with a KV cache.

Nothing here draws random numbers or changes a tokenizer. Any: models, tokenizers and generation
configs of transformers.
"""

import copy
import time
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import torch

from rapidfire_jupyter.data.questions import Question
from rapidfire_jupyter.training import memory

PROBED_TOKENS = 4
Between = Callable[[], None]  # called after each token; may raise to leave


def prompt_ids(tokenizer: Any, question: Question) -> list[int]:
    """A question's prompt as the tokens that a training row of it begins with.

    Messages end with the chat template's generation prompt.
    """
    prompt = question.prompt
    if isinstance(prompt, str):
        ids: list[int] = list(tokenizer(prompt)["input_ids"])
        if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id and not _ends_so(tokenizer, prompt):
            ids.pop()  # a tokenizer that ends each text would end the prompt before its answer
        return ids
    if prompt and isinstance(prompt[0], int):
        return [int(token) for token in prompt if isinstance(token, int)]
    made = tokenizer.apply_chat_template(
        [dict(turn) for turn in prompt if not isinstance(turn, int)],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **question.template,
    )
    return list(made["input_ids"])


def references(tokenizer: Any, question: Question) -> tuple[str, ...]:
    """A question's right answers as texts, without blanks around."""
    if question.answer_ids:
        return (tokenizer.decode(list(question.answer_ids), skip_special_tokens=True).strip(),)
    return tuple(text.strip() for text in question.references)


def greedy(model: Any, tokenizer: Any, max_new_tokens: int) -> Any:
    """How to decode: the model's own generation config, but greedy, cached and of this length."""
    config = copy.deepcopy(model.generation_config)
    config.do_sample, config.num_beams, config.num_return_sequences = False, 1, 1
    for name in ("temperature", "top_p", "top_k", "typical_p", "min_p", "max_length", "max_time"):
        setattr(config, name, None)
    config.max_new_tokens, config.use_cache, config.cache_implementation = (
        max_new_tokens,
        True,
        None,
    )
    config.return_dict_in_generate = False
    given = config.eos_token_id
    ends = set(given if isinstance(given, list) else [given]) | {tokenizer.eos_token_id}
    config.eos_token_id = sorted(token for token in ends if token is not None) or None
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else config.pad_token_id
    config.pad_token_id = pad if pad is not None else (config.eos_token_id or [0])[0]
    return config


def decode(
    model: Any,
    config: Any,
    prompts: Sequence[Sequence[int]],
    batch_rows: int,
    between: Between,
) -> list[list[int]]:
    """The new tokens of each prompt, without what ends them; the model is in evaluation mode.

    Prompts that leave no room for an answer lose their beginning.

    Args:
        config: As `greedy` gives it.
        batch_rows: Prompts at once; halved, for this call, whenever memory does not suffice.

    Raises:
        torch.OutOfMemoryError: Memory does not suffice for a single prompt.
    """
    cut = fitting(model, config, prompts)
    waiting = _by_length(cut)
    answers: list[list[int]] = [[] for _ in cut]
    while waiting:
        batch = waiting[:batch_rows]
        made = answer_batch(model, config, [cut[i] for i in batch], between)
        if made is None:
            if batch_rows == 1:
                raise torch.OutOfMemoryError("no memory for the answer to one prompt")
            batch_rows = max(1, len(batch) // 2)
            continue
        for place, answer in zip(batch, made, strict=True):
            answers[place] = answer
        del waiting[:batch_rows]
    return answers


def fitting(model: Any, config: Any, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Prompts as they are decoded: without a beginning that leaves no room, and never empty."""
    room = _positions(model) - config.max_new_tokens
    return [list(ids[-room:] if room > 0 else ids) or [config.pad_token_id] for ids in prompts]


def batches(cut: Sequence[Sequence[int]], batch_rows: int) -> list[list[int]]:
    """Places of prompts that `decode` answers at once, where there is memory for it."""
    order = _by_length(cut)
    return [order[start : start + batch_rows] for start in range(0, len(order), batch_rows)]


def _by_length(cut: Sequence[Sequence[int]]) -> list[int]:
    return sorted(range(len(cut)), key=lambda i: (-len(cut[i]), i))


def answer_batch(
    model: Any,
    config: Any,
    prompts: Sequence[list[int]],
    between: Between,
) -> list[list[int]] | None:
    """The answers to a batch, without what ends them; None if there is no memory for it."""
    made = _generate(model, config, prompts, between)
    if made is None:
        return None
    ends, width = set(config.eos_token_id or ()), max(map(len, prompts))
    return [_until_end(row, ends) for row in made[:, width:].tolist()]


def first_logits(
    model: Any,
    config: Any,
    prompts: Sequence[list[int]],
    between: Between,
    tokens: int,
) -> list[torch.Tensor] | None:
    """The logits of each row's first tokens, (B, V) each; None if there is no memory for it."""
    short = copy.deepcopy(config)
    short.max_new_tokens, short.eos_token_id = tokens, None
    short.return_dict_in_generate = short.output_logits = True
    made = _generate(model, short, prompts, between)
    return None if made is None else list(made.logits)


def seconds(
    model: Any, config: Any, prompts: Sequence[list[int]], between: Between
) -> float | None:
    """What the longest answers to a batch take, from a few tokens; None if there is no memory.

    The first token takes longer than others: the prompts are read before it.
    """
    took: list[float] = []
    since = time.perf_counter()

    def count() -> None:
        nonlocal since
        took.append(time.perf_counter() - since)
        between()
        since = time.perf_counter()

    tokens = min(PROBED_TOKENS, config.max_new_tokens)
    if first_logits(model, config, prompts, count, tokens) is None:
        return None
    first, *others = took
    longest: int = config.max_new_tokens
    return first + (longest - 1) * (fmean(others) if others else 0.0)


def _generate(model: Any, config: Any, prompts: Sequence[list[int]], between: Between) -> Any:
    """What `generate` gives for a batch, padded on the left; None if there is no memory for it."""
    width = max(map(len, prompts))
    pads = [width - len(ids) for ids in prompts]
    device = model.get_input_embeddings().weight.device
    ids = torch.tensor(
        [[config.pad_token_id] * n + ids for n, ids in zip(pads, prompts, strict=True)],
        device=device,
    )  # (B, T)
    mask = torch.tensor([[0] * n + [1] * (width - n) for n in pads], device=device)  # (B, T)
    try:
        with torch.no_grad():
            return model.generate(
                input_ids=ids,
                attention_mask=mask,
                generation_config=config,
                stopping_criteria=[_Pause(between)],
            )  # (B, T + new)
    except torch.OutOfMemoryError:
        pass
    memory.ease(ran_out=True)  # out of the except block: it holds the failed step's tensors
    return None


class _Pause:
    """A stopping criterion that never stops: it lets others act between two tokens."""

    def __init__(self, between: Between) -> None:
        self._between = between

    def __call__(self, ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self._between()
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)


def _until_end(tokens: list[int], ends: set[int]) -> list[int]:
    return tokens[: next((i for i, token in enumerate(tokens) if token in ends), len(tokens))]


def _positions(model: Any) -> int:
    """Tokens that a model can attend to; 0 if it does not say."""
    config = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return int(getattr(text, "max_position_embeddings", None) or 0)


def _ends_so(tokenizer: Any, text: str) -> bool:
    return bool(tokenizer.eos_token) and text.endswith(tokenizer.eos_token)
