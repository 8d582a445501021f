"""Tests of `fastfuse.advise`."""
