"""Fetching the batch that a descriptor names: get it, verify its checksum, decode it.

Builds on `base`, `store`, `format` and `manifest`.
"""
