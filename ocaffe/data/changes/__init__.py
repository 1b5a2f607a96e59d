"""Changes of images and boxes: sizes, crops, mirrors, colors, and Caffe's DataTransformer."""
