"""What this machine cannot do is refused in the cell, before anything is loaded."""

import pytest
import tiny
import torch
from transformers import BitsAndBytesConfig

from rapidfire_jupyter import RFGRPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.training.requirements import Outlines, check_memory

LORA = RFLoraConfig(r=4, target_modules=["q_proj"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model on disk, loaded by its name; its weights are no part of what is checked."""
    path = tmp_path_factory.mktemp("model")
    tiny.model(hidden=64).save_pretrained(path)
    tiny.tokenizer().save_pretrained(path)
    (path / "model.safetensors").unlink()
    return str(path)


def refusal(experiment, config, create_model=None, **more):
    """What the cell says; nothing has begun then."""
    exp = experiment()
    with pytest.raises(ConfigError) as error:
        exp.run_fit(config, create_model, tiny.sft_rows(8), num_chunks=1, **more)
    assert not list(exp.events)
    return str(error.value)


def test_a_model_that_cannot_fit_is_refused_with_what_it_needs(experiment, folder):
    adapter = RFModelConfig(folder, peft_config=LORA, training_args=RFSFTConfig())
    whole = adapter.copy(peft_config=None)
    size = sum(p.numel() * 4 for p in tiny.model(hidden=64).parameters())

    small = refusal(experiment, adapter, device_memory=size - 1)
    all_weights = refusal(experiment, [adapter, whole], device_memory=4 * size - 1)

    assert small.startswith(f"run 1: its weights take {size / 2**20:.1f} MiB, and device_memory")
    assert "16 bit: model_kwargs={'dtype': 'bfloat16'}" in small
    assert "load_in_4bit=True" in small and "RFLoraConfig" not in small
    assert all_weights.startswith("run 2: its weights take") and "RFLoraConfig" in all_weights
    assert f"its optimizer's states {2 * size / 2**20:.1f} MiB" in all_weights


def test_only_what_is_sure_is_refused(folder):
    config = RFModelConfig(folder, training_args=RFSFTConfig(optim="sgd")).build()
    outline = Outlines().get(config)
    size = sum(p.numel() * 4 for p in tiny.model(hidden=64).parameters())

    assert all(parameter.device.type == "meta" for parameter in outline.parameters())
    check_memory(config, outline, 2 * size, "it has")
    with pytest.raises(ConfigError):
        check_memory(config, outline, 2 * size - 1, "it has")
    for kwargs, part in (
        ({"dtype": "bfloat16"}, 2),
        ({"dtype": torch.float16}, 2),
        ({"quantization_config": BitsAndBytesConfig(load_in_4bit=True)}, 7),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, 7),
    ):
        less = RFModelConfig(
            folder, peft_config=LORA, training_args=RFSFTConfig(), model_kwargs=kwargs
        ).build()
        check_memory(less, Outlines().get(less), size // part, "it has")


def test_modules_that_a_model_by_name_lacks_are_refused_before_it_is_loaded(experiment, folder):
    lora = RFLoraConfig(r=4, target_modules=["q_prj"])

    said = refusal(experiment, RFModelConfig(folder, peft_config=lora))

    assert "run 1: target_modules: no module of the model is called 'q_prj'; did you mean" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"device_map": "cuda:1"}, "device_map names 'cuda:1', but there is no CUDA GPU"),
        ({"device_map": {"": 0}}, "device_map names 0, but there is no CUDA GPU"),
        ({"attn_implementation": "flash_attention_2"}, "needs a CUDA GPU, found none; use 'sdpa'"),
    ],
)
def test_devices_that_are_not_there_are_refused(experiment, kwargs, message):
    config = RFModelConfig("tiny", peft_config=LORA, model_kwargs=kwargs)

    assert message in refusal(experiment, config, tiny.create_model)


@pytest.mark.parametrize(
    ("given", "package"),
    [
        ({"optim": "lion_32bit"}, "bitsandbytes (extra qlora)"),
        ({"optim": "paged_ademamix_8bit"}, "bitsandbytes (extra qlora)"),
        ({"optim": "adamw_torch_8bit"}, "torchao"),
        ({"optim": "galore_adamw", "optim_target_modules": ["q_proj"]}, "galore-torch"),
        ({"optim": "schedule_free_adamw"}, "schedulefree"),
        ({"report_to": "wandb"}, "wandb"),
        ({"report_to": ["comet_ml"]}, "comet-ml"),
    ],
)
def test_packages_that_are_missing_are_refused(experiment, monkeypatch, given, package):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = RFModelConfig("tiny", peft_config=LORA, training_args=RFSFTConfig(**given))

    assert f"pip install {package}, or " in refusal(experiment, config, tiny.create_model)


@pytest.mark.parametrize(
    ("kwargs", "what"),
    [
        ({"use_kernels": True}, "use_kernels=True"),
        ({"attn_implementation": "kernels-community/flash-attn2"}, "attn_implementation='kernels-"),
    ],
)
def test_kernels_of_the_hub_need_their_package(experiment, monkeypatch, kwargs, what):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = RFModelConfig("tiny", peft_config=LORA, model_kwargs=kwargs)

    said = refusal(experiment, config, tiny.create_model)

    assert f"model_kwargs: {what}" in said and "pip install kernels, or leave it out" in said


@pytest.mark.parametrize(
    "packed",
    [BitsAndBytesConfig(load_in_8bit=True), {"quant_method": "bitsandbytes", "load_in_8bit": True}],
)
def test_a_base_in_8_bits_is_refused_before_it_is_loaded(experiment, packed):
    config = RFModelConfig("tiny", peft_config=LORA, model_kwargs={"quantization_config": packed})

    said = refusal(experiment, config, tiny.create_model)

    assert "a base in 8 bits keeps state" in said and "load_in_4bit=True" in said


def test_a_quantised_base_and_vllm_need_their_packages(experiment, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    four_bit = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True)}
    packed = RFModelConfig("tiny", peft_config=LORA, model_kwargs=four_bit)
    vllm = RFModelConfig("tiny", peft_config=LORA, training_args=RFGRPOConfig(use_vllm=True))
    vllm = vllm.copy(reward_funcs=[tiny.reward_length])

    assert "quantization_config needs a package" in refusal(experiment, packed, tiny.create_model)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert "pip install vllm, or leave it out" in refusal(experiment, vllm, tiny.create_model)
