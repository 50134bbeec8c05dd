"""Training flat: the engine and the methods, one module an idea."""
