"""Matrix products: tiles, their choice for a device, and the kernels. Convolutions use the same tiles."""
