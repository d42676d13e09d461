"""Base models, loaded once, and the skeletons of them that runs train on.

A skeleton is a module tree of its own over the SAME storage as the base: config, hooks and adapter
belong to one run, frozen weights exist once. Tensors that a run trains or rewrites are copied.

Any: models, tokenizers and PEFT configs, which share no type, and hyperparameter values.
"""

import copy
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rapidfire_jupyter.arguments import closest
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.data.mapping import chat_template
from rapidfire_jupyter.encoding import encode
from rapidfire_jupyter.errors import ConfigError, RapidFireError
from rapidfire_jupyter.training import adapters

CreateModel = Callable[[Mapping[str, Any]], tuple[Any, Any]]  # Any: a user's model and tokenizer

NEW_HEAD = "rapidfire_new_head"  # a model's attribute: parameters its checkpoint did not have
IN_8_BITS = (
    "a base in 8 bits keeps state in its weights that runs cannot share exactly; load it with "
    "BitsAndBytesConfig(load_in_4bit=True)"
)


class ModelConfig(Mapping[str, Any]):
    """What `create_model_fn` is given: read like a dict, and it remembers what was read.

    Two runs share a base if the function and every value it read are the same.
    """

    def __init__(self, config: RunConfig) -> None:
        model = config.model
        self._values = {
            "model_name": model.model_name,
            "model_type": _model_type(config),
            "model_kwargs": dict(model.model_kwargs or {}),
            "tokenizer": model.tokenizer,
            "tokenizer_kwargs": dict(model.tokenizer_kwargs or {}),
            "trainer_type": config.trainer.name,
            "training_args": dict(getattr(model.training_args, "given", {})),
            "peft_config": dict(getattr(model.peft_config, "given", {})),
            "seed": model.seed,
        }
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        self.read.update(self._values)
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def encoded(self, keys: set[str]) -> dict[str, Any]:
        """The values of `keys`, comparable."""
        return {k: encode(self._values.get(k)) for k in sorted(keys)}


@dataclass
class Base:
    """A base model: the engine's own Parameter objects over the storage that was loaded.

    Attributes:
        trainable: Names of the parameters that were trainable when it was handed over.
        print: What must not change as long as runs share it, by parameter name.
    """

    name: str
    model: Any
    tokenizer: Any
    create_model: CreateModel
    read: dict[str, Any]
    trainable: frozenset[str]
    print: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def trainable_bytes(self) -> int:
        """Bytes of what a run without adapter trains, and so has for itself."""
        named = self.model.named_parameters()
        return sum(p.numel() * p.element_size() for n, p in named if n in self.trainable)


def load_base(
    config: RunConfig,
    create_model: CreateModel,
    device: torch.device,
    name: str,
    before_moving: Callable[[int], None] = lambda size_bytes: None,
) -> Base:
    """Call the user's function once and take over its model without touching it.

    Args:
        before_moving: Called with the model's size before it is put on the device.

    Raises:
        ConfigError: The function gives something other than (model, tokenizer).
    """
    reads = ModelConfig(config)
    result = create_model(reads)
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], nn.Module)):
        raise ConfigError(
            f"create_model_fn must return (model, tokenizer), got {type(result).__name__}; "
            "return the two as a tuple"
        )
    model, tokenizer = result
    if getattr(model, "is_loaded_in_8bit", False):
        raise ConfigError(IN_8_BITS)
    _check_fresh(model)
    trainable = frozenset(n for n, p in model.named_parameters() if p.requires_grad)
    memo: dict[int, Any] = {id(p): _own(p, device) for p in model.parameters()}
    own = copy.deepcopy(model, memo)
    before_moving(sum(p.numel() * p.element_size() for p in own.parameters()))
    if device.type != "cpu":
        own.to(device)
    _drop_traces_of_trainers(own)
    for module in own.modules():  # bitsandbytes would repack shared 4-bit weights in evaluation
        if getattr(module, "support_avx512bf16_for_cpu", False):
            module.support_avx512bf16_for_cpu = False
    base = Base(name, own, tokenizer, create_model, reads.encoded(reads.read), trainable)
    base.print = fingerprint(own)
    return base


def serves(base: Base, config: RunConfig, create_model: CreateModel) -> bool:
    """Whether `config` would get this very base from `create_model`."""
    reads = ModelConfig(config)
    return base.create_model is create_model and reads.encoded(set(base.read)) == base.read


