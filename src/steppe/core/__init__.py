"""Vectors, balls, metrics, triples, draws, probes and rows: the types that methods and measures share."""
