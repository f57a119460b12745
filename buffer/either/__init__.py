"""What takes the URL of a buffer or of a topic, and does the right thing for each.

Builds on the modules of one buffer and on `topic`: neither of the two needs to know the other.
"""
