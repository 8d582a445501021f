"""The targets by name, and the seeds of each: small inputs that are kept, made from real ones or of a finding."""

from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

CORPUS = Path(__file__).parent / "corpus"
NAMES = sorted(path.name for path in CORPUS.iterdir())


class Target(Protocol):
    """A module of this package."""

    # What the format is made of; fuzzers put it into inputs.
    TOKENS: tuple[bytes, ...]

    def try_one(self, data: bytes, /) -> None:
        """Have the package parse `data`; raise any error that hostile input must not cause."""
        ...


def target(name: str) -> Target:
    return cast("Target", import_module(f"tests.fuzz.{name}"))


def seeds(name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}
