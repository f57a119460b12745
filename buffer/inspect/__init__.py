"""Looking at buffers and topics from outside: statistics, verification, migration to version 2."""
