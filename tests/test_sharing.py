"""A run's model in a folder, as a new base, and on the hub, with a card that says what it is."""

import shutil

import pytest
import tiny
import torch

from rapidfire_jupyter import RFLoraConfig, RFModelConfig, RFSFTConfig
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


@pytest.fixture
def trained(experiment):
    exp = experiment()
    exp.run_fit(
        config(hub_token="hf_secret"),
        tiny.create_model,
        tiny.sft_rows(12),
        num_chunks=1,
        block=True,
    )
    return exp.run(1)


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


def test_push_uploads_what_save_saves(trained, tmp_path, monkeypatch):
    import huggingface_hub

    class LocalHub:
        """The two calls of the hub's client, into a folder."""

        def __init__(self, token):
            self.token = token

        def create_repo(self, repo_id, private, exist_ok):
            assert private and exist_ok
            return f"https://hub.test/{repo_id}"

        def upload_folder(self, repo_id, folder_path):
            shutil.copytree(folder_path, tmp_path / "hub" / repo_id)

    monkeypatch.setattr(huggingface_hub, "HfApi", LocalHub)

    address = trained.push_to_hub("me/support-bot", token="hf_x")

    files = {path.name for path in (tmp_path / "hub" / "me" / "support-bot").iterdir()}
    assert address == "https://hub.test/me/support-bot"
    assert {"README.md", "adapter_config.json", "adapter_model.safetensors"} <= files
