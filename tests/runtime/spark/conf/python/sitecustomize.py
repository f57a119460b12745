"""Connects the Python process that reads a stream to its JVM at once: Python runs this module before any other import.

Spark waits ten seconds for this process to connect, and ten more for it to name the secret that Spark gave it. No
setting changes that. The process connects only after it has imported pyspark, which can take longer on a loaded
machine. Spark's other Python processes are forked from one that is ready, and need nothing like this.
"""

from __future__ import annotations

import os

if port := os.environ.get("PYTHON_WORKER_FACTORY_PORT"):
    import socket

    secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
    try:
        connected = socket.create_connection(("127.0.0.1", int(port)))
    except OSError:
        pass  # a process that the reader started: it inherits the port, at which nobody listens any more
    else:
        connected.sendall(len(secret).to_bytes(4) + secret)
        file = connected.makefile("rwb", 65536)
        assert file.read(6) == b"\0\0\0\2ok"

        from pyspark import util

        util.local_connect_and_auth = lambda _port, _secret: (file, connected)
