"""The local tier: ranges of objects that were fetched once, kept in a directory of this node for all its processes.

`directory` checks and opens the directory, `catalog` (SQLite) knows where each range lies, `segments` has the bytes,
`claims` keeps two processes from fetching the same range, the compiled `shared` has their locks and a filter of what is
kept, `policy` (pure) decides what is worth its room, `writer` puts ranges there behind the readers, and `reader` is the
`RangeReader` that looks there first. docs/CACHE.md tells the whole.
"""
