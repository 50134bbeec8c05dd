"""Sharpness-aware steps inside other training libraries: a module per library, each with an extra of its name."""
