"""Parses the names of a source: URIs, manifests, inventories, shards and shuffles. Pure but for inventories."""
