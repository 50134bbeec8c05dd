"""Everything that exists for a GPU alone: CUDA graphs and captured steps."""
