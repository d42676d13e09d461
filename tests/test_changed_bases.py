"""Bases that create_model_fn changes: added tokens, tied or not, and layers it freezes."""

import peft
import pytest
import tiny
import torch
from oracle import assert_same, plain, sliced

from rapidfire_jupyter import RFConfig, RFDPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.errors import ConfigError

NEW = ["<tool>", "</tool>"]
TARGETS = ["q_proj", "v_proj"]


def grown(config):
    """A base whose tokenizer has two tokens more, and a row of the embeddings for each."""
    model, tokenizer = tiny.create_model(config)
    tokenizer.add_tokens(NEW, special_tokens=True)
    model.resize_token_embeddings(len(tokenizer))
    return model, tokenizer


def frozen_below(config):
    """A base that trains its last layer and its head only."""
    model, tokenizer = tiny.create_model(config)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("layers.1." in name or "lm_head" in name)
    return model, tokenizer


def rows():
    return [
        {**row, "completion": f"{NEW[0]}{row['completion']}{NEW[1]}"} for row in tiny.sft_rows(16)
    ]


def config(adapter, model=None, **given):
    args = {"learning_rate": 1e-2, "per_device_train_batch_size": 4, "logging_steps": 1, **given}
    return RFModelConfig(
        "tiny", peft_config=adapter, training_args=RFSFTConfig(**args), model_kwargs=model or {}
    )


def lora(**given):
    return RFLoraConfig(**{"r": 4, "target_modules": TARGETS, **given})


def added_ids():
    return grown({"model_kwargs": {}})[1].convert_tokens_to_ids(NEW)


@pytest.mark.parametrize("tied", [False, True])
def test_tokens_added_to_a_base_train_as_in_plain_trl(experiment, tmp_path, tied):
    ids = added_ids()
    whole = ["embed_tokens"] if tied else ["embed_tokens", "lm_head"]
    adapters = [
        lora(),
        lora(target_modules=["k_proj"]) if tied else lora(trainable_token_indices=ids),
        lora(modules_to_save=whole, ensure_weight_tying=tied),
        lora(target_modules=[*TARGETS, "embed_tokens"]),
        None,
    ]
    exp = experiment()

    exp.run_fit(
        [config(adapter, {"tied": tied}) for adapter in adapters],
        grown,
        rows(),
        num_chunks=2,
        block=True,
    )

    assert exp._fit.executor.facts()["bases"] == 1
    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert run.exact, run.exact
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")
        model, tokenizer = run.load_model()
        logits = model(**tokenizer(NEW[0], return_tensors="pt")).logits
        assert torch.isfinite(logits).all() and logits.shape[-1] == len(tokenizer)
        tie = model.get_input_embeddings().weight is model.get_output_embeddings().weight
        assert tie is tied or adapters[run.id - 1] is not None


def test_trained_tokens_on_a_tied_base_are_refused_with_what_works(experiment):
    exp = experiment()
    alone = RFConfig(peft.TrainableTokensConfig, token_indices=[3])

    exp.run_fit(
        [
            config(lora(trainable_token_indices=[3]), {"tied": True}),
            config(alone, {"tied": True}),
            config(lora(), {"tied": True}),
        ],
        grown,
        rows(),
        num_chunks=2,
        block=True,
    )

    assert [run.status for run in exp.runs] == ["failed", "failed", "completed"]
    for run in list(exp.runs)[:2]:
        assert "not tied" in run.error and "modules_to_save=['embed_tokens']" in run.error


def test_tokens_of_another_tokenizer_are_added_in_create_model_fn_not_by_trl(experiment, tmp_path):
    tokenizer = tiny.tokenizer()
    tokenizer.add_tokens(NEW, special_tokens=True)
    tokenizer.save_pretrained(tmp_path / "other")

    with pytest.raises(ConfigError, match=r"call trl\.clone_chat_template in"):
        experiment().run_fit(
            config(lora(), chat_template_path=str(tmp_path / "other")),
            tiny.create_model,
            rows(),
        )


def test_a_partly_frozen_base_shares_what_is_frozen_and_equals_plain_trl(experiment, tmp_path):
    exp = experiment()
    dpo = RFModelConfig(
        "tiny",
        training_args=RFDPOConfig(
            learning_rate=1e-3, per_device_train_batch_size=4, logging_steps=1
        ),
    )

    exp.run_fit(
        [config(None), config(None, learning_rate=1e-3)],
        frozen_below,
        tiny.sft_rows(16),
        num_chunks=2,
        block=True,
    )
    other = experiment("dpo")
    other.run_fit(
        [dpo, dpo.copy(seed=3)], frozen_below, tiny.dpo_rows(12), num_chunks=2, block=True
    )

    before = frozen_below({"model_kwargs": {}})[0].state_dict()
    for run in [*exp.runs, *other.runs]:
        assert run.status == "completed", run.trace
        assert run.exact, run.exact
        folder = tmp_path / f"{run.facts.trainer_type}{run.id}"
        weights, *_ = sliced(run)
        assert_same(sliced(run), plain(run, folder), f"run {run.id}")
        moved = {name for name, value in weights.items() if not torch.equal(value, before[name])}
        assert moved and all("layers.1." in name or "lm_head" in name for name in moved)
