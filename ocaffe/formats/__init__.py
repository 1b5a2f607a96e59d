"""Caffe's files: prototxts, weights, solver states, HDF5; and the upgrade and filter of nets."""
