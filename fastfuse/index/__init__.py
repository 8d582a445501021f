"""Makes the index of a source: from a listing, a file, the cache, S3, an inventory or a list of keys."""
