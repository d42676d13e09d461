"""Fine-tune many LLM configurations at once in a notebook, exactly, and see early which is best."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rapidfire_jupyter.bandit import BanditBoost
    from rapidfire_jupyter.breeding import CloneBest
    from rapidfire_jupyter.choices import Linked, List, Range
    from rapidfire_jupyter.config import RFModelConfig
    from rapidfire_jupyter.data.check import check_data
    from rapidfire_jupyter.data.clean import clean_data
    from rapidfire_jupyter.data.load import load_data
    from rapidfire_jupyter.data.split import split_data
    from rapidfire_jupyter.data.tasks import mix
    from rapidfire_jupyter.experiment import Experiment
    from rapidfire_jupyter.halving import Halving
    from rapidfire_jupyter.learning_faults import (
        Deviation,
        EmptyBatches,
        NonFinite,
        Overfitting,
        Plateau,
        Spike,
    )
    from rapidfire_jupyter.machine_faults import IdleDevice, LowDisk, MemoryGrowth, Slowdown
    from rapidfire_jupyter.magics import load_ipython_extension, unload_ipython_extension
    from rapidfire_jupyter.policies import Phase
    from rapidfire_jupyter.recorded import (
        RFConfig,
        RFDistillationConfig,
        RFDPOConfig,
        RFGRPOConfig,
        RFKTOConfig,
        RFLoraConfig,
        RFRewardConfig,
        RFRLOOConfig,
        RFSFTConfig,
    )
    from rapidfire_jupyter.reviewing import review
    from rapidfire_jupyter.screening import Budget, Outliers, SlowLearners, Threshold
    from rapidfire_jupyter.search import RFGridSearch, RFRandomSearch
    from rapidfire_jupyter.suggestions import RFOptuna

__version__ = "0.1.0"
__all__ = [
    "BanditBoost",
    "Budget",
    "CloneBest",
    "Deviation",
    "EmptyBatches",
    "Experiment",
    "Halving",
    "IdleDevice",
    "Linked",
    "List",
    "LowDisk",
    "MemoryGrowth",
    "NonFinite",
    "Outliers",
    "Overfitting",
    "Phase",
    "Plateau",
    "RFConfig",
    "RFDPOConfig",
    "RFDistillationConfig",
    "RFGRPOConfig",
    "RFGridSearch",
    "RFKTOConfig",
    "RFLoraConfig",
    "RFModelConfig",
    "RFOptuna",
    "RFRLOOConfig",
    "RFRandomSearch",
    "RFRewardConfig",
    "RFSFTConfig",
    "Range",
    "SlowLearners",
    "Slowdown",
    "Spike",
    "Threshold",
    "check_data",
    "clean_data",
    "load_data",
    "load_ipython_extension",
    "mix",
    "review",
    "split_data",
    "unload_ipython_extension",
]

_HOMES = {
    "BanditBoost": "bandit",
    "CloneBest": "breeding",
    "Halving": "halving",
    "Budget": "screening",
    "Outliers": "screening",
    "SlowLearners": "screening",
    "Threshold": "screening",
    "Phase": "policies",
    "Deviation": "learning_faults",
    "EmptyBatches": "learning_faults",
    "NonFinite": "learning_faults",
    "Overfitting": "learning_faults",
    "Plateau": "learning_faults",
    "Spike": "learning_faults",
    "IdleDevice": "machine_faults",
    "LowDisk": "machine_faults",
    "MemoryGrowth": "machine_faults",
    "Slowdown": "machine_faults",
    "Experiment": "experiment",
    "List": "choices",
    "RFModelConfig": "config",
    "Range": "choices",
    "RFGridSearch": "search",
    "RFOptuna": "suggestions",
    "RFRandomSearch": "search",
    "check_data": "data.check",
    "clean_data": "data.clean",
    "load_data": "data.load",
    "mix": "data.tasks",
    "review": "reviewing",
    "split_data": "data.split",
    "load_ipython_extension": "magics",
    "unload_ipython_extension": "magics",
}


def __getattr__(name: str) -> Any:  # Any: the public names
    """Import a public name's module when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'recorded')}"), name)
