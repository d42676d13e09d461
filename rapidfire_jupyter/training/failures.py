"""How a run's exception is told: one line, the whole trace, and whose fault it was."""

import io
import traceback

from safetensors import SafetensorError

from rapidfire_jupyter import storage
from rapidfire_jupyter.errors import RapidFireError
from rapidfire_jupyter.training import memory
from rapidfire_jupyter.training.estimates import UNKNOWN, Largest
from rapidfire_jupyter.training.messages import Failed


def is_of_disk(error: Exception) -> bool:
    """Whether a save failed at the disk: OSError, or how torch and safetensors tell of one."""
    torchs = isinstance(error, RuntimeError) and any(
        word in str(error) for word in ("PytorchStreamWriter", "inline_container", "No space")
    )
    of_system = isinstance(error, OSError) and error.errno is not None
    foreign = isinstance(error, ConnectionError | TimeoutError | ChildProcessError)
    return torchs or isinstance(error, SafetensorError) or (of_system and not foreign)


def kind_of(error: BaseException) -> type[OSError]:
    """What a failed save is told as: something is gone, or the disk failed."""
    return FileNotFoundError if isinstance(error, FileNotFoundError) else OSError


def failure(error: BaseException, largest: Largest = UNKNOWN) -> Failed:
    """What a run that raised reports; its frames are let go of.

    Args:
        largest: What is known of its largest micro-batch.
    """
    ran_out = memory.exhausted(error)
    text = io.StringIO()
    traceback.print_exception(error, file=text)
    traceback.clear_frames(error.__traceback__)
    try:
        message = str(error).strip() or type(error).__name__
    except BaseException:  # its own __str__ fails
        message = f"{type(error).__name__} without a message"
    first = message.splitlines()[0]
    of_disk = isinstance(error, OSError) and error.errno in storage.DISK_ERRORS
    line = first if isinstance(error, RapidFireError) else f"{type(error).__name__}: {first}"
    return Failed(line, text.getvalue(), of_disk, ran_out, largest=largest)
