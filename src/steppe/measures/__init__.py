"""Measuring flatness: a loss on fixed data as a function of the weights."""
