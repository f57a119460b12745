"""Stores, formats, and the write and read paths."""
