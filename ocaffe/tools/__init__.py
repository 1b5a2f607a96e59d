"""The work of Caffe's command line tools, without the parsing of flags. Each module has one tool or one kind of file."""
