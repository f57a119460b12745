"""The parallel consumer runtime."""
