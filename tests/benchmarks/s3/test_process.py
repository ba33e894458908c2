"""The server as a program."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.s3.process import S3Process, ServerFailed

STARTER = """
import sys, threading
from benchmarks.s3.process import S3Process
server = S3Process()
server.start()
print(server.pid, flush=True)
threading.Event().wait()
"""


def test_it_ends_when_its_parent_is_killed_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout
    pidfd = os.pidfd_open(int(parent.stdout.readline()))
    assert len(list(tmp_path.iterdir())) == 1
    try:
        parent.kill()
        parent.wait()
        assert select.select([pidfd], [], [], 10)[0]
        assert list(tmp_path.iterdir()) == []
    finally:
        os.close(pidfd)
        parent.stdout.close()


def test_it_keeps_objects_and_a_log_where_it_is_reported_to(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with S3Process(tmp_path / "objects", log=log) as s3, s3.client() as client:
        client.make_bucket("bucket")
        client.put("bucket", "key", b"hello")
        first = s3.url
    with S3Process(tmp_path / "objects") as s3, s3.client() as client:
        assert client.get("bucket", "key") == b"hello"
        assert s3.url != first
        with pytest.raises(ServerFailed):
            S3Process(tmp_path / "objects").start()
    assert [json.loads(line)["status"] for line in log.read_text().splitlines()] == [200, 200]


def test_a_client_survives_the_server(tmp_path: Path) -> None:
    with S3Process(tmp_path, secret_key="secret") as s3:
        client = s3.client()
        client.make_bucket("bucket")
        port = s3.url.rpartition(":")[2]
    with pytest.raises(OSError):
        list(client.list("bucket"))
    command = [
        sys.executable,
        "-m",
        "benchmarks.s3",
        str(tmp_path),
        "--secret-key",
        "secret",
        "--port",
        port,
        "--die-on-eof",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process, client:
        assert process.stdin and process.stdout
        process.stdout.readline()
        assert list(client.list("bucket")) == []
        process.stdin.close()


def test_it_ends_with_sigterm_and_says_its_made_up_secret(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.s3", str(tmp_path / "objects")],
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("SOCKD_")},
    )
    assert process.stdout
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    assert process.stdout.readline().startswith("access key sockd, secret key ")
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    process.stdout.close()


def test_a_function_finds_it_by_its_environment() -> None:
    s3 = S3Process(secret_key="secret")
    s3.url = "http://127.0.0.1:1"
    assert s3.env()["AWS_ENDPOINT_URL_S3"] == s3.url
    assert s3.env("http://127.0.0.1:2")["AWS_ENDPOINT_URL_S3"] == "http://127.0.0.1:2"
    assert (s3.env()["AWS_ACCESS_KEY_ID"], s3.env()["AWS_SECRET_ACCESS_KEY"]) == ("sockd", "secret")
