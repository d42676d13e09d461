"""Decoding: greedy, the same in any batch, ended where the model ends, and nothing else changed."""

import tiny
import torch

from rapidfire_jupyter.data.questions import Question
from rapidfire_jupyter.training.generation import decode, greedy, prompt_ids

LENGTHS = (1, 3, 8, 20)


def prompts(tokenizer):
    return [prompt_ids(tokenizer, Question(0, tiny.sentence(n, n))) for n in LENGTHS]


def test_answers_are_the_same_one_by_one_and_in_a_batch_and_the_tokenizer_keeps_its_side():
    model, tokenizer = tiny.model(hidden=64).eval(), tiny.tokenizer()
    tokenizer.padding_side = "right"
    asked, config = prompts(tokenizer), greedy(model, tokenizer, 12)

    alone = decode(model, config, asked, 1, lambda: None)
    together = decode(model, config, asked, 4, lambda: None)

    assert alone == together and tokenizer.padding_side == "right"
    for ids, answer in zip(asked, alone, strict=True):
        plain = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)
        assert plain[0, len(ids) :].tolist()[: len(answer)] == answer


def test_an_answer_ends_where_any_of_the_models_ends_says_and_no_longer_than_asked():
    model, tokenizer = tiny.model().eval(), tiny.tokenizer()
    asked, config = prompts(tokenizer), greedy(model, tokenizer, 12)
    whole = decode(model, config, asked, 4, lambda: None)
    model.generation_config.eos_token_id = [2, whole[0][3]]

    cut = decode(model, greedy(model, tokenizer, 12), asked, 4, lambda: None)

    assert cut[0] == whole[0][: whole[0].index(whole[0][3])]
    assert max(map(len, whole)) <= 12


def test_a_models_sampling_settings_do_not_make_answers_random():
    model, tokenizer = tiny.model().eval(), tiny.tokenizer()
    plain = decode(model, greedy(model, tokenizer, 8), prompts(tokenizer), 4, lambda: None)
    model.generation_config.update(do_sample=True, temperature=2.0, top_k=3, num_beams=2)
    before = torch.get_rng_state()

    again = decode(model, greedy(model, tokenizer, 8), prompts(tokenizer), 4, lambda: None)

    assert again == plain and torch.equal(torch.get_rng_state(), before)
    assert model.generation_config.do_sample is True  # the model's own stays


def test_a_batch_that_does_not_fit_is_halved_until_it_does(monkeypatch):
    model, tokenizer = tiny.model().eval(), tiny.tokenizer()
    asked, config = prompts(tokenizer), greedy(model, tokenizer, 8)
    plain = decode(model, config, asked, 4, lambda: None)
    sizes, generate = [], model.generate

    def small(input_ids, **given):
        sizes.append(len(input_ids))
        if len(input_ids) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(input_ids=input_ids, **given)

    monkeypatch.setattr(model, "generate", small)

    assert decode(model, config, asked, 4, lambda: None) == plain
    assert sizes == [4, 2, 1, 1, 1, 1]


def test_a_prompt_that_fills_the_model_loses_its_beginning_and_an_empty_one_is_answered():
    model, tokenizer = tiny.model().eval(), tiny.tokenizer()
    long = prompt_ids(tokenizer, Question(0, tiny.sentence(3, 800)))
    config = greedy(model, tokenizer, 8)

    answers = decode(model, config, [long, []], 2, lambda: None)
    tail = decode(model, config, [long[-504:]], 1, lambda: None)

    assert answers[0] == tail[0] and len(answers) == 2


def test_someone_is_asked_between_any_two_tokens():
    model, tokenizer = tiny.model().eval(), tiny.tokenizer()
    asked = []

    decode(model, greedy(model, tokenizer, 6), [[5, 6]], 1, lambda: asked.append(1))

    assert len(asked) == 6
