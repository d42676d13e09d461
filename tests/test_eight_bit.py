"""Optimizers and bases in 8 and 4 bit, where their packages are installed: exact side by side."""

import importlib.util

import pytest
import scarce
import tiny
import torch
from oracle import assert_same, plain, sliced
from safetensors.torch import load_file
from test_ops import at

from rapidfire_jupyter import RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.errors import OpError


def needs(package):
    return pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"pip install {package}"
    )


WIDE = {"hidden": 64}  # parameters of 4,096 values; bitsandbytes keeps smaller ones in 32 bit


def config(optim, peft=True, **given):
    args = {"learning_rate": 1e-2, "per_device_train_batch_size": 4, "logging_steps": 1, **given}
    adapter = RFLoraConfig(r=64, lora_dropout=0.1, target_modules=["q_proj"]) if peft else None
    return RFModelConfig(
        "tiny",
        peft_config=adapter,
        training_args=RFSFTConfig(**args, optim=optim),
        model_kwargs=WIDE,
    )


def dtypes(run):
    """Of the first moments, by the number of the parameter."""
    state = sliced(run)[1]["state"]
    return [one["__bnb_optimizer_quant_state__"]["state1"].dtype for one in state.values()]


@needs("bitsandbytes")
@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_each_run_keeps_its_own_parameters_in_8_bit_and_equals_plain_trl(experiment, tmp_path):
    exp = experiment()
    optims = ["adamw_8bit", "lion_8bit", "paged_adamw_8bit", "ademamix_8bit"]

    exp.run_fit(
        [config("adamw_8bit", peft=False), *map(config, optims), config("adamw_torch")],
        tiny.create_model,
        tiny.sft_rows(16),
        num_chunks=2,
        block=True,
    )

    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert run.exact, run.exact
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")
    whole = dtypes(exp.run(1))
    assert whole[0] == torch.float32 and torch.uint8 in whole[1:]  # embeddings stay in 32 bit
    for run in list(exp.runs)[1:5]:  # and are nobody else's first parameter
        assert set(dtypes(run)) == {torch.uint8}


@needs("bitsandbytes")
def test_a_stop_and_a_warm_clone_keep_the_quantised_moments(experiment, tmp_path):
    exp = experiment()
    asked = at(
        exp,
        1,
        3,
        lambda: [
            exp.clone(1, {"weight_decay": 0.0}, warm=True),
            exp.clone(1, {"lora_alpha": 32}, warm=True),
            exp.stop(1),
        ],
    )

    exp.run_fit(config("adamw_8bit"), tiny.create_model, tiny.sft_rows(16), num_chunks=2)
    exp.run(1).wait()
    clone, refused, stopped = asked[0]
    for handle in (clone, stopped):
        handle.wait(30)
    exp.resume(1).wait(30)
    exp.wait()

    with pytest.raises(OpError, match="scale what the optimizer keeps, and that of 'adamw_8bit'"):
        refused.wait(30)
    assert [run.status for run in exp.runs] == ["completed"] * 2, exp.run(2).trace
    mine, cloned = sliced(exp.run(1)), sliced(exp.run(2))
    assert_same(mine, plain(exp.run(1), tmp_path / "plain"), "stopped")
    assert_same((cloned[0], {**mine[1], "state": cloned[1]["state"]}, []), (*mine[:2], []), "clone")


@needs("torchao")
def test_optimizers_of_torchao_equal_plain_trl_and_are_cloned_warm(experiment, tmp_path):
    exp = experiment()
    cloned = at(exp, 1, 3, lambda: exp.clone(1, {"weight_decay": 0.0}, warm=True))

    exp.run_fit(
        [config("adamw_torch_8bit"), config("adamw_torch_4bit"), config("adamw_torch")],
        tiny.create_model,
        tiny.sft_rows(16),
        num_chunks=2,
        block=True,
    )
    cloned[0].wait(30)
    exp.wait()

    for run in list(exp.runs)[:3]:
        assert run.status == "completed", run.trace
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")
    clone, parent = exp.run(4), exp.run(1)
    assert clone.status == "completed", clone.trace
    final = [load_file(r.folder / "final" / "adapter_model.safetensors") for r in (clone, parent)]
    assert all(torch.equal(final[0][name], value) for name, value in final[1].items())


