"""Looking at buffers and topics from outside: statistics, verification, and migration from version 1 to 2.

Builds on everything above it in the list of RFC 0002, up to `either`.
"""
