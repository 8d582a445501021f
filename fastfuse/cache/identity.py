"""Names the versions of objects in a tier."""

from hashlib import sha256

from fastfuse.objects import ObjectRef


def identity(endpoint_url: str, ref: ObjectRef) -> tuple[int, int]:
    """Return 63 bits that name this version of an object, and 64 others that its digests begin with.

    The time counts, because some services give every version the same ETag. It counts in whole seconds, because that
    is what HEAD tells of the time in a listing.
    """
    text = f"{ref.key}\0{ref.etag}\0{ref.size_bytes}\0{ref.modified_ns // 10**9}".encode("utf-8", "surrogateescape")
    digest = sha256(identity_begin(endpoint_url, ref.bucket) + text).digest()
    return int.from_bytes(digest[:8]) >> 1, int.from_bytes(digest[8:16])


def identity_begin(endpoint_url: str, bucket: str, key_prefix: str = "") -> bytes:
    """Return the begin of what `identity` hashes, for all keys that begin with `key_prefix`."""
    return f"{endpoint_url}\0{bucket}\0{key_prefix}".encode("utf-8", "surrogateescape")
