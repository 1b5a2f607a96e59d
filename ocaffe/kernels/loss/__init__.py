"""Losses and their parts: softmax, the largest values, distances of rows, checks of labels."""
