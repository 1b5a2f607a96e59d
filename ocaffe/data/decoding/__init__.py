"""Image files as pixels, with the values of OpenCV."""
