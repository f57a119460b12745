"""Writing data frames and streams into buffers and topics with Spark (rfcs/0008).

Builds on the accumulator, appends and holds of `forebay.buffer`.
"""
