"""S3 servers for tests, on free loopback ports: moto in this process, SeaweedFS as a process."""

from __future__ import annotations

import ctypes
import json
import logging
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from forebay.buffer.base.clock import SystemClock
from forebay.buffer.base.errors import InvalidInput, Unavailable, Unsupported
from forebay.buffer.base.install import install_hint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

_LOOPBACK = "127.0.0.1"
_REGION = "us-east-1"
_GRPC_OFFSET = 10_000
_READY_SECONDS = 600.0
"""Maximum number of seconds until a server is ready. On a loaded machine the start may take minutes."""
_START_ATTEMPTS = 3


class _S3Server:
    """What both servers provide: an endpoint, the options to reach it, and buckets."""

    endpoint_url: str
    """Where the server listens, such as `http://127.0.0.1:41234`."""
    storage_options: dict[str, Any]
    """Options for `open_store`, with full rights."""

    def create_bucket(self, name: str) -> str:
        """Create a bucket and return its URL."""
        with closing(_boto_client(self.endpoint_url, self.storage_options)) as client:
            client.create_bucket(Bucket=name)
        return f"s3://{name}"

    def _options(self, key: str, secret: str) -> dict[str, Any]:
        return {"endpoint_url": self.endpoint_url, "key": key, "secret": secret, "region": _REGION}


class MotoServer(_S3Server):
    """moto's S3 in threads of this process, with atomic requests.

    moto checks a condition and acts on it without a lock, and so loses updates. Here a lock is held for each request.
    Good for unit tests and for tests of the API's shape; far too slow for benchmarks.
    """

    def __init__(self) -> None:
        self._exit = ExitStack()

    def __enter__(self) -> Self:
        try:
            from moto.s3.responses import S3Response  # noqa: PLC0415
            from moto.server import ThreadedMotoServer  # noqa: PLC0415
        except ImportError as error:
            raise Unsupported(f"moto is not installed: {install_hint('testing')}") from error
        lock = threading.RLock()
        for name in ("_key_response", "_bucket_response"):
            locked = _hold(lock, getattr(S3Response, name))
            self._exit.enter_context(patch.object(S3Response, name, locked))
        requests_log = logging.getLogger("werkzeug")
        self._exit.callback(requests_log.setLevel, requests_log.level)
        requests_log.setLevel(logging.WARNING)
        server = ThreadedMotoServer(ip_address=_LOOPBACK, port=0, verbose=False)
        server.start()
        self._exit.callback(server.stop)
        host, port = server.get_host_and_port()
        self.endpoint_url: str = f"http://{host}:{port}"
        self.storage_options: dict[str, Any] = self._options("moto", "moto-secret")
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()


def _hold(lock: Any, handler: Any) -> Any:
    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return handler(*args, **kwargs)

    return locked


