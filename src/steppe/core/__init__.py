"""The nouns: vectors, balls, metrics, triples, draws, probes and rows."""
