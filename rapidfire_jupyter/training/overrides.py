"""bitsandbytes' overrides by parameter: each run has its own.

Beside an 8-bit optimizer, transformers has bitsandbytes keep an embedding's moments in 32 bit.
bitsandbytes notes such wishes once per process, by the parameter's place in its optimizer: what one
run asks for its first parameter would hold for the first one of every other run, and the modules
would never be freed.
"""

import importlib
import sys
from typing import Any  # Any: TRL trainers

from rapidfire_jupyter.training.requirements import package_of


def take_own(trainer: Any) -> None:
    """Let a trainer's optimizer be made with a manager of overrides of its own."""
    made, (module, _) = trainer.create_optimizer, package_of(trainer.args.optim)

    def create_optimizer(*given: Any) -> Any:
        if module != "bitsandbytes" and "bitsandbytes" not in sys.modules:
            return made(*given)
        optimizers = importlib.import_module("bitsandbytes.optim.optimizer")
        manager = optimizers.GlobalOptimManager
        before, manager._instance = manager._instance, None
        try:
            return made(*given)
        finally:
            manager._instance = before

    trainer.create_optimizer = create_optimizer
