"""What a config needs of this machine: packages, devices, memory. Asked in the cell.

A model that is loaded by its name is built there without its weights, so its size and the names of
its modules are known before anything is loaded. What a user's own function makes is not.

Any: values of configs, and models.
"""

import importlib.util
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from rapidfire_jupyter.arguments import optimizer_name
from rapidfire_jupyter.config import RunConfig
from rapidfire_jupyter.errors import ConfigError
from rapidfire_jupyter.training import budget, memory, models
from rapidfire_jupyter.training.estimates import optimizer_bytes

# The first that is found in an optimizer's name: its module, and how pip calls it.
_OF_OPTIMIZERS = (
    (r"adamw_torch_\dbit", "torchao", "torchao"),
    ("galore", "galore_torch", "galore-torch"),
    ("apollo", "apollo_torch", "apollo-torch"),
    ("lomo", "lomo_optim", "lomo-optim"),
    ("grokadamw", "grokadamw", "grokadamw"),
    ("schedule_free", "schedulefree", "schedulefree"),
    ("stable_adamw", "optimi", "torch-optimi"),
    ("anyprecision", "torchdistx", "torchdistx"),
    ("xla", "torch_xla", "torch-xla"),
    ("npu", "torch_npu", "torch-npu"),
    ("8bit|4bit|paged|bnb|lion|ademamix", "bitsandbytes", "bitsandbytes (extra qlora)"),
)
_LOADING = ("revision", "token", "cache_dir", "subfolder", "local_files_only")


def check_packages(values: Mapping[str, Any], model_kwargs: Mapping[str, Any]) -> None:
    """Refuse what needs a package that is not installed.

    Args:
        values: Training arguments.

    Raises:
        ConfigError: Names the argument, the package, and what does without.
    """
    optim = optimizer_name(values.get("optim"))
    module, package = package_of(optim)
    if module:
        _need(f"optim={optim!r}", module, package, 'use optim="adamw_torch_fused"')
    if values.get("use_liger_kernel"):
        if not torch.accelerator.is_available():
            raise ConfigError("use_liger_kernel=True needs a GPU, found none; leave it out")
        _need("use_liger_kernel=True", "liger_kernel", "liger-kernel", "leave it out")
    if values.get("use_vllm"):
        _need("use_vllm=True", "vllm", "vllm", "leave it out: transformers generates then")
    if values.get("activation_offloading") and not memory.takes_activations():
        found = torch.accelerator.current_accelerator() or "none"
        raise ConfigError(
            f"activation_offloading=True takes activations from a GPU, found {found}; use "
            "gradient_checkpointing=True"
        )
    cache = str(values.get("cache_implementation") or "")
    if cache.startswith("offloaded") and not torch.cuda.is_available():
        raise ConfigError(
            f"cache_implementation={cache!r} needs a CUDA GPU, found none; leave it out"
        )
    quantised = _facts(model_kwargs.get("quantization_config"))
    method = quantised.get("quant_method", "")
    if quantised.get("load_in_8bit") or quantised.get("_load_in_8bit"):
        raise ConfigError(f"model_kwargs: {models.IN_8_BITS}")
    if getattr(method, "value", method) == "bitsandbytes":
        _need("quantization_config", "bitsandbytes", "bitsandbytes", "leave it out")
    attention = str(model_kwargs.get("attn_implementation", ""))
    for what, wanted in (
        ("use_kernels=True", model_kwargs.get("use_kernels")),
        (f"attn_implementation={attention!r}", "/" in attention),  # one of the hub
    ):
        if wanted:
            _need(f"model_kwargs: {what}", "kernels", "kernels", "leave it out")
    _check_reports(values.get("report_to"))


def package_of(optim: Any) -> tuple[str, str]:
    """The module that an optimizer comes from, and how pip calls it; empty for torch's own."""
    name = optimizer_name(optim)
    return next((one[1:] for one in _OF_OPTIMIZERS if re.search(one[0], name)), ("", ""))


