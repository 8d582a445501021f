"""Fixtures of the tests of outputs: nothing may be left behind."""

from tests.semantics.leftovers import nothing_is_left

__all__ = ["nothing_is_left"]
