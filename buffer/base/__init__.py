"""Errors, time, checks, names, metrics: what every other folder may use. Nothing here does I/O on a store."""