def skeleton(base: Base, config: RunConfig, peft_config: Any, seed: int) -> tuple[Any, Any]:
    """Give a run its own module tree over the base's storage, and a tokenizer of its own.

    Args:
        seed: The run's; what the base's checkpoint had no weights for is drawn from it.
    """
    check_targets(base.model, peft_config)
    adapters.refuse_on_base(config, peft_config, base.model)
    private = private_names(base, peft_config) | set(getattr(base.model, NEW_HEAD, ()))
    if peft_config is not None and getattr(config.model.training_args, "use_vllm", False):
        private |= _matrices(base)  # merged into, and back, whenever vLLM is given the weights
    memo: dict[int, Any] = {id(p): p for n, p in base.model.named_parameters() if n not in private}
    model = copy.deepcopy(base.model, memo)
    if peft_config is None:
        for name, parameter in model.named_parameters():
            if name in base.trainable:
                parameter.requires_grad_(True)
    draw_head(model, seed)
    tokenizer = copy.deepcopy(base.tokenizer)
    if config.model.chat_template is not None:
        tokenizer.chat_template = chat_template(config.model.chat_template)
    return model, tokenizer


def check_targets(model: nn.Module, peft_config: Any) -> None:
    """Refuse target modules that a base does not have; PEFT would pass over them in silence.

    Raises:
        ConfigError: Names the first that matches nothing, and the linear layers there are.
    """
    targets = getattr(peft_config, "target_modules", None)
    if not targets or isinstance(targets, str):
        return  # a pattern, "all-linear", or PEFT's own choice: PEFT refuses what matches nothing
    names = [name for name, _ in model.named_modules()]
    lost = next((t for t in sorted(targets) if not _among(t, names)), None)
    if lost is not None:
        linear = {
            name.rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) or "Linear" in type(module).__name__
        }
        raise ConfigError(
            f"target_modules: no module of the model is called {lost!r}"
            f"{closest(lost, sorted(linear))}; its linear layers are {', '.join(sorted(linear))}"
        )


def _among(target: str, names: list[str]) -> bool:
    return any(name == target or name.endswith(f".{target}") for name in names)


def draw_head(model: Any, seed: int) -> None:
    """Draw the weights that a model's checkpoint did not have, as Hugging Face draws them.

    Linear weights are normal with the config's `initializer_range`, biases zero. The caller's
    random streams stay as they were.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for name in getattr(model, NEW_HEAD, ()):
            parameter = model.get_parameter(name)
            if name.endswith("bias"):
                parameter.zero_()
            else:
                spread = model.config.get_text_config().initializer_range
                drawn = torch.empty(parameter.shape).normal_(0.0, spread)
                parameter.copy_(drawn)


def fingerprint(model: nn.Module) -> dict[str, tuple[Any, ...]]:
    """What tells whether a base was touched: dtype, device and a strided sum by tensor.

    Not its address: what was moved away and back has another one.
    """
    return {name: _tensor_print(p) for name, p in model.named_parameters()}


def check_untouched(base: Base) -> None:
    """Refuse to go on if a shared tensor of the base was changed.

    Raises:
        RapidFireError: Names the first changed tensor and what to do.
    """
    for name, now in fingerprint(base.model).items():
        if base.print[name] != now:
            raise RapidFireError(
                f"shared base weight {name!r} was changed (an initialisation or callback wrote "
                "into it); give this run its own base with a create_model_fn that reads another "
                "value"
            )


def check_adapter_reaches(model: Any) -> None:
    """Check that a change of the adapter changes the plain forward and what `generate` calls.

    Raises:
        RapidFireError: The adapter has no effect: the run would train nothing.
    """
    peft_config: Any = getattr(model, "peft_config", {}).get("default")
    beside = ("modules_to_save", "trainable_tokens")  # they would show in the logits anyway
    trained = [
        p
        for n, p in model.named_parameters()
        if p.requires_grad and peft_config is not None and not any(word in n for word in beside)
    ]
    if not trained:
        return
    # Prompt learning puts its tokens before the base's; the base itself stays as it is.
    ways = (model,) if peft_config.is_prompt_learning else (model, model.get_base_model())
    device = trained[0].device
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    ids = torch.arange(4, device=device).remainder(vocabulary)[None]  # (1, 4)
    training = model.training
    model.eval()
    kept = [p.detach().clone() for p in trained]
    with torch.no_grad():
        before = [_logits(m, ids) for m in ways]
        for parameter in trained:
            parameter.add_(0.5)
        after = [_logits(m, ids) for m in ways]
        for parameter, value in zip(trained, kept, strict=True):
            parameter.data = value
    model.train(training)
    for what, old, new in zip(("forward", "generate"), before, after, strict=False):
        if torch.equal(old, new):
            raise RapidFireError(
                f"the adapter does not reach the model's {what}: something replaced its forward; "
                "return a freshly loaded model from create_model_fn"
            )


def default_create_model(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Load `model_name` from the hub, a local folder, or a GGUF file.

    `model_kwargs` go to `AutoModelForCausalLM.from_pretrained`, `tokenizer_kwargs` to that of the
    tokenizer; code that comes with either is run only if these say `trust_remote_code=True`. A
    reward model gets a head of one number, which each run draws from its own seed.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    name = str(config["model_name"])
    # Where nothing is said, transformers would ask in the cell.
    model_kwargs = {"trust_remote_code": False, **config["model_kwargs"]}
    if name.endswith(".gguf"):
        from transformers import GgufConfig

        # Packed weights cannot be trained, nor shared with an adapter's gradients.
        model_kwargs.setdefault("quantization_config", GgufConfig(dequantize=True))
        model_kwargs.setdefault("gguf_file", Path(name).name)
        name = str(Path(name).parent)
    tokenizer = default_tokenizer(config)
    if config["model_type"] == "sequence_classification":
        model_kwargs.setdefault("num_labels", 1)
        model, report = AutoModelForSequenceClassification.from_pretrained(
            name, output_loading_info=True, **model_kwargs
        )
        setattr(model, NEW_HEAD, sorted(report["missing_keys"]))
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        return model, tokenizer
    return AutoModelForCausalLM.from_pretrained(name, **model_kwargs), tokenizer


def default_tokenizer(config: Mapping[str, Any]) -> Any:
    """The tokenizer of `default_create_model`, without its model."""
    from transformers import AutoTokenizer

    name, given = config["model_name"], config["tokenizer"]
    kwargs = {"trust_remote_code": False, **config["tokenizer_kwargs"]}
    if given is not None and not isinstance(given, str):
        return given
    if str(name).endswith(".gguf"):
        kwargs.setdefault("gguf_file", Path(name).name)
        name = str(Path(name).parent)
    return AutoTokenizer.from_pretrained(given or name, **kwargs)


def with_weights(model: Any, tokenizer: Any, source: Path, seed: int) -> tuple[Any, Any]:
    """Put saved weights on a fresh base: an adapter around it, or all weights into it.

    Args:
        seed: The run's. PiSSA by a randomised SVD takes from the base what its draws say, and does
            so again when the adapter is loaded.
    """
    if (source / "adapter_config.json").exists():
        from peft import PeftModel

        if isinstance(model, PeftModel):  # its own adapter gives way to the saved one
            prompts = model.active_peft_config.is_prompt_learning
            model = model.get_base_model() if prompts else model.unload()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return PeftModel.from_pretrained(model, str(source)), tokenizer
    return type(model).from_pretrained(str(source), dtype=model.dtype), tokenizer


def source_of(function: Any) -> str:
    """A digest of a callable's source, to notice that a cell redefined it. Any: any callable."""
    try:
        text = inspect.getsource(function)
    except (OSError, TypeError):
        text = repr(function)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _model_type(config: RunConfig) -> str:
    """What the head is for: the user's word, else what the trainer needs."""
    if "model_type" in config.model.given:
        return str(config.model.model_type)
    return "sequence_classification" if config.trainer.rows == "Reward" else "causal_lm"


