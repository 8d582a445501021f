"""What a fleet needs beside the program: manifests of Kubernetes, the dashboard, alert rules, files of the system."""

from importlib.resources import files


def shipped(path: str) -> str:
    """Return the text of a file that comes with fastfuse, by its path below ``fastfuse/deploy``."""
    return files(__name__).joinpath(path).read_text("utf-8")
