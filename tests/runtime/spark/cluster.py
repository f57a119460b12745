"""A standalone cluster of Spark as processes of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from forebay.runtime.spark import ensure_java


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """Yield the URL of a master with two workers of one core each. The executors' logs are in `folder/work`.

    Each worker has a loopback address of its own: Spark runs a slow task a second time on another host only.
    """
    ensure_java()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "128m"}

    def start(kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *arguments]
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    url = f"spark://127.0.0.1:{port}"
    limits = ("--cores", "1", "--memory", "512m", "--webui-port", "0", "--work-dir", f"{folder}/work")
    running = [start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")]
    running += [start("worker.Worker", "--host", host, *limits, url) for host in ("127.0.0.1", "127.0.0.2")]
    try:
        yield url
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
