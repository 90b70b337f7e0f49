"""Tests of the next storage: see docs/storage.md."""
