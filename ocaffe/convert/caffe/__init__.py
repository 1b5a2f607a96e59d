"""Rewrites of Caffe nets. `net` has the form that all of them work on, and each pass is a file: a function from a Net to the number of changes."""
