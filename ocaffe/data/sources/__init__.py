"""The sources of data layers, one file for each layer type, and their common parts."""
