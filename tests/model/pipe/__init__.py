"""The pipe: keys, hops and lanes."""
