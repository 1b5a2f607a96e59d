"""`ocaffe fit`: from a person's data to a tested net, one idea a file. `ocaffe/cli/fit.py` has the flags and the order of the steps.

`see` finds out what the data are. `task` is the part that all tasks share; each task is a file: `classes`, `boxes`, `masks`, `text`, `tags`. `listings`
reads tables and lists. `conversion` makes OUT/data of data in other forms. `files` are the names in OUT. `training` prints a line for each test of a training.
`examples` draws answers. `report` prints and writes the result, and the commands that follow.
"""
