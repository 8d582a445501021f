"""Checks whether this machine can mount, and what slows a mount down here: `machine` looks, `rules` decide (pure)."""
