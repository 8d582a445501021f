"""Runs ``fastfuse demo``: the whole way from objects in a bucket to bytes in a reader, measured and checked.

Each layer knows only those after it: `tour` → `mounting`, `dataset`.
"""
