"""A producer's batches on their way to the store: collecting calls, encoding, uploading, listing."""
