"""Which objects a channel has."""
