"""Recipes: tables and figures of papers as data, each run by `steppe reproduce` as a study."""
