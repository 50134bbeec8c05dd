"""Sharpness-aware methods: one file per paper."""
