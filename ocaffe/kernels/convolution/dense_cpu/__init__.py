"""Convolutions whose filters cover several channels, on CPU runtimes."""
