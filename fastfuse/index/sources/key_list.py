"""A list of keys as a source: one key, or one ``s3://bucket/key``, on each line. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from fastfuse.errors import ConfigurationError
from fastfuse.index.sources.uri import S3Uri

__all__ = ["ListedKey", "parse_keys"]


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key and where it was first named."""

    key: str
    line: int


def parse_keys(lines: Iterable[bytes], source: S3Uri, name: str) -> list[ListedKey]:
    """The keys in `lines`, each once, in byte order; `name` is the file's, for errors.

    Nothing but the end of a line is special: a key may begin with ``#`` or a space, or end in a carriage return, but
    in a file whose first line ends in CR LF that is no part of a key. Empty lines are skipped.

    Raises:
        ConfigurationError: a line that is not UTF-8, or a key that does not lie in `source`; with its line number.
    """
    own = f"s3://{source.bucket}/"
    folder = f"{source.path.rstrip('/')}/" if source.path else ""
    end = ""
    found: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if number == 1 and line.endswith(b"\r\n"):
            end = "\r"
        try:
            text = line.removesuffix(b"\n").decode().removesuffix(end)
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{name}:{number}: the key is not UTF-8", hint="every S3 key is") from error
        if not text:
            continue
        if text.startswith("s3://") and not text.startswith(own):
            raise ConfigurationError(f"{name}:{number}: {text!r} is not in the bucket {source.bucket!r}")
        key = text.removeprefix(own)
        if not key:
            raise ConfigurationError(f"{name}:{number}: {text!r} names no object")
        if not key.startswith(folder) and key != source.path:
            raise ConfigurationError(
                f"{name}:{number}: {key!r} does not lie in {source}",
                hint="a line holds a whole key, its prefix included",
            )
        found.setdefault(key, number)
    if len(found) > 1 and source.path in found and not source.path.endswith("/"):
        raise ConfigurationError(
            f"{name}:{found[source.path]}: {source.path!r} is an object beside the folder of the same name",
            hint=f"what is mounted is the folder {folder}",
        )
    return [ListedKey(key, found[key]) for key in sorted(found)]
