"""Helpers that several packages share: files, formats, terminal, pages, error messages."""
