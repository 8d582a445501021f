"""``s3://bucket/prefix``, taken apart."""

import re
from dataclasses import dataclass

from fastfuse.errors import ConfigurationError

__all__ = ["S3Uri"]

# Of what is quoted in an error.
_SHOWN_LETTERS = 120
# In an address of another kind: who asks, with his password perhaps, and a query, which may be a signature.
_SECRETS = re.compile(r"(?<=://)[^/?@]*(?=@)|(?<=\?).+", re.DOTALL)
# An access point stands where a bucket does, and its ARN may hold slashes.
_ACCESS_POINT = re.compile(r"(arn(?::[^:/]*){4}:(?:outpost[:/][^:/]+[:/])?accesspoint[:/][^:/]+)(?:/|$)")


@dataclass(frozen=True, slots=True)
class S3Uri:
    """A bucket and the rest, verbatim: whether `path` is a folder or an object is for a probe to find out (N1)."""

    bucket: str
    path: str

    @classmethod
    def parse(cls, text: str) -> "S3Uri":
        """Parse ``s3://bucket`` or ``s3://bucket/path``; no percent-decoding, as every S3 tool takes keys verbatim.

        The ARN of an access point may stand in the place of the bucket.

        Raises:
            ConfigurationError: not an S3 URI, no bucket in it, or not text that S3 can have.
        """
        scheme, separator, rest = text.partition("://")
        if not separator or scheme.lower() != "s3":
            shown = _SECRETS.sub("...", text)
            raise ConfigurationError(f"{_shown(shown)} is not an S3 URI", hint="write it as s3://BUCKET/PREFIX")
        if point := _ACCESS_POINT.match(rest):
            bucket, path = point[1], rest[point.end() :]
        else:
            bucket, _, path = rest.partition("/")
        if not bucket:
            raise ConfigurationError(f"{_shown(text)} names no bucket", hint="write it as s3://BUCKET/PREFIX")
        if "\0" in path:
            raise ConfigurationError("the S3 URI holds a NUL character", hint="no path of a mount can")
        if not text.isascii() and not _is_utf8(text):
            raise ConfigurationError(f"{_shown(text)} is not UTF-8", hint="every S3 key is")
        return cls(bucket, path)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.path}"


def _shown(text: str) -> str:
    """As Python writes it, which no terminal obeys, and not all of it if it is long."""
    shown = repr(text)
    return shown if len(shown) <= _SHOWN_LETTERS else f"{shown[:_SHOWN_LETTERS]}..."


def _is_utf8(text: str) -> bool:
    """False for what Python makes of arguments that are not in the locale's encoding: lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
