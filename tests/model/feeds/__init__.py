"""The model of the bridge's protocol: see docs/model.md."""
