"""What several parts of the package need and none of them is about."""
