"""What Caffe's command line tools do, apart from their flags: one tool or one kind of file in a module."""
