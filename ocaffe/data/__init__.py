"""The data of nets: a source makes the batch of any number; threads prepare batches ahead. The subfolders have all kinds of sources."""
