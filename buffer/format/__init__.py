"""Batches as bytes and as values: the two layouts of a batch, checksums, and what is known of a batch."""