@needs("bitsandbytes")
def test_runs_share_a_base_in_4_bit_and_equal_plain_trl(experiment, tmp_path):
    from transformers import BitsAndBytesConfig

    tiny.model(**WIDE).save_pretrained(tmp_path / "base")
    tiny.tokenizer().save_pretrained(tmp_path / "base")
    packed = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype="bfloat16"
    )
    one = RFModelConfig(
        str(tmp_path / "base"),
        peft_config=RFLoraConfig(r=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]),
        training_args=config("adamw_torch").training_args,
        model_kwargs={"quantization_config": packed},
    )
    other = one.copy(training_args=config("adamw_8bit").training_args, seed=7)
    exp = experiment()

    exp.run_fit([one, other], train_dataset=tiny.sft_rows(16), num_chunks=2, block=True)

    assert exp._fit.executor.facts()["bases"] == 1
    for run in exp.runs:
        assert run.status == "completed", run.trace
        assert run.exact, run.exact
        assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), f"run {run.id}")


@needs("bitsandbytes")
def test_a_stop_keeps_the_adapter_of_a_base_in_4_bit_in_16_bit(experiment, tmp_path):
    from transformers import BitsAndBytesConfig

    tiny.model(**WIDE).save_pretrained(tmp_path / "base")
    tiny.tokenizer().save_pretrained(tmp_path / "base")
    one = config("adamw_torch").copy(
        model_name=str(tmp_path / "base"),
        model_kwargs={"quantization_config": BitsAndBytesConfig(load_in_4bit=True)},
    )
    exp = experiment()
    stopped = at(exp, 1, 2, lambda: exp.stop(1))

    exp.run_fit(one, train_dataset=tiny.sft_rows(16), num_chunks=2, block=True)
    stopped[0].wait(60)
    exp.resume(1).wait(60)
    exp.wait()

    run = exp.run(1)
    assert run.status == "completed" and run.exact, run.trace
    assert {value.dtype for value in sliced(run)[0].values()} == {torch.bfloat16}
    assert_same(sliced(run), plain(run, tmp_path / "plain"))


@needs("bitsandbytes")
def test_an_adapter_is_merged_into_its_base_in_4_bit_unpacked(experiment, tmp_path):
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    tiny.model(**WIDE).save_pretrained(tmp_path / "base")
    tiny.tokenizer().save_pretrained(tmp_path / "base")
    packed = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype="float32")
    one = config("adamw_torch").copy(
        model_name=str(tmp_path / "base"), model_kwargs={"quantization_config": packed}
    )
    exp = experiment()
    exp.run_fit(one, train_dataset=tiny.sft_rows(16), num_chunks=1, block=True)
    ids = torch.arange(3, 12)[None]  # (1, 9)

    folder = exp.run(1).save(tmp_path / "merged", merged=True)

    merged = AutoModelForCausalLM.from_pretrained(folder)
    assert not getattr(merged, "is_quantized", False)
    with torch.no_grad():
        whole = merged.eval()(ids).logits
        parts = exp.run(1).load_model()[0].eval()(ids).logits
        plain_base = AutoModelForCausalLM.from_pretrained(tmp_path / "base").eval()(ids).logits
    assert (whole - parts).abs().max() < 0.01 < (whole - plain_base).abs().max()


@needs("bitsandbytes")
def test_auto_goes_on_with_an_8_bit_optimizer_before_smaller_batches(experiment, tmp_path):
    one = scarce.config(4, 1, {"most": 3, **WIDE}, optim="adamw_torch")
    one = one.copy(peft_config=RFLoraConfig(r=64, target_modules=["q_proj"]))
    exp = experiment()

    exp.run_fit(
        one, scarce.small_device, tiny.sft_rows(16), num_chunks=2, memory="auto", block=True
    )

    run = exp.run(1)
    assert run.status == "completed", run.trace
    first, second = (e.data["changes"] for e in exp.events if e.kind == "run_adjusted")
    assert first == {"training_args.optim": "adamw_8bit"}
    assert second["training_args.per_device_train_batch_size"] == 2
    assert set(dtypes(run)) == {torch.uint8} and run.exact
    assert_same(sliced(run), plain(run, tmp_path / "plain"))


@needs("bitsandbytes")
def test_states_in_8_bit_are_moved_away_and_back(experiment):
    runs = [config("adamw_8bit", num_train_epochs=1), config("adamw_8bit", peft=False)]
    plenty, small = experiment("plenty"), experiment("small")
    how = {"num_chunks": 4, "block": True}

    plenty.run_fit(runs, tiny.create_model, tiny.sft_rows(16), **how)
    budget = max(run.memory.base + run.memory.own for run in plenty.runs) * 5 // 4
    how |= {"device_memory": budget, "host_memory": "1 GB"}
    small.run_fit(runs, tiny.create_model, tiny.sft_rows(16), **how)

    assert small._fit.executor.moved().in_bytes > 0
    for mine, theirs in zip(small.runs, plenty.runs, strict=True):
        assert mine.status == theirs.status == "completed", mine.trace
        assert not any(event.kind == "run_adjusted" for event in small.events)
        assert_same(sliced(mine), sliced(theirs))
