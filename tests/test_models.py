"""Base models: loaded once, shared by all runs, untouched; every kind of adapter trains on them."""

import copy
import json
import types

import pytest
import tiny
import torch
from oracle import assert_same, plain, sliced
from safetensors.torch import load_file
from test_ops import at

from rapidfire_jupyter import List, RFGRPOConfig, RFLoraConfig, RFModelConfig, RFSFTConfig
from rapidfire_jupyter.errors import ConfigError, RapidFireError
from rapidfire_jupyter.search import as_runs
from rapidfire_jupyter.training import models

CPU = torch.device("cpu")
SEEN = {}  # what callbacks saw, by learning rate
IDS = torch.arange(8)[None]  # (1, 8)


class Look(tiny.Callback):
    """Notes where the frozen and the trained weights of a run lie."""

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        SEEN[args.learning_rate] = {
            frozen: {p.data_ptr() for p in model.parameters() if p.requires_grad is not frozen}
            for frozen in (True, False)
        }


def lora(**given):
    return RFLoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **given})


def config(peft=None, model=None, **given):
    args = {"learning_rate": 1e-2, "per_device_train_batch_size": 2, "logging_steps": 1}
    args |= {"num_train_epochs": 1, **given}
    return RFModelConfig(
        "tiny", peft_config=peft, training_args=RFSFTConfig(**args), **(model or {})
    )


def base_of(create, peft=None, model=None):
    run = config(peft or lora(), model).build()
    return models.load_base(run, create, CPU, "base-1"), run


def picture(model):
    """All that must stay as it is in a model of the user's."""
    return {
        "weights": {n: p.detach().clone() for n, p in model.named_parameters()},
        "addresses": {n: p.data_ptr() for n, p in model.named_parameters()},
        "trained": {n: p.requires_grad for n, p in model.named_parameters()},
        "gradients": {n: p.grad is None for n, p in model.named_parameters()},
        "modules": {n: (type(m), m.training, sorted(vars(m))) for n, m in model.named_modules()},
        "config": repr(model.config.to_dict()),
        "generation": repr(model.generation_config.to_dict()),
    }


def assert_unchanged(model, before):
    now = picture(model)
    weights, kept = now.pop("weights"), before.pop("weights")
    assert now == before
    assert all(torch.equal(weights[n], kept[n]) for n in kept)


# ---- skeletons ----


def test_skeletons_of_three_runs_lie_on_the_storage_of_the_users_model():
    from peft import get_peft_model

    mine = tiny.model()
    before = picture(mine)
    base, _ = base_of(lambda config: (mine, tiny.tokenizer()))
    for given in ({"r": 4}, {"r": 8, "target_modules": "all-linear"}, {"use_dora": True}):
        run = config(lora(**given)).build()
        peft_config = run.model.peft_config.build()
        skeleton, tokenizer = models.skeleton(base, run, peft_config, 42)
        wrapped = get_peft_model(skeleton, peft_config)

        frozen = {p.data_ptr() for p in wrapped.parameters() if not p.requires_grad}
        assert frozen == {p.data_ptr() for p in base.model.parameters()}
        assert frozen == set(before["addresses"].values())
        assert skeleton.config is not base.model.config and tokenizer is not base.tokenizer

    models.check_untouched(base)
    assert_unchanged(mine, before)


def test_a_bases_parameters_are_its_own_objects_so_freezing_them_freezes_nothing_of_the_users():
    mine = tiny.model()
    base, _ = base_of(lambda config: (mine, tiny.tokenizer()))

    assert all(p.requires_grad for p in mine.parameters())
    assert not any(p.requires_grad for p in base.model.parameters())
    assert not {id(p) for p in mine.parameters()} & {id(p) for p in base.model.parameters()}


def test_tied_weights_stay_tied_in_a_skeleton_shared_or_private():
    def tied(config):
        made = tiny.model()
        made.config.tie_word_embeddings = True
        made.tie_weights()
        return made, tiny.tokenizer()

    base, run = base_of(tied)
    shared, _ = models.skeleton(base, run, run.model.peft_config.build(), 42)
    private, _ = models.skeleton(base, config().build(), None, 42)

    for model, same in ((shared, True), (private, False)):
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        assert embedding is head
        on_base = embedding.data_ptr() == base.model.get_input_embeddings().weight.data_ptr()
        assert on_base is same and embedding.requires_grad is not same


