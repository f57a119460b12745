"""Reading batches: fetching and decoding what a descriptor names."""
