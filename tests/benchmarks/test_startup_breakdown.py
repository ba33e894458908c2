"""The drivers of `bench startup_breakdown`, for real."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

import pytest

from benchmarks.peers.peer_driver import FACILITIES, linux
from benchmarks.peers.starters import HERE, PYTHON, Starter
from tests.support.ledger import Ledger

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.mark.parametrize("name", ["python", "crun", "runc", "runsc", "podman", "docker"])
def test_many_are_started_at_once_without_each_facility(name: str, ledger: Ledger) -> None:
    if name != "python" and shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    if name == "docker" and subprocess.run(["docker", "version"], capture_output=True).returncode:
        pytest.skip("Docker's daemon does not run")
    for left in FACILITIES if name == "crun" else FACILITIES[:1]:
        facilities = ",".join(each for each in FACILITIES if each not in (left, "user"))
        with (
            tempfile.TemporaryDirectory(prefix="sockd-") as directory,  # Podman takes paths of 50 characters
            Starter.launch(name, PYTHON, "-I", str(HERE / "peer_driver.py"), name, directory, facilities) as peer,
        ):
            assert peer.ask("check") == {}, left
            times = peer.ask("burst 3")["ms"]
            least = 1 if name == "runsc" else 3  # of gVisor's, one in fifty fails to start
            assert least <= len(times) <= 3 and 0 < times[0] <= times[-1]
    ledger.check()


def test_a_facility_that_is_left_out_is_not_in_the_specification() -> None:
    whole = linux(FACILITIES)
    assert whole.keys() == {"namespaces", "resources", "uidMappings", "gidMappings", "seccomp"}
    assert linux(()) == {"namespaces": [{"type": "mount"}]}
