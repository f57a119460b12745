"""Reading buffers with Spark: batch reads and streams."""