def test_only_what_the_user_left_trainable_is_copied_and_trained():
    def partly_frozen(config):
        made = tiny.model()
        for name, parameter in made.named_parameters():
            parameter.requires_grad_("layers.1." in name)
        return made, tiny.tokenizer()

    base, run = base_of(partly_frozen, model={"seed": 1})
    skeleton, _ = models.skeleton(base, run, None, 42)

    where = {n: p.data_ptr() for n, p in base.model.named_parameters()}
    for name, parameter in skeleton.named_parameters():
        assert parameter.requires_grad is ("layers.1." in name)
        assert (parameter.data_ptr() == where[name]) is ("layers.1." not in name)


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_4", "olora"])
def test_an_initialisation_that_rewrites_weights_gets_weights_of_its_own(init):
    from peft import get_peft_model

    base, _ = base_of(lambda config: (tiny.model(), tiny.tokenizer()))
    run = config(lora(init_lora_weights=init)).build()
    peft_config = run.model.peft_config.build()
    wrapped = get_peft_model(models.skeleton(base, run, peft_config, 42)[0], peft_config)
    target = "model.layers.0.self_attn.q_proj"

    models.check_untouched(base)
    own = wrapped.get_base_model().get_submodule(target).base_layer.weight
    assert not torch.equal(own, base.model.get_submodule(target).weight)


def test_an_adapter_that_is_merged_for_vllm_is_merged_into_weights_of_its_own():
    from peft import get_peft_model

    base, _ = base_of(lambda config: (tiny.model(), tiny.tokenizer()))
    given = {"training_args": RFGRPOConfig(use_vllm=True), "reward_funcs": [tiny.reward_length]}
    (run,) = as_runs(config(lora()).copy(**given), "GRPO")
    peft_config = run.model.peft_config.build()
    wrapped = get_peft_model(models.skeleton(base, run, peft_config, 42)[0], peft_config)
    for layer in wrapped.modules():
        if hasattr(layer, "lora_B"):
            torch.nn.init.normal_(layer.lora_B["default"].weight)

    wrapped.merge_adapter()
    wrapped.unmerge_adapter()  # not back to the same bits

    models.check_untouched(base)


def test_a_changed_base_is_noticed_and_named():
    base, _ = base_of(lambda config: (tiny.model(), tiny.tokenizer()))
    models.check_untouched(base)

    with torch.no_grad():
        base.model.lm_head.weight.mul_(1.01)

    with pytest.raises(RapidFireError, match=r"shared base weight 'lm_head\.weight' was changed"):
        models.check_untouched(base)


# ---- the adapter reaches ----


def wrapped(model=None):
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model or tiny.model(), LoraConfig(r=4, target_modules=["q_proj"]))


def test_an_adapter_that_reaches_forward_and_generate_is_left_as_it_was():
    model = wrapped().train()
    before = {n: (p.data_ptr(), p.detach().clone()) for n, p in model.named_parameters()}

    models.check_adapter_reaches(model)

    assert model.training
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name][1]) and parameter.grad is None, name


@pytest.mark.parametrize("where", ["forward", "generate"])
def test_a_forward_over_another_model_is_refused_loudly(where):
    model, other = wrapped(), tiny.model()
    hidden = model if where == "forward" else model.get_base_model()

    def forward(self, *args, **kwargs):
        return other(*args, **kwargs)

    hidden.forward = types.MethodType(forward, hidden)

    with pytest.raises(RapidFireError, match=r"does not reach the model's .*freshly loaded model"):
        models.check_adapter_reaches(model)


def test_a_model_without_an_adapter_has_nothing_to_check():
    models.check_adapter_reaches(tiny.model())


