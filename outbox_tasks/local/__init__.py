"""Everything on one machine, for development, demonstrations, benchmarks and tests. Not for production."""
