"""The errors a user can meet: each message is one line with the rule, the value and the fix."""

import traceback


class RapidFireError(Exception):
    """Base of every error this package raises on purpose."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the cell's own line and the message, not this package's insides."""
        lines = []
        for frame in traceback.extract_tb(self.__traceback__):
            if "ipykernel" in frame.filename or frame.filename.startswith("<ipython-input"):
                lines = [f"In line {frame.lineno} of the cell: {frame.line}"]
                break
        lines.append(f"{type(self).__name__}: {self}")
        cause = self.__cause__
        if cause is not None and not isinstance(cause, RapidFireError):
            lines.append(f"caused by {type(cause).__name__}: {cause}")
        return lines


class ConfigError(RapidFireError, ValueError):
    """A hyperparameter, argument or search space cannot be used."""


class DataError(RapidFireError, ValueError):
    """A data set cannot be trained or evaluated on."""


class OpError(RapidFireError):
    """An op was refused: it is not possible in the state its run is in."""


class ExperimentError(RapidFireError):
    """An experiment folder cannot be opened, attached to, or written."""
