"""`ocaffe fit`: from a person's data to a tested net, one idea a file. `ocaffe/cli/fit.py` has the flags and the order of the steps.

`task` is what all tasks have in common; each task is a file: `classes`. `files` are the names in OUT. `training` prints a line for each test of a training.
`report` prints and writes the result, and the commands that follow.
"""
