"""Curvature of a loss: products with its Hessian, and what follows from a few dozen of them."""
