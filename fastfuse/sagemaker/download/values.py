"""What a download is told and what it tells."""

from dataclasses import dataclass, field
from pathlib import Path

from fastfuse.sagemaker.download.disk_claims import DiskClaim, DiskClaims

__all__ = ["DownloadProgress", "DownloadReport", "DownloadSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSettings:
    """Where the files go, and at what cost."""

    # Made if it is missing. It may be a symbolic link; nothing below it is followed.
    directory: Path
    # Bytes of object data on their way or not yet written.
    memory_target_bytes: int
    # Of one GET; a larger file is fetched in several.
    part_size_bytes: int
    # Compare each file with its ETag where that looks like an MD5. Off, because it is no MD5 where a bucket encrypts
    # with KMS, and because it costs: 1.4 CPU s per GB beside 0.8 to 2.9 for all the rest, and 50 µs beside 340 to 650
    # for a file of 39 KB. Without it every reply is checked for its range, length and ETag.
    verifies_checksums: bool = False
    # Where it says what it still has to write, and sees what others have; alone if nothing else is said.
    claim: DiskClaim = field(default_factory=lambda: DiskClaims(1).claim(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadProgress:
    """How far it is; what was there before counts as done."""

    files_done: int
    files_total: int
    bytes_done: int
    bytes_total: int
    # GETs begun, without the store's own retries, and what they brought.
    requests: int
    fetched_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadReport:
    """What there is in the end, and what it took."""

    files: int
    total_bytes: int
    # Of `files`, those that were there already and still are the listed versions.
    kept_files: int
    fetched_bytes: int
    requests: int
    # Files in the channel's directories that the listing does not have; they are left alone.
    unknown_files: int
    elapsed_s: float
