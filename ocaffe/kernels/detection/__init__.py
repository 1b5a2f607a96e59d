"""Boxes of images: SSD's loss, and lists of detections with non-maximum suppression."""
