"""A run's model in a folder, as a new base, and on the hub, with a card that says what it is."""

import pytest
import tiny
import torch
from hub import Hub

from rapidfire_jupyter import (
    RFConfig,
    RFGRPOConfig,
    RFLoraConfig,
    RFModelConfig,
    RFRewardConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.errors import OpError

pytestmark = pytest.mark.slow
IDS = torch.arange(5)[None]  # (1, 5)


def config(name="tiny", **given):
    args = {"learning_rate": 1e-2, "per_device_train_batch_size": 4, "max_steps": 3, **given}
    return RFModelConfig(
        name,
        peft_config=RFLoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
        training_args=RFSFTConfig(logging_steps=1, **args),
    )


def run_of(exp, given):
    """A run that has trained."""
    exp.run_fit(given, tiny.create_model, tiny.sft_rows(12), num_chunks=1, block=True)
    return exp.run(1)


@pytest.fixture
def trained(experiment):
    return run_of(experiment(), config(hub_token="hf_secret"))


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def test_a_merged_run_is_the_base_of_new_ones(trained, experiment, tmp_path):
    before, _ = trained.load_model()

    folder = trained.save(tmp_path / "merged", merged=True)
    other = experiment("next")
    other.run_fit(config(str(folder)), train_dataset=tiny.sft_rows(12), num_chunks=1, block=True)

    from transformers import AutoModelForCausalLM

    merged = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(logits(merged), logits(before), rtol=1e-4, atol=1e-5)
    assert other.run(1).status == "completed", other.run(1).trace


def test_the_card_tells_configuration_data_metrics_and_lineage(trained, tmp_path):
    folder = trained.save(tmp_path / "adapter")

    card = (folder / "README.md").read_text()
    assert (folder / "adapter_model.safetensors").exists()
    for part in (
        'base_model: "tiny"',
        'library_name: "peft"',
        "| training_args.learning_rate | `0.01` |",
        "| train_rows | 12 |",
        "| train_fingerprint |",
        "| loss |",
        "run 1 was in the experiment from its beginning",
        "bit for bit: yes",
        "| trl |",
    ):
        assert part in card, part
    assert "hf_secret" not in card and "| training_args.hub_token | *** |" in card
    with pytest.raises(OpError, match="is not empty; give a new folder"):
        trained.save(folder)


@pytest.fixture
def hub(monkeypatch):
    """A hub on this machine that huggingface_hub's own client talks to."""
    from huggingface_hub import constants

    made = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", made.endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield made
    made.close()


def test_push_uploads_what_save_saves(trained, hub, tmp_path):
    saved = trained.save(tmp_path / "adapter")

    address = trained.push_to_hub("support-bot", token="hf_x")  # the hub puts the owner before it

    there = {path: content for (_, path), content in hub.files.items()}
    assert address == f"{hub.endpoint}/me/support-bot"
    assert {name for name, _ in hub.files} == {"me/support-bot"}
    assert hub.repositories == {"me/support-bot": hub.repositories["me/support-bot"]}
    assert hub.repositories["me/support-bot"] in (True, "private")
    assert hub.tokens >= {"Bearer hf_x"}
    assert there == {path.name: path.read_bytes() for path in saved.iterdir()}


def test_a_card_of_a_base_that_is_no_name_of_the_hub_is_taken_by_it(experiment, hub, tmp_path):
    tiny.model().save_pretrained(tmp_path / "base")
    tiny.tokenizer().save_pretrained(tmp_path / "base")
    exp = experiment()
    exp.run_fit(config(str(tmp_path / "base")), None, tiny.sft_rows(12), num_chunks=1, block=True)

    exp.run(1).push_to_hub("me/bot", merged=True, token="hf_x")

    assert ("me/bot", "model.safetensors") in hub.files
    card = hub.files["me/bot", "README.md"].decode()
    assert card.startswith("---") and "base_model:" not in card


def test_without_its_cells_a_model_is_loaded_on_the_base_that_its_config_tells(
    experiment, tmp_path
):
    tiny.model().save_pretrained(tmp_path / "base")
    tiny.tokenizer().save_pretrained(tmp_path / "base")
    base = config(str(tmp_path / "base"))
    exp = experiment()
    exp.run_fit(
        base.copy(model_kwargs={"dtype": "bfloat16"}),
        None,
        tiny.sft_rows(12),
        num_chunks=1,
        block=True,
    )
    before = logits(exp.run(1).load_model()[0])
    exp.end()

    later = experiment().run(1)

    assert later._experiment is not exp
    assert before.dtype == torch.bfloat16 and torch.equal(logits(later.load_model()[0]), before)


MERGED = {
    "dora": {"use_dora": True},
    "embeddings": {"target_modules": ["q_proj", "embed_tokens"]},
    "saved embeddings": {"modules_to_save": ["embed_tokens"]},
    "all": {"target_modules": "all-linear"},
}


@pytest.mark.parametrize("adapter", MERGED)
def test_merged_weights_say_the_same_also_where_head_and_embeddings_are_tied(
    experiment, tmp_path, adapter
):
    from transformers import AutoModelForCausalLM

    exp = experiment()
    given = config().copy(
        peft_config=RFLoraConfig(**{"r": 4, "target_modules": ["q_proj"], **MERGED[adapter]}),
        model_kwargs={"tied": True},
    )
    exp.run_fit(given, tiny.create_model, tiny.sft_rows(12), num_chunks=1, block=True)
    run = exp.run(1)
    assert run.status == "completed", run.trace
    before, _ = run.load_model()

    folder = run.save(tmp_path / "merged", merged=True)

    merged = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(logits(merged), logits(before), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_merged_is_refused_and_nothing_is_saved(experiment, tmp_path):
    import peft

    prompts = RFConfig(peft.PromptTuningConfig, num_virtual_tokens=4, task_type="CAUSAL_LM")
    run = run_of(experiment(), config().copy(peft_config=prompts))

    with pytest.raises(OpError, match="PROMPT_TUNING cannot be merged; save it with merged=False"):
        run.save(tmp_path / "merged", merged=True)
    assert not (tmp_path / "merged").exists()


def test_an_adapter_that_others_would_load_onto_another_base_is_saved_merged_only(
    experiment, tmp_path
):
    from transformers import AutoModelForCausalLM

    lora = RFLoraConfig(r=4, target_modules=["q_proj"], init_lora_weights="pissa_niter_4")
    run = run_of(experiment(), config().copy(peft_config=lora))

    with pytest.raises(OpError, match=r"its SVD is randomised.*save it with merged=True"):
        run.save(tmp_path / "adapter")
    folder = run.save(tmp_path / "merged", merged=True)

    assert not (tmp_path / "adapter").exists()
    merged = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(logits(merged), logits(run.load_model()[0]), rtol=0, atol=1e-5)


def test_a_merged_reward_model_judges_new_runs(experiment, tmp_path):
    tiny.model().save_pretrained(tmp_path / "base")
    tiny.tokenizer().save_pretrained(tmp_path / "base")
    args = {"per_device_train_batch_size": 4, "max_steps": 2}
    adapter = RFLoraConfig(r=4, target_modules=["q_proj"])
    judge = RFModelConfig(
        str(tmp_path / "base"), peft_config=adapter, training_args=RFRewardConfig(**args)
    )
    exp, other = experiment(), experiment("grpo")
    exp.run_fit(judge, None, tiny.dpo_rows(8), num_chunks=1, block=True)

    folder = exp.run(1).save(tmp_path / "judge", merged=True)
    other.run_fit(
        RFModelConfig(
            str(tmp_path / "base"),
            peft_config=adapter,
            reward_funcs=str(folder),
            training_args=RFGRPOConfig(**args, num_generations=2, max_completion_length=4),
        ),
        None,
        tiny.grpo_rows(8),
        num_chunks=1,
        block=True,
    )

    assert other.run(1).status == "completed", other.run(1).trace


def test_a_model_is_loaded_and_saved_with_the_chat_template_it_was_trained_with(
    experiment, tmp_path
):
    from transformers import AutoTokenizer

    exp = experiment()
    given = config().copy(chat_template="chatml")
    exp.run_fit(given, tiny.create_model, tiny.sft_rows(12), num_chunks=1, block=True)

    _, tokenizer = exp.run(1).load_model()
    folder = exp.run(1).save(tmp_path / "adapter")

    assert "im_start" in tokenizer.chat_template
    assert "im_start" in AutoTokenizer.from_pretrained(folder).chat_template
