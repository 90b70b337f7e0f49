"""The model of the bridge's protocol: see docs/reliability.md."""
