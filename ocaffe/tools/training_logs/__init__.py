"""The numbers of a training: Caffe's logs, the JSON log, and event files for TensorBoard."""
