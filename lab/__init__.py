"""What hurts a relay on purpose, and looks at what became of it: for the soak, tests and benches of a checkout."""
