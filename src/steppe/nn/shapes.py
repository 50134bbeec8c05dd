"""The shape of one row, looked at before a model is built on it."""

from __future__ import annotations

SMALL_IMAGES = "mlp, resnet18, resnet32, wrn40-2 and simple-vit take images as small as 8 x 8"


def image(shape: tuple[int, ...], model: str, at_least: int = 1) -> tuple[int, int, int]:
    """Channels, height and width of a row that a model on images can take; an error says what to do instead."""
    if len(shape) != 3:
        raise ValueError(
            f"{model} works on images (channels, height, width), but a row here has the shape {shape}. "
            "Use mlp, which takes rows of any shape, or give the data as images."
        )
    channels, height, width = shape
    if min(height, width) < at_least:
        raise ValueError(
            f"{model} needs images of at least {at_least} x {at_least} pixels, but these are {height} x {width}. "
            f"Enlarge them, or use another model: {SMALL_IMAGES}."
        )
    return channels, height, width


def units(depth: int, model: str, layers: int, others: int) -> int:
    """How many blocks a stage has, where three stages of blocks of `layers` and some other layers make the depth."""
    blocks, rest = divmod(depth - others, 3 * layers)
    if rest or blocks < 1:
        fitting = ", ".join(str(3 * layers * n + others) for n in (1, 2, 3))
        raise ValueError(
            f"{model} has {others} layers and three equal stages of blocks of {layers} layers: a depth of {depth} "
            f"does not divide into them. Use one of {fitting}, ..."
        )
    return blocks
