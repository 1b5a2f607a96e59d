"""The parts of `ocaffe sweep`: the grid, the queue of trainings, the results."""
