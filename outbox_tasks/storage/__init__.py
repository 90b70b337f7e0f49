"""The next storage: see docs/storage.md. Each module runs the SQL of its hop, and decides nothing."""
