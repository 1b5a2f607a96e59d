"""Databases of records, LMDB and LevelDB, and Caffe's record Datum."""
