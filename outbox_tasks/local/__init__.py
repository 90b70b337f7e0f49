"""Servers and relays on one machine, for development, demo, bench and tests. Not for production."""
