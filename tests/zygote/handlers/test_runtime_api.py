"""Programs behind the Runtime API: which cannot be run, and whose connection it has accepted."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest

from sockd_zygote.handlers.programs.runtime_api import LOOPBACK, is_own, started
from sockd_zygote.messages.errors import ReportedError


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, LOOPBACK), (socket.AF_INET6, f"::ffff:{LOOPBACK}")], ids=["IPv4", "IPv6"]
)
def test_a_connection_of_our_own_is_known_whatever_its_sockets_family(
    family: socket.AddressFamily, address: str
) -> None:
    """Java connects by IPv6 sockets."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        port = listener.getsockname()[1]
        try:
            client = socket.socket(family)
        except OSError as error:
            pytest.skip(f"this kernel has no such sockets: {error.strerror}")
        with client:
            client.connect((address, port))
            accepted, peer = listener.accept()
            with closing(accepted):
                assert is_own(peer[1], port)
                assert not is_own(peer[1], 1)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo", r"bootstrap cannot be executed: exec format error .* a script without #!: its first line must name"),
        ("#!/nowhere/sh\n", r"bootstrap exists, but its interpreter /nowhere/sh does not"),
    ],
)
def test_a_bootstrap_that_cannot_be_run_is_reported_without_frames_of_ours(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "bootstrap").write_text(text)
    (tmp_path / "bootstrap").chmod(0o755)
    function = {"provided": "bootstrap", "code": str(tmp_path), "paths": []}
    with pytest.raises(ReportedError, match=why) as caught:
        started(function, {}, ())
    assert (caught.value.kind, caught.value.stack) == ("Runtime.InvalidEntrypoint", [])


def test_a_wrapper_that_does_not_exist_is_reported_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_LAMBDA_EXEC_WRAPPER", f"{tmp_path}/wrapper")
    with pytest.raises(ReportedError, match=rf"{tmp_path}/wrapper does not exist"):
        started({"provided": "awslambdaric", "code": str(tmp_path), "paths": []}, {}, ())
