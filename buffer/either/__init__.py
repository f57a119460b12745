"""Functions that take the URL of a buffer or of a topic, and do the right thing for each.

Builds on the modules of one buffer and on `topic`, so that the former need not import the latter.
"""
