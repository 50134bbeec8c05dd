"""Recipes: tables and figures of papers as data, one folder each, and their reader."""
