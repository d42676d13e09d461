"""Installed as the module `rapidfire`, so that `%load_ext rapidfire` works."""

from rapidfire_jupyter.magics import load_ipython_extension, unload_ipython_extension

__all__ = ["load_ipython_extension", "unload_ipython_extension"]
