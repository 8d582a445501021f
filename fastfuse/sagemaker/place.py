"""The directories and files of a job below its base directory, and the command's environment."""

from fastfuse.errors import ConfigurationError
from fastfuse.sagemaker.settings import RunSettings

__all__ = ["prepare_place"]


def prepare_place(settings: RunSettings) -> dict[str, str]:
    """Make what a training script expects to find, and return the environment of the command.

    Raises:
        ConfigurationError: the base directory cannot be written.
    """
    try:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"{settings.base_dir} cannot be written: {error.strerror}",
            hint="give another place with --base-dir; scripts find it through SM_CHANNEL_*",
        ) from error
    return dict(settings.environment)
