"""A producer's batches on their way to the bucket: collect calls, encode, upload, list in the manifest (rfcs/0004).

Builds on `base`, `store`, `format`, `manifest` and `coordinator`.
"""
