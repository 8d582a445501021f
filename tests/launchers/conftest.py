"""Fixtures of the tests with real launchers: nothing may be left behind."""

from tests.semantics.leftovers import nothing_is_left

__all__ = ["nothing_is_left"]
