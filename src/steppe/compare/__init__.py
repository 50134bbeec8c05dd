"""Fair comparisons of methods at equal cost: which one, with which settings, and by how much."""
