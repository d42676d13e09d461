"""A device on which memory runs out, simulated: for tests, and for the GPU checks on a CPU."""

import tiny
import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from rapidfire_jupyter import RFLoraConfig, RFModelConfig, RFSFTConfig

ERRORS = {
    "cuda": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    "python": MemoryError,
    "cpu": lambda: RuntimeError(
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory): "
        "not enough memory"
    ),
}
batches = {"large": 0}


def small_device(config):
    """A model on a device that holds `most` rows; the first `after` larger batches still fit."""
    kwargs = dict(config["model_kwargs"])
    most, after = kwargs.pop("most"), kwargs.pop("after", 0)
    training_only, error = kwargs.pop("training_only", False), kwargs.pop("error", "cuda")
    model = tiny.model(**kwargs)

    def before(module, inputs):
        if inputs[0].shape[0] > most and (torch.is_grad_enabled() or not training_only):
            batches["large"] += 1
            if batches["large"] > after:
                raise ERRORS[error]()

    model.model.embed_tokens.register_forward_pre_hook(before)
    return model, tiny.tokenizer()


def config(rows=5, times=2, model=None, kind=RFSFTConfig, name=None, **given):
    given = {
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "num_train_epochs": 1,
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": times,
        **given,
    }
    return RFModelConfig(
        "tiny",
        peft_config=RFLoraConfig(r=4, target_modules=["q_proj"]),
        training_args=kind(**given),
        model_kwargs={"most": 99, **(model or {})},
        name=name,
    )


class CountSteps(TrainerCallback, ExportableState):
    """A state that moves within steps: a run with it can go back to a checkpoint only."""

    begun = 0

    def on_step_begin(self, args, state, control, **kwargs):
        self.begun += 1

    def state(self):
        return {"args": {}, "attributes": {"begun": self.begun}}
