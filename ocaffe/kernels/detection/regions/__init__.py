"""Regions of interest of Faster R-CNN and its relatives: proposals, their targets, and pooling of regions."""
