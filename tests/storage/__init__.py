"""Tests : see docs/storage.md."""
