"""Estimates, from the listing of a source, what each way to give it to a training job takes and costs.

`probe` sums up the listing and measures the network; `model` estimates each mode by `prices` and picks one (pure).
docs/ADVICE.md has the formulas and where each constant was measured.
"""
