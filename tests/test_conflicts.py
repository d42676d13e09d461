"""Arguments that TRL refuses together are refused in the cell, and only those."""

import warnings

import pytest
import tiny
import trl
from datasets import Dataset

from rapidfire_jupyter import (
    RFDPOConfig,
    RFGridSearch,
    RFGRPOConfig,
    RFKTOConfig,
    RFLoraConfig,
    RFModelConfig,
    RFRLOOConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.conflicts import check_together
from rapidfire_jupyter.errors import ConfigError

LORA = RFLoraConfig(r=4, target_modules=["q_proj"])
ROWS = {
    "SFT": tiny.sft_rows,
    "DPO": tiny.dpo_rows,
    "KTO": tiny.kto_rows,
    "GRPO": tiny.grpo_rows,
    "RLOO": tiny.grpo_rows,
}
EXO = RFDPOConfig(loss_type=["sigmoid", "exo_pair"])
SYNC = {"sync_ref_model": True}
SELECTIVE = {"selective": True}
REFUSED = {
    "exo": (EXO, None, "loss_type='exo_pair' needs label_smoothing > 0, got 0.0; set "),
    "weighting": (
        RFDPOConfig(loss_type="aot", use_weighting=True),
        None,
        "got loss_type='aot', which sorts a batch; drop one",
    ),
    "divergence": (
        RFDPOConfig(loss_type="apo_zero", f_divergence_type="js_divergence"),
        None,
        "got loss_type='apo_zero'; leave f_divergence_type out",
    ),
    "sync_dpo": (RFDPOConfig(**SYNC), LORA, "got peft_config=RFLoraConfig(r=4"),
    "sync_kto": (RFKTOConfig(**SYNC), LORA, "whose reference is its base; leave sync_ref_model"),
    "sync_grpo": (RFGRPOConfig(**SYNC, beta=0.1), LORA, "or train all weights (peft_config=None)"),
    "sync_rloo": (RFRLOOConfig(**SYNC), LORA, "or train all weights (peft_config=None)"),
    "ahead": (RFDPOConfig(**SYNC, precompute_ref_log_probs=True), None, "asks once; drop one"),
    "no_beta": (RFGRPOConfig(**SYNC), None, "got beta=0.0, which uses none; set beta=0.04"),
    "one_row": (
        RFKTOConfig(per_device_train_batch_size=1),
        None,
        "per_device_train_batch_size must be >= 2, got 1; set 2, or loss_type='apo_zero_unpaired'",
    ),
    "order": (
        RFKTOConfig(train_sampling_strategy="random"),
        None,
        "train_sampling_strategy must be 'sequential', got 'random'; leave it out",
    ),
    "padding_free": (RFSFTConfig(padding_free=True), None, "got max_length=1024; set max_length=N"),
    "selective": (
        RFSFTConfig(gradient_checkpointing_kwargs=SELECTIVE, gradient_checkpointing=False),
        None,
        "needs gradient_checkpointing=True, got False",
    ),
    "reentrant": (
        RFSFTConfig(gradient_checkpointing_kwargs={**SELECTIVE, "use_reentrant": True}),
        None,
        "leave 'use_reentrant' out",
    ),
}


def build(args, peft=None, **more):
    rewards = [tiny.reward_length] if isinstance(args, (RFGRPOConfig, RFRLOOConfig)) else None
    model = RFModelConfig(
        "tiny", training_args=args, peft_config=peft, reward_funcs=rewards, **more
    )
    return model.build()


def trls_trainer(config, folder):
    """What TRL makes of a config by itself."""
    args = config.model.training_args.build(output_dir=str(folder), report_to="none", use_cpu=True)
    peft, more = config.model.peft_config, {}
    if config.model.reward_funcs:
        more["reward_funcs"] = config.model.reward_funcs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(trl, f"{config.trainer.name}Trainer")(
            model=tiny.model(),
            args=args,
            train_dataset=Dataset.from_list(ROWS[config.trainer.name](8)),
            processing_class=tiny.tokenizer(),
            peft_config=None if peft is None else peft.build(),
            **more,
        )


@pytest.mark.parametrize("name", REFUSED)
def test_what_trl_refuses_is_refused_in_one_line(name, tmp_path):
    args, peft, text = REFUSED[name]
    config = build(args, peft)

    with pytest.raises(ConfigError) as told:
        check_together(config)
    with pytest.raises((ValueError, NotImplementedError)):
        trls_trainer(config, tmp_path)

    assert text in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    "args, peft",
    [
        (EXO.copy(label_smoothing=1e-3), LORA),
        (RFDPOConfig(loss_type="hinge", f_divergence_type="js_divergence"), LORA),
        (RFKTOConfig(per_device_train_batch_size=2), LORA),
        (RFKTOConfig(per_device_train_batch_size=1, loss_type="apo_zero_unpaired"), LORA),
        (RFSFTConfig(padding_free=True, max_length=None), None),
        (RFSFTConfig(gradient_checkpointing_kwargs=SELECTIVE), None),
    ],
)
def test_what_trl_takes_is_taken(args, peft, tmp_path):
    config = build(args, peft)

    check_together(config)
    assert trls_trainer(config, tmp_path)


def test_what_else_is_given_to_the_trainer_is_looked_at():
    for args, more, text in (
        (RFSFTConfig(packing=True), {"data_collator": print}, "packing=True has its own data_coll"),
        (RFSFTConfig(loss_type="dft"), {"compute_loss_func": print}, "are two losses; drop one"),
    ):
        with pytest.raises(ConfigError, match=text):
            check_together(build(args, **more))
    with pytest.raises(ConfigError, match=r"'quantization_config'; give RFModelConfig\(model_kw"):
        RFModelConfig("tiny", quantization_config=object())


def test_runs_and_changes_are_refused_in_the_cell(experiment):
    from rapidfire_jupyter.op_args import clone

    exp = experiment()
    good = build(EXO.copy(label_smoothing=1e-3), LORA)

    with pytest.raises(ConfigError, match=r"^run 2: loss_type='exo_pair' needs label_smoothing"):
        exp.run_fit(
            RFGridSearch([good.model, good.model.copy(training_args=EXO)], "DPO"),
            tiny.create_model,
            tiny.dpo_rows(8),
        )
    assert not list(exp.events)
    with pytest.raises(ConfigError, match="loss_type='exo_pair' needs label_smoothing"):
        clone(1, {"label_smoothing": 0.0}, False, None, False, good, "user")
