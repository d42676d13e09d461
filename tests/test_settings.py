"""Training arguments that change what a step computes: exact beside a run without them."""

import pytest
import tiny
import torch
from oracle import assert_same, plain, sliced

from rapidfire_jupyter import (
    List,
    RFDPOConfig,
    RFGRPOConfig,
    RFKTOConfig,
    RFLoraConfig,
    RFModelConfig,
    RFSFTConfig,
)
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.training import checkpoints

ON_CPU = not torch.accelerator.is_available()
COMMON = {"learning_rate": 1e-2, "per_device_train_batch_size": 4, "logging_steps": 1}


def lora(**given):
    return RFLoraConfig(**{"r": 4, "target_modules": ["q_proj", "v_proj"], **given})


def sft(adapter=None, **given):
    return RFModelConfig(
        "tiny", peft_config=adapter or lora(), training_args=RFSFTConfig(**COMMON, **given)
    )


def check(exp, folder):
    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert run.exact, run.exact
        assert_same(sliced(run), plain(run, folder / f"plain{run.id}"), f"run {run.id}")


SETTINGS = {
    "neftune": {"neftune_noise_alpha": 5.0},
    "label_smoothing": {"label_smoothing_factor": 0.2},
    "dft": {"loss_type": "dft"},
    "compiled": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
    "bf16": {"bf16": True},
    "float32": {"bf16": False},
    "checkpointing": {"gradient_checkpointing": True},
    "no_checkpointing": {"gradient_checkpointing": False},
    "adafactor": {"optim": "adafactor"},
    "clipping": {"max_grad_norm": 0.01},
    "warm_up": {"warmup_steps": 2, "lr_scheduler_type": "cosine"},
    "emptied_cache": {"torch_empty_cache_steps": 1},
}


@pytest.mark.filterwarnings("ignore:.*label_smoothing_factor:FutureWarning")
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_exact_beside_a_run_without_it(experiment, tmp_path, name):
    exp = experiment()

    exp.run_fit(
        [sft(**SETTINGS[name]), sft(lora(lora_dropout=0.1))],
        tiny.create_model,
        tiny.sft_rows(16),
        tiny.sft_rows(20)[16:],
        num_chunks=2,
        block=True,
    )

    check(exp, tmp_path)
    first, second = (
        next(row["loss"] for row in run.rows if row["step"] == 4 and "loss" in row)
        for run in exp.runs
    )
    assert first != second


def test_noise_on_embeddings_reaches_no_other_runs_reference(experiment, tmp_path):
    noisy = RFDPOConfig(**COMMON, neftune_noise_alpha=5.0)
    quiet = RFDPOConfig(**COMMON)
    exp = experiment()

    exp.run_fit(
        [
            RFModelConfig("tiny", peft_config=lora(), training_args=args)
            for args in (quiet, noisy, quiet.copy(learning_rate=1e-3))
        ],
        tiny.create_model,
        tiny.dpo_rows(12),
        num_chunks=2,
        block=True,
    )

    check(exp, tmp_path)


def test_a_run_whose_noise_begins_with_training_is_known_to_draw(experiment):
    exp = experiment()

    exp.run_fit(
        [sft(neftune_noise_alpha=5.0), sft()],
        tiny.create_model,
        tiny.sft_rows(8),
        num_chunks=1,
        block=True,
    )

    draws = [checkpoints.read_extra(run.checkpoint)["draws"] for run in exp.runs]
    assert draws == [[False, True, []], [False, False, []]]


@pytest.mark.parametrize(
    "args, rows",
    [
        (RFDPOConfig, tiny.dpo_rows),
        (RFKTOConfig, tiny.kto_rows),
        (RFGRPOConfig, tiny.grpo_rows),
    ],
)
def test_label_smoothing_is_refused_where_the_loss_takes_no_notice_of_it(experiment, args, rows):
    config = RFModelConfig(
        "tiny",
        peft_config=lora(),
        training_args=args(label_smoothing_factor=List([0.0, 0.1])),
        reward_funcs=[tiny.reward_length] if args is RFGRPOConfig else None,
    )

    with pytest.raises(ConfigError, match=r"^run 2: label_smoothing_factor=0\.1 is not used by"):
        experiment().run_fit(config, tiny.create_model, rows(8))


