"""``s3://bucket/prefix``, taken apart; and `shown`, for errors that quote what others wrote."""

import re
import sys
from dataclasses import dataclass

from fastfuse.errors import ConfigurationError

# An error quotes this much of a text.
_SHOWN_LETTERS = 120
# Parts of another kind of address: a user, perhaps with a password, and a query, which may be a signature.
_SECRETS = re.compile(r"(?<=://)[^/?@]*(?=@)|(?<=\?).+", re.DOTALL)
# An access point takes the place of a bucket, and its ARN may contain slashes.
_ACCESS_POINT = re.compile(r"(arn(?::[^:/]*){4}:(?:outpost[:/][^:/]+[:/])?accesspoint[:/][^:/]+)(?:/|$)")


@dataclass(frozen=True, slots=True)
class S3Uri:
    """A bucket and the rest, verbatim; a listing finds out whether `path` is a folder or an object (N1)."""

    bucket: str
    path: str

    @classmethod
    def parse(cls, text: str) -> "S3Uri":
        """Parse ``s3://bucket`` or ``s3://bucket/path``; no percent-decoding, as every S3 tool takes keys verbatim.

        The ARN of an access point may stand in the place of the bucket.

        Raises:
            ConfigurationError: `text` is no S3 URI, has no bucket, or has a path that S3 cannot have.
        """
        scheme, separator, rest = text.partition("://")
        if not separator or scheme.lower() != "s3":
            public = _SECRETS.sub("...", text)
            raise ConfigurationError(f"{shown(public)} is not an S3 URI", hint="write it as s3://BUCKET/PREFIX")
        if point := _ACCESS_POINT.match(rest):
            bucket, path = point[1], rest[point.end() :]
        else:
            bucket, _, path = rest.partition("/")
        if not bucket:
            raise ConfigurationError(f"{shown(text)} names no bucket", hint="write it as s3://BUCKET/PREFIX")
        if "\0" in path:
            raise ConfigurationError("the S3 URI holds a NUL character", hint="no path of a mount can")
        try:
            text.encode()
        except UnicodeEncodeError as error:  # of a surrogate: Python makes them of bytes outside the locale's encoding
            raise ConfigurationError(f"{shown(text)} is not UTF-8", hint="every S3 key is") from error
        return cls(bucket, path)

    @classmethod
    def given(cls, text: str) -> "S3Uri":
        """Parse a word of the command line or the environment, as `parse` does."""
        return cls.parse(as_utf8(text))

    @property
    def folder(self) -> str:
        """The prefix of the keys below this place: the path with a ``/`` behind it; empty for a whole bucket."""
        return self.path if not self.path or self.path.endswith("/") else f"{self.path}/"

    @property
    def parent(self) -> str:
        """The path up to its last ``/``: the prefix that one object of this name lies in."""
        return self.path[: self.path.rfind("/") + 1]

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.path}"


def as_utf8(word: str) -> str:
    """Return the text of a word that Python decoded as the locale says; other text than UTF-8 stays as it is."""
    try:
        return word.encode(sys.getfilesystemencoding(), "surrogateescape").decode()
    except UnicodeError:
        return word


def shown(value: object) -> str:
    """Return the `repr` of `value`, which no terminal interprets, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]}..."
