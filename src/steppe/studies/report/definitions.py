"""What measures are, in one sentence each, for readers of a report."""

from __future__ import annotations

_WORDS = {
    "loss": "the mean loss on the measured training rows",
    "grad_norm": "the norm of the gradient",
    "lambda_max": "the largest eigenvalue of the Hessian, by Lanczos",
    "lambda_min": "the smallest eigenvalue of the Hessian, by Lanczos",
    "trace": "the trace of the Hessian, by Hutchinson's estimator",
    "frobenius_squared": "the sum of the squared eigenvalues of the Hessian",
    "log_determinant": "the sum of the logarithms of the larger eigenvalues of the Hessian",
    "fisher_trace": "the mean squared norm of single rows' gradients",
    "relative_flatness": "curvature of a layer in the scale of its weights (Petzka et al. 2021)",
    "sam_sharpness": "how much one step of SAM raises the loss (Foret et al. 2021)",
    "slope_limit": "worst-case sharpness for a small radius, first order: a norm of the gradient",
    "curvature_limit": "worst-case sharpness for a small radius at a minimum, second order: an eigenvalue",
    "average_limit": "average-case sharpness for a small radius: a trace",
    "zeroth_trace": "the trace from losses at random points near the weights",
    "zeroth_frobenius_squared": "the squared Frobenius norm from losses at random points near the weights",
    "zeroth_determinant": "the determinant's term from losses at random points near the weights",
    "avg_l2": "how much the loss rises on average under Gaussian noise in the weights",
    "avg_linf": "how much the loss rises on average under uniform noise in a box around the weights",
    "worst_l2": "how much the loss can rise within a ball around the weights, as far as ascent finds",
    "worst_linf": "how much the loss can rise within a box around the weights, as far as ascent finds",
}


def definition(name: str) -> str:
    """The sentence for a measure by name; empty for one that steppe does not know."""
    base, _, radius = name.partition("@")
    marks = []
    if base.endswith("_normalised"):
        base = base.removesuffix("_normalised")
        marks.append("of normalised logits")
    if base.startswith("gauss_newton_"):
        base = base.removeprefix("gauss_newton_")
        marks.append("of the Gauss-Newton matrix instead of the Hessian")
    if base not in _WORDS and base.startswith("adaptive_"):
        base = base.removeprefix("adaptive_")
        marks.append("in the scale of each weight")
    if base not in _WORDS:
        return ""
    if radius:
        marks.append(f"radius {radius}")
    return ", ".join([_WORDS[base], *marks])
