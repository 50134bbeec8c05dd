"""CUDA graphs: captured steps and captured functions."""
