"""Tests of `fastfuse/deploy`."""
