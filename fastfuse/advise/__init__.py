"""Estimates, from the listing of a source, what each way to give it to a training job takes and costs.

Pure: `shape` sums up the listing, `model` estimates each mode by `prices` and picks one. `probe` measures the
network. docs/ADVICE.md has the formulas and where each constant was measured.
"""