def _need(what: str, module: str, package: str, instead: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ConfigError(
            f"{what} needs a package that is not installed: pip install {package}, or {instead}"
        )


def _facts(quantised: Any) -> Mapping[str, Any]:
    return quantised if isinstance(quantised, Mapping) else vars(quantised) if quantised else {}


def _check_reports(given: Any) -> None:
    from transformers.integrations import integration_utils

    for name in [given] if isinstance(given, str) else given or []:
        there = getattr(integration_utils, f"is_{name.removesuffix('_ml')}_available", None)
        if there is not None and not there():
            raise ConfigError(
                f"report_to={name!r} needs a package that is not installed: pip install "
                f"{name.replace('_', '-')}, or leave it out: the panel shows everything"
            )


def check_devices(model_kwargs: Mapping[str, Any]) -> None:
    """Refuse devices that are not there.

    Raises:
        ConfigError: Names the device, and those there are.
    """
    where = model_kwargs.get("device_map")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for one in where.values() if isinstance(where, Mapping) else [where]:
        match = re.fullmatch(r"cuda(?::(\d+))?", f"cuda:{one}" if _is_index(one) else str(one))
        if match and int(match[1] or 0) >= gpus:
            there = f"cuda:0 to cuda:{gpus - 1}" if gpus else "no CUDA GPU"
            raise ConfigError(
                f"model_kwargs: device_map names {one!r}, but there is {there}; leave device_map "
                "out: runs train on the device there is"
            )
    attention = str(model_kwargs.get("attn_implementation", ""))
    if attention.startswith("flash_attention") and not gpus:
        raise ConfigError(
            f"model_kwargs: attn_implementation={attention!r} needs a CUDA GPU, found none; "
            "use 'sdpa', or leave it out"
        )


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class Outlines:
    """Models by name, without their weights; each is made once for all configs of a fit."""

    def __init__(self) -> None:
        self._made: list[tuple[dict[str, Any], nn.Module | None]] = []

    def get(self, config: RunConfig) -> nn.Module | None:
        """A config's model on no device; None if it cannot be had without loading it."""
        reads = models.ModelConfig(config)
        key = reads.encoded({"model_name", "model_type", "model_kwargs"})
        for known, made in self._made:
            if known == key:
                return made
        try:
            outline = _outline(reads)
        except Exception:  # the run that loads it tells what is wrong
            outline = None
        self._made.append((key, outline))
        return outline


def _outline(reads: Mapping[str, Any]) -> nn.Module | None:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    name, kwargs = str(reads["model_name"]), dict(reads["model_kwargs"])
    if name.endswith(".gguf") or "gguf_file" in kwargs or kwargs.get("trust_remote_code"):
        return None
    given = {k: kwargs[k] for k in _LOADING if k in kwargs}
    config = AutoConfig.from_pretrained(name, trust_remote_code=False, **given)
    auto: Any = AutoModelForCausalLM
    if reads["model_type"] == "sequence_classification":
        auto, config.num_labels = AutoModelForSequenceClassification, kwargs.get("num_labels", 1)
    dtype = kwargs.get("dtype", kwargs.get("torch_dtype", "auto"))
    dtype = (config.dtype or torch.float32) if dtype in ("auto", None) else dtype
    with torch.device("meta"):
        made = auto.from_config(config, trust_remote_code=False)
    outline: nn.Module = made.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    return outline


def check_memory(config: RunConfig, outline: nn.Module, allowed: int, named: str) -> None:
    """Refuse a model whose weights alone, with what training them needs for sure, do not fit.

    Activations, which depend on the rows, are not counted; adapters are small beside the base.

    Args:
        allowed: Bytes there are.
        named: What allows so many, in words.

    Raises:
        ConfigError: Says what is needed of what, and what helps.
    """
    quantised = _facts((config.model.model_kwargs or {}).get("quantization_config"))
    four_bit = bool(quantised.get("load_in_4bit") or quantised.get("_load_in_4bit"))
    parameters = list(outline.parameters())
    weights = sum(_bytes(p, four_bit) for p in parameters)
    needed, parts = weights, f"its weights take {_gb(weights)}"
    if config.model.peft_config is None:
        optim = config.model.training_args.optim
        states = optimizer_bytes(optimizer_name(optim), parameters)
        needed = 2 * weights + states
        parts += f", their gradients as much, and its optimizer's states {_gb(states)}"
    if needed > allowed:
        smaller = "a smaller model"
        if not quantised and parameters[0].dtype == torch.float32:
            smaller = "16 bit: model_kwargs={'dtype': 'bfloat16'}, a smaller model"
        adapter = "" if config.model.peft_config is not None else "peft_config=RFLoraConfig(...), "
        raise ConfigError(
            f"{parts}, and {named} {_gb(allowed)}; use {adapter}{smaller}, or a base in "
            "4 bit: model_kwargs={'quantization_config': BitsAndBytesConfig(load_in_4bit=True)}"
        )


def _bytes(parameter: torch.Tensor, four_bit: bool) -> int:
    if four_bit and parameter.dim() == 2:
        return parameter.numel() // 2
    return parameter.numel() * parameter.element_size()


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e8 else budget.mib(size_bytes)


def check_all(
    configs: list[RunConfig], create_model: models.CreateModel, limit: int | None, relieved: bool
) -> None:
    """Refuse configs that this machine cannot train, as far as that is known before it loads them.

    Args:
        limit: Bytes that `device_memory` allows; None: what the device has.
        relieved: A run that does not fit may be changed until it does.

    Raises:
        ConfigError: Names the first of them by its number.
    """
    outlines = Outlines()
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    allowed = budget.device_bytes(device) if limit is None else limit
    named = "the device has" if limit is None else "device_memory allows"
    for number, config in enumerate(configs, start=1):
        try:
            check_devices(config.model.model_kwargs or {})
            by_name = create_model is models.default_create_model
            outline = outlines.get(config) if by_name else None
            if outline is not None:
                models.check_targets(outline, config.model.peft_config)
                if not relieved:
                    check_memory(config, outline, allowed, named)
        except ConfigError as error:
            raise ConfigError(f"run {number}: {error}") from error
