"""Big JavaScript libraries: in the package, and sent to a page when a view first asks for one."""

from pathlib import Path

LIBRARIES = {"plotly": "plotly-basic.min.js"}  # with its licence beside it
_VENDOR = Path(__file__).parent / "static" / "vendor"


def source(name: str) -> bytes:
    """The source of a library.

    Raises:
        KeyError: It is none of `LIBRARIES`.
    """
    return (_VENDOR / LIBRARIES[name]).read_bytes()
