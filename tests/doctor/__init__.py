"""Tests of `fastfuse.doctor`."""
