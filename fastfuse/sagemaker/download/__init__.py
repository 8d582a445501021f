"""File mode: a channel's objects as files of the host's disk.

`survey` finds out what is there already and whether the rest fits, `jobs` walks through what is missing, `fetch` gets
it and `landing` puts it in place. Files become visible whole or not at all, each by one rename out of a private
directory; a run that was killed, or that filled the disk, is gone on with by the next one.

What survives which accident:

* Killed at any point: everything that was written, because the kernel has it. Whole files are kept, and of a file in
  several parts those parts that its journal names.
* Power lost: nothing is forced to the disk while files are fetched, which would cost as much as the disk is slower
  than the network; so what this start of the host ("boot") has not written is not taken on trust. Such a file is read
  again if its ETag tells an MD5, and fetched again otherwise, unless `settle_channel` came to an end after it was
  written: that waits for the disk, and marks the channel. It is meant for the time when the job is training already.

Each file carries an extended attribute that says of which version of which object it is. Where the file system has
none (tmpfs before Linux 6.6, NFS before 4.2), a file is kept only if its ETag proves it.
"""

from fastfuse.sagemaker.download.file_channel import (
    DownloadReport,
    DownloadSettings,
    download_channel,
    settle_channel,
)
from fastfuse.sagemaker.download.survey import DiskClaim, disk_claims

__all__ = [
    "DiskClaim",
    "DownloadReport",
    "DownloadSettings",
    "disk_claims",
    "download_channel",
    "settle_channel",
]
