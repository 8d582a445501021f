"""Lists a source into an inode table: with LIST, or from a manifest, a list of keys or an inventory."""
