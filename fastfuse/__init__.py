"""fastfuse: an S3 prefix as a read-only file system, streamed to training jobs.

How a mount comes about::

    cli ──► config ──► mount.supervisor            arguments become frozen settings; the process that must not die
                         ├─► mount.indexing        a short-lived process makes the index, a snapshot in a memfd:
                         │     indexing.make ► listing.lister ► inodes.builder ► listing.snapshot
                         ├─► mount.session         the FUSE connection, held for the whole life
                         ├─► mount.worker          serves it; may die and is started again
                         │     mount.operations ► inodes.table            lookup, getattr, readdir
                         │                      ► readahead.engine ► store.router ► store.direct | rust | boto
                         └─► mount.refresh         lists again: inodes.changes tells what the kernel has to forget

Layers, each importing only what is below it: ``cli`` and ``demo`` over ``mount`` over ``readahead``, ``indexing``,
``listing`` and ``store`` over ``inodes``, ``sources``, ``metrics``, ``objects`` and ``errors``.
`tests/test_architecture.py` owns the table. pyfuse3 is imported in ``mount`` only, an S3 client in ``store`` only;
``inodes`` and ``readahead.window`` do no I/O and know no clock.

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
