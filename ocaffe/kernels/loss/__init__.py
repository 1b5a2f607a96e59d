"""Losses and what they share: softmax, the largest values, distances of rows, checks of labels."""
