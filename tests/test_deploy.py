"""The examples of deploy/: what can be tried without containers. deploy/README.md says what cannot."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from patience import PATIENCE, wait_for

from forebay import open_store
from forebay.buffer import read_range
from forebay.buffer.base.errors import NotFound
from forebay.runtime import RuntimeConfig
from forebay.testing.servers import SeaweedServer

TOP = Path(__file__).parent.parent
DEPLOY = TOP / "deploy"
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"].partition(".dev")[0]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
TOKEN = "0123456789abcdef"
URL = "s3://lake/clicks"


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedServer]:
    with SeaweedServer() as server:
        server.create_bucket("lake")
        yield server


@pytest.fixture
def environment(server: SeaweedServer) -> dict[str, str]:
    """The settings of the services in compose.yaml, for the server of this test."""
    options = server.storage_options
    given = dict(SERVICES["runtime"]["environment"])
    assert given["AWS_ENDPOINT_URL"] == "http://s3:8333"
    given |= {"AWS_ENDPOINT_URL": server.endpoint_url, "AWS_ACCESS_KEY_ID": options["key"]}
    given |= {"AWS_SECRET_ACCESS_KEY": options["secret"], "FOREBAY_UI_TOKEN": TOKEN}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **given, "PATH": path}


def command_of(service: str) -> list[str]:
    """What a container of a service would run. Its files and its address are those of this machine."""
    words = [*SERVICES[service].get("entrypoint", ["forebay"]), *SERVICES[service]["command"]]
    here = {"$$": "$", "/etc/forebay/": f"{DEPLOY}/", "0.0.0.0": "127.0.0.1"}
    for given, local in here.items():
        words = [word.replace(given, local) for word in words]
    return words


@contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A service, in a process group that ends with the block."""
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()  # until every process of the group has ended


def find_line(process: subprocess.Popen[str], pattern: str) -> str:
    """The part of the first line that a service prints and that has this in it."""
    assert process.stdout is not None
    shown = []
    for line in process.stdout:
        shown.append(line)
        if found := re.search(pattern, line):
            return found[0]
    raise AssertionError(f"{pattern} is not in {shown}")


def count_entries(server: SeaweedServer) -> int:
    try:
        return sum(len(batch) for batch in read_range(URL, storage_options=server.storage_options))
    except NotFound:
        return 0


def run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_services_of_compose_take_events_from_the_producer_to_parquet(
    server: SeaweedServer, environment: dict[str, str]
) -> None:
    with running(command_of("producer"), environment) as producer:
        wait_for(lambda: count_entries(server) >= 2, producer)

    told = run([*command_of("runtime"), "--until-caught-up", "--json"], environment)

    assert json.loads(told)["rows"] == count_entries(server)
    files = [found.key for found in open_store("s3://lake/clicks-parquet", server.storage_options).list()]
    assert [key for key in files if key.endswith(".parquet")]
    with running(command_of("collector"), environment) as collector:
        find_line(collector, f"{URL}: deleted ")
    with running([*command_of("page"), "--port", "0"], environment) as page:
        address = find_line(page, r"http://127\.0\.0\.1:\d+")
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert answer.status == 200


def test_collector_of_kubernetes_collects_once_and_ends(server: SeaweedServer, environment: dict[str, str]) -> None:
    assert run(["forebay", *containers()["collector"]["args"]], environment).startswith(f"{URL}: deleted ")


def test_job_is_valid_before_anything_was_written(
    environment: dict[str, str], server: SeaweedServer, tmp_path: Path
) -> None:
    server.create_bucket("empty")
    text = (DEPLOY / "clicks.toml").read_text().replace("s3://lake/", "s3://empty/")
    job = tmp_path / "clicks.toml"
    job.write_text(text)
    assert "s3://empty/clicks" in run(["forebay", "run", str(job), "--dry-run"], environment)


def containers() -> dict[str, Any]:
    """Each container of kubernetes.yaml with the pod that it is in, by its name."""
    found = {}
    for document in KUBERNETES:
        spec = document.get("spec", {})
        template = spec.get("template") or spec.get("jobTemplate", {}).get("spec", {}).get("template")
        for container in template["spec"]["containers"] if template else []:
            found[container["name"]] = {**container, "pod": template["spec"]}
    return found


def test_runtime_of_kubernetes_runs_the_job_of_compose_with_a_standby_and_time_to_commit() -> None:
    (deployment,) = (document for document in KUBERNETES if document["kind"] == "Deployment")
    runtime = containers()["runtime"]
    assert runtime["args"] == SERVICES["runtime"]["command"]
    assert deployment["spec"]["replicas"] == 2
    assert runtime["pod"]["terminationGracePeriodSeconds"] > RuntimeConfig().drain_seconds
    assert deployment["spec"]["selector"]["matchLabels"] == deployment["spec"]["template"]["metadata"]["labels"]


def test_every_container_of_kubernetes_has_few_rights_and_an_account_that_is_there() -> None:
    accounts = {document["metadata"]["name"] for document in KUBERNETES if document["kind"] == "ServiceAccount"}
    for container in containers().values():
        assert container["pod"]["serviceAccountName"] in accounts
        assert container["pod"]["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        volumes = {volume["name"] for volume in container["pod"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_images_have_the_version_of_the_project() -> None:
    ours = [service["image"] for service in SERVICES.values() if "build" in service]
    ours += [container["image"].rpartition("/")[2] for container in containers().values()]
    assert set(ours) == {f"forebay:{VERSION}"}
    for name in ("Dockerfile", "README.md"):
        assert f"--tag forebay:{VERSION} " in (DEPLOY / name).read_text()


def test_server_of_compose_is_the_release_that_the_tests_use_and_knows_its_flags() -> None:
    (wanted,) = (need for need in PROJECT["project"]["optional-dependencies"]["dev-server"] if "seaweedfs" in need)
    tested = re.findall(r">=([\d.]+)", wanted)
    images = {SERVICES[name]["image"] for name in ("s3", "bucket")}
    assert images == {f"chrislusf/seaweedfs:{version}" for version in tested}
    weed = Path(sys.executable).with_name("weed")
    known = subprocess.run([weed, "server", "-h"], capture_output=True, text=True, check=False)
    flags = re.findall(r"^  -([\w.]+)", known.stdout + known.stderr, re.MULTILINE)
    command, *given = SERVICES["s3"]["command"]
    assert command == "server"
    assert {word.removeprefix("-").partition("=")[0] for word in given} <= set(flags)


def test_dockerfile_copies_what_the_package_is_built_from_and_runs_it_without_rights() -> None:
    setuptools = PROJECT["tool"]["setuptools"]
    needed = {"pyproject.toml", *PROJECT["project"]["license-files"]}
    needed |= {f"{name}.py" for name in setuptools["py-modules"]} | set(setuptools["package-dir"].values())
    lines = re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert {path for line in lines for path in line.split()} == needed
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE) == ["10001:10001"]
    for version in re.findall(r"^FROM python:([\d.]+)-slim", DOCKERFILE, re.MULTILINE):
        assert f"Programming Language :: Python :: {version}" in PROJECT["project"]["classifiers"]
