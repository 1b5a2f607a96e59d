"""Pooling over windows of an image."""
