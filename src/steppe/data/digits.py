"""scikit-learn's digits: 1797 real images of 8 x 8 pixels that need no download."""

from __future__ import annotations

import torch

from .dataset import Dataset, Splits

TRAINING_ROWS = 1200  # two thirds; the first half of them are the rows of the study that comes with steppe


def digits(training_rows: int = TRAINING_ROWS) -> Splits:
    """The 8 x 8 digits, always in the same shuffled order: the first rows to train on, all the others to test on.

    The file's grey levels 0 to 16 are stretched to the bytes 0 to 255 (level * 255 / 16, rounded: no two levels meet),
    so that these are images like any other: (rows, 1, 8, 8), for convolutions and, flattened, for an MLP.
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
