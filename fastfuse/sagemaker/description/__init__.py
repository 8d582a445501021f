"""A training job as a user describes it, checked: `job` reads it.

A field of a job has its place in `request` (its row), `contradictions` (its sense) and `channel` (its value).
"""
