"""Which file a function's AWS_CA_BUNDLE is, outside of its sandbox."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sockd.functions.modules.authorities import NONE, VARIABLE, open_authorities


def content(named: str, code: Path | None) -> bytes:
    fd = open_authorities({VARIABLE: named}, code)
    try:
        return os.pread(fd, 100, 0)
    finally:
        os.close(fd)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_bytes(b"a file of the worker")
    code = tmp_path / "code"
    (code / "tls").mkdir(parents=True)
    (code / "tls" / "ca.pem").write_bytes(b"ours")
    return code


def test_a_function_without_authorities_of_its_own_has_no_file(code: Path) -> None:
    assert open_authorities({}, code) == open_authorities({VARIABLE: ""}, code) == NONE


@pytest.mark.parametrize("named", ["/var/task/tls/ca.pem", "tls/ca.pem", "/tmp/../var/task/./tls/ca.pem"])
def test_a_path_in_the_sandbox_is_one_in_the_code(code: Path, named: str) -> None:
    assert content(named, code) == b"ours"


def test_the_hosts_software_is_what_sandboxes_see() -> None:
    assert content("/usr/lib/os-release", Path("/nonexistent")) == Path("/usr/lib/os-release").read_bytes()[:100]


@pytest.mark.parametrize(
    "named", ["absent.pem", "tls", "../secret", "/var/task/../secret", "/etc/passwd", "/tmp/ca.pem"]
)
def test_what_the_sandbox_does_not_share_with_the_host_trusts_no_one(code: Path, named: str) -> None:
    assert content(named, code) == b""


def test_a_path_in_an_image_trusts_no_one() -> None:
    assert content("/usr/lib/os-release", None) == b""
