"""Azure's blob storage as a server on this machine: Azurite, which `make test-matrix` installs where npm is."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import subprocess
from email.utils import formatdate
from pathlib import Path
from typing import Any, Self
from urllib.request import Request, urlopen

import pytest
from patience import PATIENCE

KIND = "obstore-azurite"
AZURE = pytest.param(KIND, marks=pytest.mark.matrix)
"""Among the stores that a test runs on."""

PROGRAM = Path(__file__).parent.parent / "build" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
# Every Azurite has this account, and Azure's documents print its key.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class AzuriteServer:
    """A process that keeps blobs in memory, on a loopback port of its own."""

    endpoint_url: str
    """Where the server listens, such as `http://127.0.0.1:41234`."""

    def __enter__(self) -> Self:
        command = [str(PROGRAM), "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
        self._process = subprocess.Popen([*command, "--disableTelemetry"], stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        shown = ""
        for line in self._process.stdout:
            shown += line
            if found := re.search(r"listens on (http://127\.0\.0\.1:\d+)", line):
                self.endpoint_url = found[1]
                return self
        self.__exit__()
        raise AssertionError(f"Azurite did not start: {shown}")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def options_at(self, endpoint_url: str) -> dict[str, Any]:
        """Return what to hand to `open_store` to reach the server by an address, its own or a proxy's."""
        return {"account_name": ACCOUNT, "account_key": KEY, "endpoint": f"{endpoint_url}/{ACCOUNT}"}

    @property
    def storage_options(self) -> dict[str, Any]:
        """What to hand to `open_store`: full rights."""
        return self.options_at(self.endpoint_url)

    def create_container(self, name: str) -> None:
        """Create a container, which obstore cannot do."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        signed = "PUT" + 12 * "\n"  # eleven headers that this request does not have
        signed += "".join(f"{key}:{value}\n" for key, value in headers.items())
        signed += f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        digest = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        headers["Content-Length"] = "0"
        url = f"{self.endpoint_url}/{ACCOUNT}/{name}?restype=container"
        urlopen(Request(url, headers=headers, method="PUT"), timeout=PATIENCE).close()
