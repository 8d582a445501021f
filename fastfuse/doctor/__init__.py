"""Checks what a mount needs and what slows it down: `machine` looks, `steps` asks S3, `rules` decide (pure)."""
