"""Frozen values that every layer shares."""

from dataclasses import dataclass

__all__ = ["ARCHIVE_STORAGE_CLASSES", "MAX_KEY_BYTES", "Buffer", "ObjectRef"]

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-keys.html
MAX_KEY_BYTES = 1024

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/restoring-objects.html: these need a restore before a GET.
# GLACIER_IR ("instant retrieval") does not.
ARCHIVE_STORAGE_CLASSES = frozenset({"GLACIER", "DEEP_ARCHIVE"})

# What a store hands out and pyfuse3 writes to the kernel: any contiguous buffer, read-only by agreement.
Buffer = bytes | memoryview


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One version of one object, as it was listed.

    `key` is the whole key (valid UTF-8 by clause N2), `etag` is as listed, with its quotes, or empty where the
    server lists none; `modified_ns` is LastModified in nanoseconds since the epoch.
    """

    bucket: str
    key: str
    size_bytes: int
    etag: str
    modified_ns: int = 0
    storage_class: str = "STANDARD"

    @property
    def uri(self) -> str:
        """The URI for messages; in the place of a bucket a local file has the directory that its key lies below."""
        return f"{'file' if self.bucket.startswith('/') else 's3'}://{self.bucket}/{self.key}"
