"""Used by all packages: the log, progress, safe writes of files, locks, the cache folder, and pages with diagrams."""
