"""Data sets of others and their conversion to databases and lists: formats of boxes and masks, class folders, public sets."""
