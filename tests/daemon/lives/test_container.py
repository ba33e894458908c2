"""A worker in a container that is made as `docker run` makes one, with the options of docs/guide/worker.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import docker_container
from tests.support.docker_container import Container
from tests.support.sockd_template import REPOSITORY

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(240),
    pytest.mark.skipif(docker_container.RUNC is None, reason="runc is not installed: apt-get install runc"),
]

WORKER = (sys.executable, "-m", "sockd", "up")
CODE = "import os\ndef f(event): return [event, os.getpid(), os.getuid()]\n"
DOCUMENTED = ("SYS_ADMIN", "SYS_PTRACE")
"""The capabilities that the guide's command adds."""
WITH_NETWORKS = (*DOCUMENTED, "NET_ADMIN")


@pytest.fixture(params=[False, True], ids=["documented", "with private networks"])
def has_networks(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def container(has_networks: bool, tmp_path: Path) -> Iterator[Container]:
    added = WITH_NETWORKS if has_networks else DOCUMENTED
    with docker_container.running(tmp_path, WORKER, capabilities=added, is_open=has_networks) as container:
        container.wait_line("sockd is listening on")
        yield container


def deploy(container: Container, name: str, **settings: str) -> str:
    """What `sockd deploy` printed; empty if it failed, then with its error."""
    source = container.directory / "root" / "srv" / name
    source.mkdir(parents=True)
    (source / "f.py").write_text(CODE)
    (source / "sockd.toml").write_text("".join(f'{key} = "{value}"\n' for key, value in settings.items()))
    done = container.sockd("deploy", f"/srv/{name}")
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_the_guide_has_these_options() -> None:
    text = (REPOSITORY / "docs/guide/worker.md").read_text().replace("\\\n", " ")
    for name in DOCUMENTED:
        assert f"--cap-add {name}" in text
    for name in docker_container.CAPABILITIES:
        assert f"`{name}`" in text or name in ("FSETID", "NET_RAW", "SETFCAP", "NET_BIND_SERVICE", "AUDIT_WRITE")


def test_functions_run_in_it_and_the_doctor_finds_nothing_that_fails(container: Container) -> None:
    checks = json.loads(container.sockd("doctor", "--json").stdout)
    assert [each for each in checks if each["ok"] is False] == []
    assert deploy(container, "usual") == ""
    answer = container.sockd("invoke", "usual", "--data", '"event"')
    assert json.loads(answer.stdout) == ["event", 1, 1000], answer.stderr
    assert deploy(container, "walled", network="none") == ""
    assert json.loads(container.sockd("invoke", "walled").stdout)[1:] == [1, 1000]
    container.terminate()
    assert not [line for line in container.lines if "Traceback" in line or "ERROR" in line]


def test_private_networks_take_a_capability_and_writable_sysctls(container: Container, has_networks: bool) -> None:
    refused = deploy(container, "private", network="private")
    (check,) = [
        each for each in json.loads(container.sockd("doctor", "--json").stdout) if each["name"] == "private networks"
    ]
    if has_networks:
        assert refused == "" and json.loads(container.sockd("invoke", "private").stdout)[1:] == [1, 1000]
    else:
        assert "this worker has no private networks: the worker has no CAP_NET_ADMIN" in refused
        assert "docker run --cap-add NET_ADMIN --security-opt systempaths=unconfined" in check["fix"]
