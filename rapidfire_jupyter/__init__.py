"""Fine-tune many LLM configurations at once in a notebook, exactly, and see early which is best."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rapidfire_jupyter.choices import List, Range
    from rapidfire_jupyter.config import (
        RFDPOConfig,
        RFGRPOConfig,
        RFLoraConfig,
        RFModelConfig,
        RFSFTConfig,
    )
    from rapidfire_jupyter.experiment import Experiment
    from rapidfire_jupyter.magics import load_ipython_extension, unload_ipython_extension
    from rapidfire_jupyter.search import RFGridSearch, RFRandomSearch

__version__ = "0.1.0"
__all__ = [
    "Experiment",
    "List",
    "RFDPOConfig",
    "RFGRPOConfig",
    "RFGridSearch",
    "RFLoraConfig",
    "RFModelConfig",
    "RFRandomSearch",
    "RFSFTConfig",
    "Range",
    "load_ipython_extension",
    "unload_ipython_extension",
]

_HOMES = {
    "Experiment": "experiment",
    "RFGridSearch": "search",
    "RFRandomSearch": "search",
    "load_ipython_extension": "magics",
    "unload_ipython_extension": "magics",
}


def __getattr__(name: str) -> Any:  # Any: the public names
    """Import a public name's module when it is first used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'config')}"), name)