@pytest.mark.skipif(not ON_CPU, reason="possible here")
def test_a_cache_in_host_memory_is_refused_without_a_gpu(experiment):
    args = RFGRPOConfig(cache_implementation="offloaded")
    config = RFModelConfig("tiny", training_args=args, reward_funcs=[tiny.reward_length])

    with pytest.raises(ConfigError, match="cache_implementation='offloaded' needs a CUDA GPU"):
        experiment().run_fit(config, tiny.create_model, tiny.grpo_rows(8))


def test_what_torch_keeps_once_per_process_must_be_the_same_for_all_runs(experiment):
    both = sft(full_determinism=List([True, False]))

    with pytest.raises(ConfigError, match="full_determinism is one setting for the whole process"):
        experiment().run_fit(both, tiny.create_model, tiny.sft_rows(8))


def test_label_smoothing_is_refused_with_a_loss_that_has_none(experiment):
    with pytest.raises(ConfigError, match="use loss_type='nll'"):
        experiment().run_fit(
            sft(label_smoothing_factor=0.1, loss_type="dft"), tiny.create_model, tiny.sft_rows(8)
        )


REFUSED = {
    "fp16": ({"fp16": True, "bf16": False}, "fp16=True needs a GPU, found none; use bf16=True"),
    "liger": ({"use_liger_kernel": True}, "use_liger_kernel=True needs a GPU"),
    "offloading": (
        {"activation_offloading": True},
        "takes activations from a GPU, found none; use gradient_checkpointing=True",
    ),
    "8bit": ({"optim": "adamw_8bit"}, r"pip install bitsandbytes \(extra qlora\), or use"),
    "paged": ({"optim": "paged_adamw_32bit"}, r"pip install bitsandbytes \(extra qlora\)"),
    "torchao": ({"optim": "adamw_torch_8bit"}, "pip install torchao, or use"),
    "galore": ({"optim": "galore_adamw"}, "pip install galore-torch, or use"),
}


@pytest.mark.skipif(not ON_CPU, reason="possible here")
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("no_bitsandbytes")
def test_what_needs_a_gpu_or_a_package_is_refused_in_one_line(experiment, name):
    given, text = REFUSED[name]

    with pytest.raises(ConfigError, match=text) as refused:
        experiment().run_fit(sft(**given), tiny.create_model, tiny.sft_rows(8))

    assert str(refused.value).startswith("run 1: ") and "\n" not in str(refused.value)


@pytest.mark.skipif(not ON_CPU, reason="possible here")
def test_compiling_for_a_cpu_without_a_compiler_is_refused(experiment, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")

    with pytest.raises(ConfigError, match=r"found no no-such-compiler; install it, or use"):
        experiment().run_fit(sft(torch_compile=True), tiny.create_model, tiny.sft_rows(8))


@pytest.mark.parametrize(
    "name, instead",
    [
        ("fp8", "use bf16=True"),
        ("mixed_precision", "use bf16=True or fp16=True"),
        ("int8", "load_in_4bit=True"),
        ("int8_activations", "activation_offloading=True"),
        ("quantize_activations", "activation_offloading=True"),
        ("gradient_compression", 'optim="adamw_8bit" saves memory'),
        ("onebit_adam", 'optim="adamw_8bit" saves memory'),
        ("powersgd", 'optim="adamw_8bit" saves memory'),
    ],
)
def test_precisions_that_are_not_there_are_refused_by_name(name, instead):
    with pytest.raises(ConfigError) as refused:
        RFSFTConfig(**{name: True})
    with pytest.raises(ConfigError) as of_model:
        RFModelConfig("tiny", **{name: True})

    for error in (refused, of_model):
        assert f"has no argument {name!r}" in str(error.value) and instead in str(error.value)


def test_one_bit_optimizers_are_refused_by_name():
    with pytest.raises(ConfigError, match="optim must be one of"):
        RFSFTConfig(optim="onebit_adam")
