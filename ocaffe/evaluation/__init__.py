"""How well a net classifies: a confusion matrix of its scores, tables and a picture of it."""
