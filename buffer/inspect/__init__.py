"""Looking at buffers and topics from outside: statistics, verification, and migration from version 1 to 2.

Builds on `either` and on everything that `either` builds on.
"""
