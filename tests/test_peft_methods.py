"""Each way to train part of a model: it learns, is exact, and leaves the shared base as it was."""

import importlib.util

import peft
import pytest
import tiny
import torch
from oracle import assert_same, plain, sliced
from test_ops import at

from rapidfire_jupyter import (
    RFConfig,
    RFDistillationConfig,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.errors import ConfigError, OpError

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
    "mica": lora(init_lora_weights="mica"),
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
    "adalora": RFConfig(
        peft.AdaLoraConfig, init_r=6, target_r=3, total_step=4, target_modules=TARGETS
    ),
    "boft": RFConfig(peft.BOFTConfig, boft_block_size=4, target_modules=TARGETS),
    "kasa": lora(kasa_config=peft.KasaConfig()),  # rewrites what it targets
    "shira": RFConfig(peft.ShiraConfig, r=4, target_modules=TARGETS),  # sparse tensors
    "frod": RFConfig(peft.FrodConfig, target_modules=TARGETS),
    "randlora": RFConfig(peft.RandLoraConfig, target_modules=TARGETS),
    "tokens_only": RFConfig(peft.TrainableTokensConfig, token_indices=[3, 5, 7]),
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


ENCODERS = {
    "p_tuning": METHODS["p_tuning"],
    "prefix_projection": RFConfig(
        peft.PrefixTuningConfig,
        num_virtual_tokens=4,
        prefix_projection=True,
        encoder_hidden_size=16,
        task_type="CAUSAL_LM",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", ENCODERS)
def test_the_encoder_of_a_prompt_is_what_it_was_after_a_stop(experiment, tmp_path, method):
    exp = experiment()
    stopped = at(exp, 1, 2, lambda: exp.stop(1))

    exp.run_fit(
        config("plain").copy(peft_config=ENCODERS[method]),
        tiny.create_model,
        tiny.sft_rows(16),
        num_chunks=2,
        block=True,
    )
    stopped[0].wait(60)
    clone = exp.clone(1, {}, warm=True).wait(60)
    exp.resume(1).wait(60)
    exp.wait(60)

    alone = plain(exp.run(1), tmp_path / "plain")
    for run in (exp.run(1), exp.run(clone.run_id)):
        assert run.status == "completed" and run.exact, (run.trace, run.exact)
        assert_same(sliced(run), alone, run.name)


class AllocateRanks(tiny.Callback):
    """What PEFT asks of a training loop with AdaLoRA, and TRL does not do."""

    def on_optimizer_step(self, args, state, control, model=None, **kwargs):
        model.base_model.update_and_allocate(state.global_step + 1)


def adalora(**given):
    return RFConfig(
        peft.AdaLoraConfig,
        **{"init_r": 6, "target_r": 2, "tinit": 1, "tfinal": 1, "total_step": 4, **given},
        target_modules=TARGETS,
    )


def test_ranks_that_a_callback_allocates_are_those_of_plain_trl(experiment, tmp_path, capsys):
    exp = experiment()
    allocated = config("adalora", {"callbacks": [AllocateRanks()]})
    allocated = allocated.copy(peft_config=adalora())

    exp.run_fit(
        [allocated, config("adalora")],
        tiny.create_model,
        tiny.sft_rows(16),
        num_chunks=2,
        block=True,
    )

    for run in exp.runs:
        assert run.status == "completed" and run.exact, (run.trace, run.exact)
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")
    ranks = [{len(v) for n, v in sliced(run)[0].items() if "lora_E" in n} for run in exp.runs]
    assert ranks[1] == {6} and min(ranks[0]) < 6
    assert capsys.readouterr().out.count("all ranks stay 6; give a callback") == 1
    notes = [e.data["notes"] for e in exp.events if e.kind == "run_prepared"]
    assert any("AdaLoRA's importances" in note for note in notes[0]) and not notes[1]
    loaded, _ = exp.run(1).load_model()
    assert torch.isfinite(loaded(input_ids=torch.arange(4)[None]).logits).all()


def eva_model(config):
    """The way to EVA: an adapter that the user's function has initialised from data."""
    model, tokenizer = tiny.create_model(config)
    eva = peft.LoraConfig(
        r=4,
        target_modules=TARGETS,
        init_lora_weights="eva",
        eva_config=peft.EvaConfig(),
        task_type="CAUSAL_LM",
    )
    model = peft.get_peft_model(model, eva)
    rows = [tokenizer(row["prompt"] + row["completion"]) for row in tiny.sft_rows(32)]
    batches = [dict(tokenizer.pad(rows[n : n + 8], return_tensors="pt")) for n in range(0, 32, 8)]
    peft.initialize_lora_eva_weights(model, batches, show_progress_bar=False)
    return model, tokenizer


def test_eva_is_made_in_create_model_fn_and_shared_by_its_runs(experiment, tmp_path):
    exp = experiment()

    exp.run_fit(
        [config("full"), config("full", learning_rate=1e-3)],
        eva_model,
        tiny.sft_rows(16),
        num_chunks=2,
        block=True,
    )

    assert exp._fit.executor.facts()["bases"] == 1
    for run in exp.runs:
        assert run.status == "completed" and run.exact, (run.trace, run.exact)
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")
    made = [p for n, p in eva_model({"model_kwargs": {}})[0].named_parameters() if "lora_A" in n]
    assert all(torch.allclose(p @ p.T, torch.eye(4), atol=1e-4) for p in made)  # as EVA makes them
    loaded, _ = exp.run(1).load_model()
    saved = sliced(exp.run(1))[0]
    there = {n.replace(".default", ""): p for n, p in loaded.named_parameters()}
    assert all(torch.equal(there[n], value) for n, value in saved.items())


REFUSED = {
    "eva": (lora(init_lora_weights="eva"), "initialize_lora_eva_weights, return that model"),
    "cpt": (RFConfig(peft.CPTConfig, task_type="CAUSAL_LM"), "use PromptTuningConfig"),
    "adaption": (
        RFConfig(peft.AdaptionPromptConfig, adapter_len=4, task_type="CAUSAL_LM"),
        "use PrefixTuningConfig",
    ),
    "multitask": (
        RFConfig(peft.MultitaskPromptTuningConfig, num_tasks=2, num_virtual_tokens=2),
        "needs task_ids",
    ),
    "poly": (RFConfig(peft.PolyConfig, r=4, target_modules=TARGETS), "use RFLoraConfig"),
}


@pytest.mark.parametrize("method", REFUSED)
def test_what_trl_cannot_train_is_refused_in_the_cell(experiment, method):
    adapter, text = REFUSED[method]
    exp = experiment()

    with pytest.raises(ConfigError, match=text) as refused:
        exp.run_fit(config("plain").copy(peft_config=adapter), tiny.create_model, tiny.sft_rows(16))

    assert str(refused.value).startswith("run 1: ") and "\n" not in str(refused.value)


@pytest.mark.parametrize("method", ["prompt", "p_tuning", "prefix"])
def test_prompts_are_refused_where_the_loss_does_not_see_them(experiment, method):
    one = RFModelConfig(
        "tiny",
        peft_config=METHODS[method],
        training_args=RFDistillationConfig(max_completion_length=4),
        teacher_model="teacher",
    )

    with pytest.raises(ConfigError, match=r"where prompts are not; use RFLoraConfig"):
        experiment().run_fit(one, tiny.create_model, tiny.grpo_rows(8))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="possible here")
@pytest.mark.parametrize("installed", [False, True])
def test_loftq_is_refused_without_its_package_or_a_gpu(experiment, monkeypatch, installed):
    real = importlib.util.find_spec

    def find_spec(name, *given):
        return installed or None if name == "bitsandbytes" else real(name, *given)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    text = "on a CUDA or XPU GPU, found none" if installed else r"pip install bitsandbytes \(extra"
    adapter = lora(init_lora_weights="loftq", loftq_config={"loftq_bits": 4, "loftq_iter": 1})

    with pytest.raises(ConfigError, match=f"init_lora_weights='loftq'.*{text}.*use.*'pissa'"):
        experiment().run_fit(
            config("plain").copy(peft_config=adapter), tiny.create_model, tiny.sft_rows(16)
        )


def test_an_initialisation_from_data_is_refused_for_a_base_that_nothing_has_prepared(experiment):
    for init in ("corda", "lora_ga"):
        with pytest.raises(ConfigError, match="in a create_model_fn, or use"):
            experiment(init).run_fit(
                config("plain").copy(peft_config=lora(init_lora_weights=init)),
                None,
                tiny.sft_rows(16),
            )
    exp = experiment()
    exp.run_fit(config("plain"), tiny.create_model, tiny.sft_rows(16), num_chunks=2, block=True)
    with pytest.raises(OpError, match="needs data"):
        exp.clone(1, {"peft_config.init_lora_weights": "eva"}).wait(60)
