"""fastfuse: an S3 prefix as a read-only file system, streamed to training jobs."""

__version__ = "0.1.0"
