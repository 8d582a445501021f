"""fastfuse: an S3 prefix as a read-only file system, streamed to training jobs.

docs/ARCHITECTURE.md draws the processes and the floors of this package, explains its words, and says where to change
what. `tests/test_architecture.py` owns the table of who may import whom.
"""

__version__ = "0.1.0"
