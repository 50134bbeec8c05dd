"""scikit-learn's digits: 1797 real images of 8 x 8 pixels that need no download."""

from __future__ import annotations

import torch

from .dataset import Dataset, Splits

TRAINING_ROWS = 1200  # two thirds; the study that comes with steppe uses the first half of them


def digits(training_rows: int = TRAINING_ROWS) -> Splits:
    """Load the 8 x 8 digits in a fixed shuffled order: the first rows are for training, the others for testing.

    The grey levels 0 .. 16 are scaled to bytes 0 .. 255 (level * 255 / 16, rounded: levels stay distinct), so that
    inputs are images like any other: (rows, 1, 8, 8).
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as missing:
        raise ImportError(
            "the digits come with scikit-learn, and scikit-learn is missing: pip install scikit-learn"
        ) from missing
    data = load_digits()
    levels = torch.tensor(data.images, dtype=torch.float64).unsqueeze(1)
    if not 0 < training_rows < len(levels):
        raise ValueError(
            f"digits has {len(levels)} rows: training on {training_rows} of them leaves nothing to train or test on; "
            f"take between 1 and {len(levels) - 1}"
        )
    images = (levels * 255 / 16).round().to(torch.uint8)
    whole = Dataset("digits", images, torch.tensor(data.target), tuple("0123456789"))
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))
    return Splits(train=whole.rows(order[:training_rows]), test=whole.rows(order[training_rows:]))
