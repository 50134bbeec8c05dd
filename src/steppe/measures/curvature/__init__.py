"""Curvature of a loss: products with its Hessian, and spectral estimates from a few dozen of them."""
