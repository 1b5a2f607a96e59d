"""Where the images of a source are: lists, tables, folders and tar shards of image files, and the names of their classes."""