def used_by_trl(peft=False):
    """A model that a plain TRL trainer was made for, and trained a step, before."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    mine = tiny.model()
    args = SFTConfig(
        output_dir="unused", use_cpu=True, report_to="none", save_strategy="no", max_steps=1,
        disable_tqdm=True, learning_rate=0.0,
    )  # fmt: skip
    trainer = SFTTrainer(
        model=mine,
        args=args,
        train_dataset=Dataset.from_list(tiny.sft_rows(4)),
        processing_class=tiny.tokenizer(),
        peft_config=LoraConfig(target_modules=["q_proj"]) if peft else None,
    )
    trainer.train()
    return mine


@pytest.mark.slow
def test_a_base_once_used_by_a_trl_trainer_trains_as_a_fresh_one(experiment, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = used_by_trl()
    patched = [n for n, m in mine.named_modules() if "forward" in vars(m)]
    before = picture(mine)
    runs = [config(lora()), config(lora(target_modules=["v_proj"]))]
    exp, fresh = experiment("used"), experiment("fresh")

    exp.run_fit(runs, lambda config: (mine, tiny.tokenizer()), tiny.sft_rows(8), num_chunks=2)
    fresh.run_fit(runs, tiny.create_model, tiny.sft_rows(8), num_chunks=2)
    exp.wait()
    fresh.wait()

    assert patched  # else this shows nothing
    for one, other in zip(exp.runs, fresh.runs, strict=True):
        assert one.status == "completed", one.trace
        assert_same(sliced(one), sliced(other), one.name)
    assert_unchanged(mine, before)


@pytest.mark.slow
def test_a_base_that_somebody_put_adapters_into_is_refused_or_trained_as_a_fresh_one(
    experiment, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    mine = used_by_trl(peft=True)  # its q_proj are LoRA layers now
    exp, fresh = experiment("used"), experiment("fresh")
    runs = [config(lora(target_modules=["v_proj"]))]

    exp.run_fit(runs, lambda config: (mine, tiny.tokenizer()), tiny.sft_rows(8), num_chunks=2)
    fresh.run_fit(runs, tiny.create_model, tiny.sft_rows(8), num_chunks=2)
    exp.wait()
    fresh.wait()

    run = exp.run(1)
    if run.status == "failed":
        assert "fresh" in run.error and "adapter" in run.error
    else:
        assert_same(sliced(run), sliced(fresh.run(1)))


# ---- whole fits ----


def biased(config):
    """A model with biases, which LlamaConfig has only if asked."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        made = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
                pad_token_id=0, bos_token_id=1, eos_token_id=2, attention_bias=True, mlp_bias=True,
            )
        )  # fmt: skip
    return made, tiny.tokenizer()


RANDOM_SVD = lora(init_lora_weights="pissa_niter_4")
COMPARED_ELSEWHERE = (lora(), lora(r=8, target_modules="all-linear"), RANDOM_SVD)
KINDS = [
    lora(),
    lora(use_dora=True, lora_dropout=0.1),
    lora(init_lora_weights="pissa"),
    lora(bias="all"),
    lora(modules_to_save=["lm_head"]),
    lora(r=8, target_modules="all-linear"),
    RANDOM_SVD,
    None,
]


@pytest.mark.slow
def test_every_kind_of_adapter_and_a_full_fine_tune_equal_plain_trl_on_one_base(
    experiment, tmp_path
):
    exp = experiment()
    runs = [
        config(kind, {"callbacks": [Look]}, learning_rate=1e-2 + n / 1e4)
        for n, kind in enumerate(KINDS)
    ]
    SEEN.clear()
    exp.run_fit(runs, biased, tiny.sft_rows(10), num_chunks=2, block=True)

    base = exp._fit.executor._bases[0]
    models.check_untouched(base)
    assert len(exp._fit.executor._bases) == 1
    shared = {p.data_ptr() for p in base.model.parameters()}
    for n, run in enumerate(exp.runs):
        assert run.status == "completed", run.trace
        assert run.exact, run.exact
        seen = SEEN[1e-2 + n / 1e4]
        assert not seen[False] & shared, f"{run.name} trains a shared weight"
        if KINDS[n] is not None and KINDS[n].bias == "none":
            on_base = len(seen[True] & shared) / len(shared)
            assert on_base == 1.0 or "pissa" in str(KINDS[n].init_lora_weights), run.name
        if KINDS[n] not in COMPARED_ELSEWHERE:
            assert_same(sliced(run), plain(run, tmp_path / f"plain{run.id}"), run.name)


class Answer(tiny.Callback):
    """Notes what a run's model computes when its training ends."""

    def on_train_end(self, args, state, control, model=None, **kwargs):
        training = model.training
        with torch.no_grad():
            SEEN[args.learning_rate] = model.eval()(input_ids=IDS).logits.clone()
        model.train(training)


@pytest.mark.slow
def test_the_models_of_finished_runs_load_and_compute_what_they_computed_in_training(experiment):
    exp = experiment()
    SEEN.clear()

    exp.run_fit(
        [
            config(k, {"callbacks": [Answer]}, learning_rate=1e-2 + n / 1e4, bf16=False)
            for n, k in enumerate(KINDS)
        ],
        biased,
        tiny.sft_rows(4),
        num_chunks=1,
        block=True,
    )

    with torch.no_grad():
        untrained = biased({})[0].eval()(input_ids=IDS).logits
        for n, run in enumerate(exp.runs):
            assert run.status == "completed", run.trace
            model, tokenizer = run.load_model()
            logits = model.eval()(input_ids=IDS).logits
            tolerance = 1e-4 if "pissa" in repr(KINDS[n]) else 0.0  # its base is split anew
            torch.testing.assert_close(logits, SEEN[1e-2 + n / 1e4], rtol=0, atol=tolerance)
            assert not torch.equal(logits, untrained), run.name
            assert tokenizer.decode(tokenizer("my order")["input_ids"]) == "my order"


