"""Servers and relays on one machine, for development, demo, bench, soak and tests. Not for production."""
