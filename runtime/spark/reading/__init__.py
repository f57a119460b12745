"""Reading buffers and topics with Spark: batch reads and streams (rfcs/0008).

Builds on descriptors, groups and holds of `forebay.buffer`.
"""
