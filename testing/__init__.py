"""Fakes for tests of forebay and of what is built on it."""
