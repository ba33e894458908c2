"""The page of groups: its unit, its manifest and its proxies are what systemd, Kubernetes, HAProxy and Caddy take."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.daemon.groups.workers import front
from tests.daemon.lives.test_container import DOCUMENTED
from tests.daemon.test_events import soon
from tests.docs.test_production import FILES, REPO, caddy, running

PAGE = (REPO / "docs" / "guide" / "group.md").read_text()
DROP_IN = REPO / "systemd" / "sockd-group.conf"


def test_systemd_takes_the_service_with_the_drop_in_of_a_group(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("needs systemd-analyze: apt-get install systemd")
    (tmp_path / "sockd.service.d").mkdir()
    shutil.copy(REPO / "systemd" / "sockd.service", tmp_path)
    shutil.copy(DROP_IN, tmp_path / "sockd.service.d" / "group.conf")
    done = subprocess.run([program, "verify", tmp_path / "sockd.service"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_page_installs_the_drop_in_and_writes_what_it_reads() -> None:
    (start,) = re.findall(r"^ExecStart=(/.*)$", DROP_IN.read_text(), re.M)
    assert start.startswith("/usr/bin/env sockd up --config /etc/sockd/sockd.toml")
    assert set(re.findall(r"\$\{(\w+)\}", start)) == set(
        re.findall(r"echo (\w+)=\S+ \| sudo tee /etc/sockd/machine", PAGE)
    )
    assert "systemd/sockd-group.conf /etc/systemd/system/sockd.service.d/group.conf" in PAGE


def test_the_manifest_lists_its_capabilities_and_has_nothing_of_the_node() -> None:
    pod = _manifest()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security["capabilities"] == {"add": list(DOCUMENTED)}
    assert "privileged" not in security and not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    paths = [volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume]
    assert paths == ["/var/lib/sockd"]
    assert all(f"{name}" in PAGE for name in DOCUMENTED)


def test_kubernetes_knows_each_field_of_the_manifest() -> None:
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("needs kubectl")
    command = [program, "set", "env", "--local", "-f", str(FILES / "daemonset.yaml"), "SEEN=1", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert _paths(_manifest()) <= _paths(json.loads(done.stdout)), "kubectl leaves out what is no field"


def _manifest() -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load((FILES / "daemonset.yaml").read_text())
    return manifest


def _paths(tree: object, above: str = "") -> set[str]:
    """Return the paths of all fields of a document."""
    if isinstance(tree, dict):
        return {path for name, each in tree.items() for path in (f"{above}.{name}", *_paths(each, f"{above}.{name}"))}
    if isinstance(tree, list):
        return {path for each in tree for path in _paths(each, f"{above}[]")}
    return set()


@pytest.mark.root
def test_caddy_serves_a_group_through_its_front(tmp_path: Path) -> None:
    with running(tmp_path / "state") as daemon:
        daemon.deploy("shop", "def f(event): return event")
        with (
            front({"w1": f"{daemon.host}:{daemon.port}"}, tmp_path) as port,
            caddy(tmp_path, port, daemon.url) as sites,
        ):
            url, trusted = sites["FUNCTIONS"], sites["authority"]
            soon(lambda: _has_certificate(url, trusted))
            answer = requests.post(f"{url}/run/shop", json={"n": 1}, verify=trusted, timeout=30)
            assert (answer.status_code, answer.json()) == (200, {"n": 1})
            assert requests.get(f"{url}/status", verify=trusted, timeout=30).status_code == 404


def _has_certificate(url: str, trusted: str) -> bool:
    """Whether Caddy has made the certificate of a site, which it does in the background."""
    try:
        requests.get(url, verify=trusted, timeout=30)
    except requests.exceptions.SSLError:
        return False
    return True
