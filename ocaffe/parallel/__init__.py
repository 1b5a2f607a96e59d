"""Data parallel training: the ranks that MPI started, and the exchange of their gradients (docs/adr/0013)."""