def test_an_adapter_that_the_user_made_is_copied_for_each_run_and_stays_as_it_was(experiment):
    mine = wrapped()
    before = picture(mine)
    exp = experiment()

    exp.run_fit(
        config(None, learning_rate=List([1e-2, 1e-3])),
        lambda config: (mine, tiny.tokenizer()),
        tiny.sft_rows(8),
        num_chunks=2,
        block=True,
    )

    finals = []
    for run in exp.runs:
        assert run.status == "completed", run.trace
        finals.append(load_file(str(run.folder / "final" / "adapter_model.safetensors")))
    key = next(k for k in finals[0] if "lora_B" in k)
    assert finals[0][key].any() and finals[1][key].any()
    assert not torch.equal(finals[0][key], finals[1][key])
    assert len(exp._fit.executor._bases) == 1
    assert_unchanged(mine, before)


def in_16_bit(config):
    """A base and an adapter in bfloat16, where PEFT would make the adapter in float32."""
    from peft import LoraConfig, get_peft_model

    base = tiny.model(dtype=torch.bfloat16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        adapter = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
        return get_peft_model(base, adapter, autocast_adapter_dtype=False), tiny.tokenizer()


def test_an_adapter_in_16_bit_is_in_16_bit_after_a_stop(experiment, tmp_path):
    exp = experiment()
    stopped = at(exp, 1, 2, lambda: exp.stop(1))

    exp.run_fit(config(None), in_16_bit, tiny.sft_rows(16), num_chunks=2, block=True)
    stopped[0].wait(60)
    exp.resume(1).wait(60)
    exp.wait()

    run = exp.run(1)
    assert run.status == "completed" and run.exact, run.trace
    assert {value.dtype for value in sliced(run)[0].values()} == {torch.bfloat16}
    assert_same(sliced(run), plain(run, tmp_path / "plain"))


def test_a_cached_object_handed_out_each_time_stays_as_it_was(experiment):
    mine, tokenizer = tiny.model(), tiny.tokenizer()
    tokenizer.pad_token = None
    mine.config.pad_token_id = None
    mine.train()
    before, said = picture(mine), (repr(tokenizer), tokenizer.padding_side)
    ids = torch.arange(6)[None]
    logits = copy.deepcopy(mine).eval()(input_ids=ids).logits
    exp = experiment()

    exp.run_fit(
        config(
            lora(target_modules=List([["q_proj"], ["v_proj"]])),
            gradient_checkpointing=List([True, False]),
        ),
        lambda config: (dict(config) and mine, tokenizer),  # reads all: a base for each config
        tiny.sft_rows(8),
        num_chunks=2,
        block=True,
    )

    for run in exp.runs:
        assert run.status == "completed", run.trace
        final = load_file(str(run.folder / "final" / "adapter_model.safetensors"))
        wanted = run.config["peft_config.target_modules"][0]
        assert all(wanted in name for name in final) and len(final) == 4
    assert len(exp._fit.executor._bases) == 4
    assert_unchanged(mine, before)
    assert torch.equal(copy.deepcopy(mine).eval()(input_ids=ids).logits, logits)
    assert (repr(tokenizer), tokenizer.padding_side) == said and tokenizer.pad_token is None


@pytest.mark.slow
def test_create_model_fn_is_called_once_for_each_distinct_set_of_values_it_reads(experiment):
    calls = []

    def create(config):
        calls.append((config["model_kwargs"]["seed"], config["seed"]))
        return tiny.model(seed=config["model_kwargs"]["seed"]), tiny.tokenizer()

    exp = experiment()

    exp.run_fit(
        config(
            lora(r=List([2, 4])),
            {"model_kwargs": {"seed": 1}, "seed": List([None, 7])},
            max_steps=1,
        ),
        create,
        tiny.sft_rows(4),
        num_chunks=1,
        block=True,
    )

    assert len(exp.runs) == 4 and {run.status for run in exp.runs} == {"completed"}
    assert sorted(calls, key=str) == [(1, 7), (1, None)]
    assert exp._fit.executor.facts()["bases"] == 2


def test_a_config_is_read_like_a_dict_and_remembers_what_was_read():
    run = config(lora(r=2), {"seed": 3, "model_kwargs": {"a": 1}}).build()

    for read, keys in (
        (lambda c: c["model_name"], {"model_name"}),
        (lambda c: c.get("seed"), {"seed"}),
        (lambda c: dict(c["model_kwargs"]), {"model_kwargs"}),
        (lambda c: "seed" in c, {"seed"}),
    ):
        reads = models.ModelConfig(run)
        read(reads)
        assert reads.read == keys
    reads = models.ModelConfig(run)
    assert dict(reads)["seed"] == 3 and reads.read == set(reads)
    with pytest.raises(KeyError):
        reads["learning_rate"]
    assert reads.get("nothing", 5) == 5 and len(reads) == len(dict(reads))


@pytest.mark.parametrize(
    ("gives", "got"),
    [
        (lambda: None, "NoneType"),
        (lambda: tiny.model(), "LlamaForCausalLM"),
        (lambda: [tiny.model(), tiny.tokenizer()], "list"),
        (lambda: (tiny.model(), tiny.tokenizer(), 1), "tuple"),
        (lambda: (tiny.tokenizer(), tiny.model()), "tuple"),
        (lambda: {"model": tiny.model()}, "dict"),
    ],
)
def test_a_create_model_fn_that_gives_something_else_is_refused(gives, got):
    with pytest.raises(
        ConfigError,
        match=rf"create_model_fn must return \(model, tokenizer\), got {got}; return the two",
    ):
        base_of(lambda config: gives())


def test_a_create_model_fn_that_fails_for_one_config_costs_only_its_runs(experiment):
    def create(config):
        if config["seed"] == 1:
            raise OSError("no such model: nobody/nothing")
        if config["seed"] == 2:
            return tiny.model()
        return tiny.model(), tiny.tokenizer()

    exp = experiment()

    exp.run_fit(
        config(lora(), {"seed": List([None, 1, 2, 3])}, max_steps=2),
        create,
        tiny.sft_rows(4),
        num_chunks=1,
        block=True,
    )

    assert [run.status for run in exp.runs] == ["completed", "failed", "failed", "completed"]
    assert exp.run(2).error == "OSError: no such model: nobody/nothing"
    assert "in create" in exp.run(2).trace
    assert exp.run(3).error.startswith(
        "create_model_fn must return (model, tokenizer), got LlamaForCausalLM"
    )
    assert exp.run(1).exact and exp.run(4).exact


def test_a_run_that_writes_into_the_shared_base_is_found_out(experiment):
    class Vandal(tiny.Callback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            with torch.no_grad():
                model.get_base_model().lm_head.weight.add_(1e-3)

    exp = experiment()

    exp.run_fit(
        [config(lora(), max_steps=2), config(lora(), {"callbacks": [Vandal]}, max_steps=2)],
        tiny.create_model,
        tiny.sft_rows(4),
        num_chunks=1,
        block=True,
    )

    assert not exp.run(2).exact
    assert "shared base weight 'lm_head.weight' was changed" in repr(exp.run(2).exact)


CODE = """
import pathlib
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

pathlib.Path({ran!r}).open("a").write("ran ")

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig

class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


def test_code_that_comes_with_a_model_runs_only_where_the_user_says_so(tmp_path, monkeypatch):
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder, ran = tmp_path / "own", tmp_path / "ran"
    tiny.model().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    (folder / "own.py").write_text(CODE.format(ran=str(ran)))
    for name, codes in (
        ("config", {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}),
        ("tokenizer_config", {"AutoTokenizer": [None, "own.OwnTokenizer"]}),
    ):
        file = folder / f"{name}.json"
        told = json.loads(file.read_text()) | {"auto_map": codes, "model_type": "own"}
        told.pop("tokenizer_class", None)
        file.write_text(json.dumps(told))

    def load(**given):
        run = config(lora(), given).copy(model_name=str(folder)).build()
        return models.default_create_model(models.ModelConfig(run))

    trusted = {"trust_remote_code": True}
    monkeypatch.setattr("builtins.input", lambda *args: pytest.fail("it asked in the cell"))
    for given in ({}, {"model_kwargs": trusted}, {"tokenizer_kwargs": trusted}):
        ran.unlink(missing_ok=True)
        with pytest.raises(ValueError, match="trust_remote_code=True"):
            load(**given)
        if "tokenizer_kwargs" not in given:
            assert not ran.exists()

    model, tokenizer = load(model_kwargs=trusted, tokenizer_kwargs=trusted)
    assert type(model).__name__ == "OwnModel" and type(tokenizer).__name__ == "OwnTokenizer"
    assert ran.exists()
