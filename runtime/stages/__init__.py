"""The stages of a runtime: reading sources, admission to memory, fetching, decoding, committing, acknowledging."""
