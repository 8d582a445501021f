"""How an index comes to be: listed, read back from a file, a cache or S3, made from an inventory or a list of keys."""