def _own(parameter: nn.Parameter, device: torch.device) -> nn.Parameter:
    if type(parameter) is not nn.Parameter:  # quantised: its class holds the quantisation state
        own = copy.copy(parameter)
        own.requires_grad_(False)
        return own
    return nn.Parameter(parameter.detach(), requires_grad=False)


def private_names(base: Base, peft_config: Any) -> set[str]:
    """Names of the base's parameters that a run trains or rewrites, and so has for itself."""
    if peft_config is None:
        return set(base.trainable)
    private: set[str] = set()
    bias = getattr(peft_config, "bias", "none")
    if bias != "none":
        private |= {n for n, _ in base.model.named_parameters() if n.endswith(".bias")}
    if adapters.rewrites_base(peft_config):
        private |= _matrices(base)
    return private


def _matrices(base: Base) -> set[str]:
    return {name for name, p in base.model.named_parameters() if p.dim() == 2}


def _drop_traces_of_trainers(model: nn.Module) -> None:
    """Undo on our copy what a trainer left on the user's model when it was trained before.

    TRL patches `forward` on the instance with a closure over the model it was made for; accelerate
    marks a model as prepared, and would then not prepare it again.
    """
    for module in model.modules():
        if not hasattr(module, "_hf_hook"):
            for name in ("forward", "_original_forward", "_is_accelerate_prepared"):
                module.__dict__.pop(name, None)


def _check_fresh(model: Any) -> None:
    from peft import PeftModel
    from peft.tuners.tuners_utils import BaseTunerLayer

    wrapped = isinstance(model, PeftModel)
    if not wrapped and any(isinstance(m, BaseTunerLayer) for m in model.modules()):
        raise ConfigError(
            "create_model_fn returned a model that holds adapter layers of an earlier training; "
            "return a freshly loaded model, or the PeftModel itself with peft_config=None"
        )


def _tensor_print(tensor: torch.Tensor) -> tuple[Any, ...]:
    flat = tensor.detach().reshape(-1)
    stride = max(1, flat.numel() // 1024)
    sample = flat[::stride].cpu()  # MPS knows no float64
    total = float(sample.double().sum()) if sample.is_floating_point() else int(sample.long().sum())
    return (tensor.requires_grad, tensor.dtype, str(tensor.device), total)


def _logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=ids).logits
    return logits