class SeaweedServer(_S3Server):
    """A SeaweedFS process: a real S3 server that enforces conditional writes, also under contention.

    Args:
        policies: identities by name. Each has only the rights of its policy document, in the format of AWS.
        port: the port of its S3 endpoint; 0 for any free port.
    """

    read_only_options: dict[str, Any]
    """Options of an identity that may read and list, and nothing else."""

    def __init__(self, policies: Mapping[str, Any] | None = None, *, port: int = 0) -> None:
        self._policies = dict(policies or {})
        self._port = port

    def options_of(self, name: str) -> dict[str, Any]:
        """Return the options for `open_store` to act as one of the identities in `policies`."""
        return self._options(name, f"{name}-secret")

    def __enter__(self) -> Self:
        binary = _find_weed()
        if self._port:
            _check_free(self._port)
        for attempt in range(_START_ATTEMPTS):
            self._folder = Path(tempfile.mkdtemp(prefix="forebay-weed-"))
            try:
                self._start(binary)
            except BaseException as error:
                self._stop()
                # Another process may have taken a port after we chose it and before weed bound it.
                if not isinstance(error, Unavailable) or attempt == _START_ATTEMPTS - 1:
                    raise
            else:
                break
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self, binary: str) -> None:
        ports = [self._port, *_free_ports(3)] if self._port else _free_ports(4)
        s3, master, volume, filer = ports
        self.endpoint_url: str = f"http://{_LOOPBACK}:{s3}"
        self.storage_options: dict[str, Any] = self._options("forebay", "forebay-full-secret")
        self.read_only_options = self._options("forebay-reader", "forebay-reader-secret")
        identities = self._folder / "identities.json"
        known = [
            _identity("full", self.storage_options, ["Admin", "Read", "List", "Tagging", "Write"]),
            _identity("reader", self.read_only_options, ["Read", "List"]),
            *({**_identity(name, self.options_of(name), []), "policyNames": [name]} for name in self._policies),
        ]
        documents = [{"name": name, "content": json.dumps(document)} for name, document in self._policies.items()]
        identities.write_text(json.dumps({"identities": known, "policies": documents}))
        data = self._folder / "data"
        data.mkdir()
        self._command = [
            binary, "-logtostderr=true", "server", f"-dir={data}", f"-ip={_LOOPBACK}", f"-ip.bind={_LOOPBACK}",
            f"-master.port={master}", "-master.telemetry=false", "-master.volumeSizeLimitMB=1024",
            "-master.electionTimeout=1s",  # after a restart, the only master waits this long for others
            f"-volume.port={volume}", "-volume.max=200", f"-filer.port={filer}",
            f"-filer.localSocket={self._folder / 'filer.sock'}", f"-s3.localSocket={self._folder / 's3.sock'}",
            "-s3", f"-s3.port={s3}", f"-s3.config={identities}", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",
        ]  # fmt: skip
        self._leftovers = [
            # weed always writes these files with these names, and leaves them behind when it is killed.
            Path(f"/tmp/seaweedfs-{role}-grpc-{port + _GRPC_OFFSET}.sock")  # noqa: S108
            for role, port in zip(("s3", "master", "volume", "filer"), ports, strict=True)
        ]
        self._launch()

    def _launch(self) -> None:
        self._log = (self._folder / "log").open("ab")
        self._process = subprocess.Popen(  # noqa: S603
            self._command,
            stdout=self._log,
            stderr=self._log,
            stdin=subprocess.DEVNULL,
            cwd=self._folder,
            process_group=0,  # Ctrl-C in a terminal is for us, not for the server
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - it makes one system call
        )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        clock = SystemClock()
        deadline = clock.monotonic() + _READY_SECONDS
        with closing(_boto_client(self.endpoint_url, self.storage_options)) as client:
            while self._process.poll() is None and clock.monotonic() < deadline:
                try:
                    # The S3 port answers before a volume can be written to, so readiness is a write that worked.
                    with suppress(ClientError):  # after a restart the bucket exists already
                        client.create_bucket(Bucket="ready")
                    client.put_object(Bucket="ready", Key="ready", Body=b"ready")
                except (BotoCoreError, ClientError):
                    clock.sleep(0.1)
                else:
                    return
        log = (self._folder / "log").read_text(errors="replace")
        raise Unavailable(f"weed at {self.endpoint_url} did not become ready; see the end of its log: {log[-2000:]}")

    def restart(self) -> None:
        """Kill the server, and start it again on the same ports with the data that it had stored."""
        self._kill()
        self._launch()

    def _kill(self) -> None:
        process = getattr(self, "_process", None)
        if process is not None:
            process.kill()
            process.wait()
            self._log.close()
            for leftover in self._leftovers:
                leftover.unlink(missing_ok=True)

    def _stop(self) -> None:
        self._kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def _identity(name: str, options: dict[str, Any], actions: list[str]) -> dict[str, Any]:
    credentials = [{"accessKey": options["key"], "secretKey": options["secret"]}]
    return {"name": name, "credentials": credentials, "actions": actions}


def _find_weed() -> str:
    # The wheel puts the binary beside the interpreter, which need not be on the PATH.
    found = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if found is None:
        raise Unsupported(f"SeaweedFS is not installed: {install_hint('dev-server')}")
    return found


def _die_with_parent() -> None:
    """Called in the child: on Linux, let the kernel kill it when the process that started it dies."""
    if sys.platform == "linux":
        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _check_free(port: int) -> None:
    """Raise `InvalidInput` if a port, or its gRPC twin, is taken: weed binds both."""
    for wanted in (port, port + _GRPC_OFFSET):
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as weed does: old connections may linger
            try:
                tried.bind((_LOOPBACK, wanted))
            except (OSError, OverflowError) as error:
                raise InvalidInput(f"port {wanted} cannot be used ({error}): choose another one") from error


def _free_ports(count: int) -> list[int]:
    """Return free ports whose gRPC twin, the port 10000 higher, is free as well: weed binds both."""
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < count:
            first, twin = held.enter_context(socket.socket()), held.enter_context(socket.socket())
            first.bind((_LOOPBACK, 0))
            port = first.getsockname()[1]
            with suppress(OSError, OverflowError):
                twin.bind((_LOOPBACK, port + _GRPC_OFFSET))
                ports.append(port)
    return ports


def _boto_client(endpoint_url: str, options: dict[str, Any]) -> Any:
    try:
        from botocore.config import Config  # noqa: PLC0415
        from botocore.session import get_session  # noqa: PLC0415
    except ImportError as error:
        raise Unsupported(f"botocore is not installed: {install_hint('s3')}") from error

    return get_session().create_client(
        "s3",
        endpoint_url=endpoint_url,
        region_name=options["region"],
        aws_access_key_id=options["key"],
        aws_secret_access_key=options["secret"],
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )
