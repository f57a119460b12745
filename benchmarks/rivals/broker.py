"""A Kafka broker on this machine, from Maven's artifacts."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka
from confluent_kafka.admin import AdminClient
from harness import Skipped

from forebay.runtime.spark import ensure_java
from forebay.testing.servers import _die_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_JARS = Path(__file__).parent.parent.parent / "build" / "kafka"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_NO_DEPENDENCIES = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_READY_SECONDS = 120.0


def fetch(name: str, artifacts: Sequence[str], *, alone: bool) -> list[Path]:
    """Jars from Maven, with what they depend on unless they are to be fetched alone."""
    folder = _JARS / name
    wanted = _make_pom(artifacts, alone=alone)
    pom = folder / "pom.xml"
    if not pom.exists() or pom.read_text() != wanted:
        maven = shutil.which("mvn")
        if maven is None:
            raise Skipped("it needs Maven, and there is no mvn on the PATH")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        asked = folder / "asked.xml"
        asked.write_text(wanted)
        places = [f"-Dmaven.repo.local={_JARS / 'repository'}", f"-DoutputDirectory={folder}"]
        command = [maven, "--quiet", "--batch-mode", "--file", str(asked), *places, _COPY]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), "it gives no reason")
            raise Skipped(f"Maven could not fetch {', '.join(artifacts)}: {reason}")
        asked.rename(pom)  # last: with it the folder is complete
    return sorted(folder.glob("*.jar"))


def _make_pom(artifacts: Sequence[str], *, alone: bool) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        f"{_NO_DEPENDENCIES if alone else ''}</dependency>"
        for group, name, version in (artifact.split(":") for artifact in artifacts)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>forebay</groupId><artifactId>kafka-jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


@contextmanager
def start_broker(jars: Sequence[Path], folder: Path) -> Iterator[tuple[int, str]]:
    """The process and the address of a broker that is its own controller. It ends with this block, or with us."""
    ensure_java()
    home = os.environ.get("JAVA_HOME")
    java = [str(Path(home, "bin", "java")) if home else "java", "-Xmx1g", "-cp", ":".join(map(str, jars))]
    broker, controller = _free_ports(2)
    address = f"127.0.0.1:{broker}"
    settings = folder / "server.properties"
    settings.write_text(f"""\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://{address},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://{address}
controller.listener.names=CONTROLLER
log.dirs={folder}/kafka
offsets.topic.replication.factor=1
auto.create.topics.enable=false
""")
    with (folder / "kafka.log").open("wb") as log:
        cluster = "Zm9yZWJheS1iZW5jaG1hcg"  # any 16 bytes, in base64
        command = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
        subprocess.run(command, stdout=log, stderr=log, check=True)
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(settings)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C in a terminal is for us, not for the broker
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - it makes one system call
        )
        try:
            _wait_until_ready(process, address, Path(log.name))
            yield process.pid, address
        finally:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    deadline = time.perf_counter() + _READY_SECONDS
    while process.poll() is None and time.perf_counter() < deadline:
        with suppress(confluent_kafka.KafkaException):
            admin.list_topics(timeout=1)
            return
    raise RuntimeError(f"the broker did not get ready; the end of its log: {log.read_text()[-2000:]}")


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
