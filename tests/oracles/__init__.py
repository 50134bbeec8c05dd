"""Naive rewrites of the papers' algorithm boxes on flat float64 vectors; no formula here calls the library."""
