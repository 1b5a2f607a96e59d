"""Pictures: diagrams of nets, curves of trainings, boxes, sheets of images."""
