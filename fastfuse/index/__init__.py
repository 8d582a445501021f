"""Makes the index of a source: from a listing, a saved index (a file or S3), an inventory or a list of keys."""
