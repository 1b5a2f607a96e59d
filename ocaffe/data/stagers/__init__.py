"""Staging: threads and processes read, decode and crop records, and write them to the memory of a batch."""
