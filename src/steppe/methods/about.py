"""What each method does, and its paper; this module does not import torch, for checks of names before torch."""

from __future__ import annotations

from collections.abc import Mapping

FORET, TAHMASEBI, NGUYEN = "Foret et al. 2021", "Tahmasebi et al. 2024", "Nguyen et al. 2024"
NAGANUMA, MI = "Naganuma et al. 2024", "Mi et al. 2022"

ABOUT: Mapping[str, tuple[str, str]] = {  # what it does, and the paper; the same words as in README's table
    "none": ("nothing: the base optimizer itself", ""),
    "sam": (
        "the gradient at the top of a ball, for any p-norm; several ascent steps, un-normalised, weight decay in the "
        "ascent on request",
        FORET,
    ),
    "asam": ("SAM in a ball that scales with each weight, or each filter", "Kwon et al. 2021"),
    "sam-on": ("SAM that moves normalisation layers only", "Mueller et al. 2023"),
    "sa-sam": ("SAM whose step size follows the local smoothness, and its radius the step size", NAGANUMA),
    "sa-sgd": ("the same step size without the ascent", NAGANUMA),
    "universal-sam": ("any functional of the Hessian given as (phi, psi, mu)", TAHMASEBI),
    "trace-sam": ("towards a small trace of the Hessian", TAHMASEBI),
    "frob-sam": ("towards a small Frobenius norm of the Hessian", TAHMASEBI),
    "det-sam": ("towards a small determinant of the Hessian", TAHMASEBI),
    "agnostic-sam": ("up on training rows, down on held-out ones", NGUYEN),
    "agnostic-sam-simple": ("the same without the ascent on held-out rows", NGUYEN),
    "sharpbalance": ("SAM on the rows of a mask, plain on the others", "Lu et al. 2024"),
    "ssam-f": ("SAM on the weights of largest Fisher information", MI),
    "ssam-d": ("SAM on a mask that drops flat weights and grows others", MI),
    "gsam": ("SAM that also lowers the gap between the two losses", "Zhuang et al. 2022"),
    "looksam": ("SAM every few steps, its effect reused in between", "Liu et al. 2022 (CVPR)"),
    "rsam": ("SAM from a randomly smoothed gradient", "Liu et al. 2022 (NeurIPS)"),
    "esam": ("SAM on some tensors and the rows hit hardest", "Du et al. 2022"),
    "msam": ("the gradient ahead of the momentum", "Becker et al. 2024"),
    "m-sam": ("SAM on each part of the batch, or on each worker", FORET),
}
