"""Writing data frames and streams into buffers with Spark."""
