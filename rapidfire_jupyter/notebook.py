"""The notebook that this process may be the kernel of."""

import sys
from typing import Any


def shell() -> Any:
    """IPython's shell of this process, or None; IPython is not imported for that."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
