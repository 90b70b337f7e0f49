"""What the relay costs: see docs/performance.md. `python -m bench` lists the benches."""
