"""Compare ocaffe with a real Caffe on random nets, solvers and specifications, and on nets from files.

`OCAFFE_CAFFE_PYTHON` names a Python that can import caffe (CONTRIBUTING.md). Each program runs in a process of its own.

case, files   a net with the values of its inputs and parameters, as text
draft, kinds  random nets: what all layers need, and a function for each layer type
solvers, specs   random solvers and NetSpec scripts
values, worker   drawn values; the program that both Pythons run
peer          one worker: jobs, time limits, restarts
graph         the paths of a net
judge         the differences between two results
exact         a net in double precision, to tell rounding from faults
memory        the same with Caffe's shared memory, to tell its habits from faults
python_layers   Python layers of random nets
tables        the vendor's changes, and the differences that ocaffe has on purpose
shrink        a smaller net with the same difference
oracle, campaign   both programs on a case; ranges of seeds
faults        faults that are planted, to show that they are found
"""
