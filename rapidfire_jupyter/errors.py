"""The errors a user can meet: each message is one line with the rule, the value and the fix."""


class RapidFireError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(RapidFireError, ValueError):
    """A hyperparameter, argument or search space cannot be used."""


class DataError(RapidFireError, ValueError):
    """A data set cannot be trained or evaluated on."""


class OpError(RapidFireError):
    """An op was refused: it is not possible in the state its run is in."""


class ExperimentError(RapidFireError):
    """An experiment folder cannot be opened, attached to, or written."""
