"""Vectors, balls, metrics, triples, draws, probes, rows and estimates: the types that methods and measures share."""
