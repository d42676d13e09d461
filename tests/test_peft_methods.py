"""Each way to train part of a model: it learns, is exact, and leaves the shared base as it was."""

import peft
import pytest
import tiny
import torch
from oracle import assert_same, plain, sliced

from rapidfire_jupyter import RFConfig, RFLoraConfig, RFModelConfig, RFSFTConfig

TARGETS = ["q_proj", "v_proj"]


def lora(**given):
    return RFLoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": TARGETS, **given})


METHODS = {
    "plain": lora(),
    "dora": lora(use_dora=True, lora_dropout=0.1),
    "rslora": lora(use_rslora=True),
    "pissa": lora(init_lora_weights="pissa"),
    "pissa_niter": lora(init_lora_weights="pissa_niter_4"),
    "olora": lora(init_lora_weights="olora"),
    "gaussian": lora(init_lora_weights="gaussian"),
    "orthogonal": lora(init_lora_weights="orthogonal"),
    "patterns": lora(rank_pattern={"q_proj": 8}, alpha_pattern={"v_proj": 2}),
    "layers": lora(layers_to_transform=[0]),
    "bias": lora(bias="lora_only", lora_bias=False),
    "head": lora(modules_to_save=["lm_head"]),
    "embedding": lora(target_modules=[*TARGETS, "embed_tokens"]),
    "tokens": lora(trainable_token_indices=[3, 5, 7]),
    "all": lora(target_modules="all-linear"),
    "ia3": peft.IA3Config(
        target_modules=[*TARGETS, "down_proj"],
        feedforward_modules=["down_proj"],
        task_type="CAUSAL_LM",
    ),
    "vera": RFConfig(peft.VeraConfig, r=8, target_modules=["q_proj"], vera_dropout=0.1),
    "loha": RFConfig(peft.LoHaConfig, r=4, alpha=8, target_modules=TARGETS),
    "lokr": RFConfig(peft.LoKrConfig, r=4, alpha=8, target_modules=TARGETS),
    "oft": RFConfig(peft.OFTConfig, oft_block_size=4, target_modules=TARGETS),
    "layernorm": RFConfig(peft.LNTuningConfig, target_modules=["input_layernorm"]),
    "fourier": RFConfig(peft.FourierFTConfig, n_frequency=16, target_modules=TARGETS),
    "hra": RFConfig(peft.HRAConfig, r=4, target_modules=TARGETS),
    "miss": RFConfig(peft.MissConfig, r=4, target_modules=TARGETS),
    "prompt": RFConfig(peft.PromptTuningConfig, num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "p_tuning": RFConfig(
        peft.PromptEncoderConfig,
        num_virtual_tokens=4,
        encoder_hidden_size=16,
        task_type="CAUSAL_LM",
    ),
    "prefix": RFConfig(peft.PrefixTuningConfig, num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "full": None,
}


def config(method, model=None, **given):
    args = {
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
        "gradient_checkpointing": False,
        **given,
    }
    return RFModelConfig(
        "tiny", peft_config=METHODS[method], training_args=RFSFTConfig(**args), **(model or {})
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_each_method_is_exact_beside_another_and_leaves_the_base_untouched(
    experiment, tmp_path, method
):
    kept = []

    def create_model(config):
        made = tiny.create_model(config)
        if not kept:
            kept.append((made[0], {n: p.clone() for n, p in made[0].named_parameters()}))
        return made

    exp = experiment()

    exp.run_fit(
        [config(method), config("plain", learning_rate=1e-3)],
        create_model,
        tiny.sft_rows(16),
        num_chunks=2,
        block=True,
    )

    run = exp.run(1)
    assert [r.status for r in exp.runs] == ["completed"] * 2, run.trace
    assert run.exact, run.exact
    first, last = (r for r in run.rows if "loss" in r and r["step"] in (1, 4))
    assert last["loss"] != first["loss"]
    model, before = kept[0]
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert exp._fit.executor.facts()["bases"] == 1
    create_model_of_script = tiny.create_model
    exp._fit.executor.create_model = create_model_of_script
    assert_same(sliced(run), plain(run, tmp_path / "plain"), method)
    loaded, _ = run.load_model()
    assert torch.isfinite(loaded(input_ids=torch.arange(4)[None]).logits).all()
