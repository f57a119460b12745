"""A batch as bytes: its two layouts and its checksum. A batch as values: descriptor, metadata, facts (rfcs/0003).

Builds on `base` and `store`.
"""
