"""R-Drop for SFT: two passes under different dropout must agree (Liang et al., NeurIPS 2021).

Per learned token, with the two passes' distributions p and q over the vocabulary and the label y:

    (-log p(y) - log q(y)) / 2 + alpha * (KL(p || q) + KL(q || p)) / 2

as in the authors' own code (github.com/dropreg/R-Drop), whose alpha is 0.1 to 5 and whose dropout
is 0.1. A step costs two forward and backward passes, and holds the logits of both: 2 x learned
tokens x vocabulary numbers, beside the activations of two passes. Evaluation is one plain pass.

This file is copied into a run's plain TRL script, so it needs torch and TRL only.
"""

import functools
from types import SimpleNamespace
from typing import Any  # Any: models, batches and what models return

import torch
from torch import nn
from trl.trainer.sft_trainer import SFTTrainer


def divergence(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Half the sum of both Kullback-Leibler divergences, for each row.

    Args:
        first: Log-probabilities, (N, V).
        second: The other pass's.

    Returns:
        (N,), in nats; 0 where both agree.
    """
    # KL(p || q) + KL(q || p) = sum (p - q) (log p - log q)
    return 0.5 * ((first.exp() - second.exp()) * (first - second)).sum(-1)


class TwoPasses:
    """Stands for a model where TRL computes its loss: the same answer, made of two passes.

    TRL sums `-log_probs` and divides it by the tokens of the whole step, so what it is given as
    log-probability of a token is minus the loss above. Accuracy and entropy are the first pass's.
    """

    def __init__(self, model: Any, alpha: float, measured: list[float]) -> None:
        self._model, self._alpha, self._measured = model, alpha, measured

    def __call__(self, fused_lm_head: bool = False, **inputs: Any) -> Any:
        """Call the model once, or twice where TRL asks for log-probabilities."""
        if not fused_lm_head:
            return self._model(**inputs)
        labels = inputs.pop("labels")[:, 1:]  # (B, T - 1)
        mask = labels != -100
        outputs = [self._model(**inputs) for _ in range(2)]
        first, second = (self._learned(one.logits, mask) for one in outputs)  # (N, V)
        chosen = labels[mask].unsqueeze(-1)
        likelihood = 0.5 * (first + second).gather(-1, chosen).squeeze(-1)
        apart = divergence(first, second)
        self._measured.append(apart.detach().mean().item() if len(apart) else 0.0)
        with torch.no_grad():
            entropy = -(first.exp() * first).sum(-1)
            is_top1 = first.argmax(-1) == chosen.squeeze(-1)
        return SimpleNamespace(
            log_probs=likelihood - self._alpha * apart,
            entropy=entropy,
            is_top1=is_top1,
            label_mask=mask,
            aux_loss=getattr(outputs[0], "aux_loss", None),
        )

    @staticmethod
    def _learned(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Log-probabilities at the positions before learned tokens, in float32."""
        before = logits[:, -mask.size(1) - 1 : -1]  # virtual tokens of prompt tuning come first
        return torch.log_softmax(before[mask.to(before.device)].float(), dim=-1)


class RDropSFTTrainer(SFTTrainer):
    """An SFTTrainer whose training steps use two passes; evaluation stays as it is.

    Args:
        rdrop_alpha: Weight of the divergence, > 0.
        given, named: As for SFTTrainer.

    Raises:
        ValueError: Nothing in the model drops out, so both passes would be the same.
    """

    model: Any

    # With SFTTrainer's signature, against which arguments are checked.
    @functools.wraps(SFTTrainer.__init__)  # type: ignore[misc]
    def __init__(self, *given: Any, rdrop_alpha: float, **named: Any) -> None:
        super().__init__(*given, **named)
        self.rdrop_alpha = rdrop_alpha
        if not any(_drops(module) for module in self.model.modules()):
            raise ValueError(
                f"rdrop_alpha={rdrop_alpha} compares two passes under dropout, but nothing in this "
                "model drops out; set lora_dropout=0.1"
            )

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """TRL's loss of two passes with their divergence on top, which is logged as `rdrop_kl`."""
        if self.model.training:
            model = TwoPasses(model, self.rdrop_alpha, self._metrics["train"]["rdrop_kl"])
        plain: Any = super().compute_loss
        return plain(
            model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
        )


def _drops(module: Any) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    return (getattr(module, "attention_dropout", 0.0) or 0.0) > 0
