"""Fixtures of the semantics tests: nothing may be left behind, and one mount for everything that only looks."""

from tests.semantics.leftovers import nothing_is_left

__all__ = ["nothing_is_left"]
