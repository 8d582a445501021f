"""fastfuse: an S3 prefix as a read-only file system, streamed to training jobs.

docs/ARCHITECTURE.md draws the processes and the floors of this package, and says where to change what.
`tests/test_architecture.py` owns the table of who may import whom.

Words:

=========  ============================================================================================================
part       a byte range of one object that is fetched with one GET and held in memory, usually 8 MiB
range      ``start`` and exclusive ``end``, in bytes
window     how far ahead of a reader parts are fetched
cursor     one sequential reader's place in a file, as far as the engine can tell
stream     the reads of one open file
pool       all parts of all files, bounded in bytes
inode      a row of the table plus one; the root is 1. After a refresh what has not changed keeps its number
index      what a source holds, with attributes and ETags: the inode table, saved as a snapshot
snapshot   the inode table as a file that is mapped
channel    a named input of a training job, mounted at ``/opt/ml/input/data/<channel>``
worker     the process that answers the kernel; the supervisor outlives it
=========  ============================================================================================================
"""

__version__ = "0.1.0"
