"""Servers and relays on one machine, for development, demo and tests. Not for production."""
