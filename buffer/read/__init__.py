"""The parts of reading: fetch and decode a batch, a consumer's position and acknowledgements, iteration (rfcs/0004).

Builds on `base`, `store`, `format` and `manifest`.
"""
