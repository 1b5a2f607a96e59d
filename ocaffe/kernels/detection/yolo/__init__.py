"""The losses and detections of YOLO."""
