"""The browser's ends of widgets: their parts in `static/`, put together when they are imported."""

from pathlib import Path

STATIC = Path(__file__).parent / "static"


def script(*parts: str) -> str:
    """One JavaScript module of its parts; a file's path would keep every widget alive.

    Indentation and comment lines stay here: they are a tenth of what a page would fetch.
    """
    text = "\n".join((STATIC / part).read_text(encoding="utf-8") for part in parts)
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def style(*files: str) -> str:
    """One style sheet of several files."""
    return "\n".join((STATIC / file).read_text(encoding="utf-8") for file in files)
