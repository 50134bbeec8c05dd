"""Statistics over the runs of a study: rank correlations with their errors, and what they answer."""
