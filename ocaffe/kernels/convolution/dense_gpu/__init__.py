"""Convolutions whose filters cover several channels, on GPUs: by multiply-adds and on matrix units."""
