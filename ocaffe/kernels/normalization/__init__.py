"""Local response normalization, across channels and within each."""
