"""Losses, and operations that they share: softmax, the largest values, distances of rows, checks of labels."""
