"""``fastfuse demo``: the whole way from objects in a bucket to bytes in a reader, measured and checked.

Layers, each knowing only those after it: `tour` → `source`, `report` → `mounting`, `reading` → `dataset`, `processes`.
"""

from fastfuse.config import DemoSettings
from fastfuse.errors import ConfigurationError

__all__ = ["run"]


def run(settings: DemoSettings) -> int:
    """See `fastfuse.demo.tour.run`."""
    try:
        from fastfuse.demo import tour
    except ModuleNotFoundError as error:
        if error.name != "google_crc32c":
            raise
        raise ConfigurationError(
            "the demo checks CRC-32C sums with google-crc32c, which is not installed",
            hint="pip install 'fastfuse[demo]'",
        ) from error
    return tour.run(settings)
