"""A cluster of executor processes of their own reads from a real S3 server, and loses one of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
from read_job import fill
from spark_place import Place

from forebay.testing.servers import SeaweedServer


def test_executor_that_is_killed_loses_no_row_and_no_secret_is_shown(weed: SeaweedServer, tmp_path: Path) -> None:
    place = Place(f"s3://tests/cluster-{os.getpid()}", weed.storage_options)
    batches = [[b"%02d-%02d" % (number, entry) for entry in range(50)] for number in range(12)]
    fill(place.open(), *batches)
    (tmp_path / "events").mkdir()
    job = Path(__file__).with_name("cluster_job.py")
    ran = subprocess.run(
        [sys.executable, str(job), json.dumps(place.options), str(tmp_path)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, "".join(ran.stderr.partition("Traceback")[1:])[:3000]
    assert "Command exited with code 137" in ran.stderr, "one executor was killed"
    found = json.loads((tmp_path / "found").read_text())
    assert found == [entry.decode() for batch in batches for entry in batch]

    executors = Path(pyspark.__file__).parent / "work" / (tmp_path / "application").read_text()
    logs = [path for folder in (tmp_path / "events", executors) for path in folder.rglob("*") if path.is_file()]
    assert any(path.name == "stderr" for path in logs)
    assert "BatchScan forebay" in ran.stdout
    shown = ran.stdout + ran.stderr + "".join(path.read_text(errors="replace") for path in logs)
    assert "SparkListenerSQLExecutionStart" in shown, "what the UI shows is in the event log"
    assert weed.storage_options["secret"] not in shown
    shutil.rmtree(executors)
