"""`python -m lab soak`: a relay under a seeded stream of faults, and a verdict. Read `run.py` first."""
