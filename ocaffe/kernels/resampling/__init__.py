"""Values between the pixels of an image: other sizes, and places of a grid."""
