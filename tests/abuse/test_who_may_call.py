"""Group K: `/run`, `/status` and `/metrics` are open, for keys, or closed, and no way around that is left open."""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.abuse.clients import invoke_as_nobody
from tests.abuse.managing import as_user, bearer, cli, key
from tests.daemon.aws_client import KEY, KEYS, SECRET
from tests.daemon.running import RunningDaemon
from tests.support.cases import Happened, case

pytestmark = pytest.mark.root

ECHO = "def f(event): return event"
APP = """
def app(environ, start_response):
    start_response("200 OK", [])
    return [str(sorted(name for name in environ if "AUTH" in name)).encode()]
"""
AWS_INVOKE = "/2015-03-31/functions/{}/invocations"


@contextmanager
def running(state: Path, config: str) -> Iterator[RunningDaemon]:
    daemon = RunningDaemon.start(state, config)
    try:
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
        assert not any("Traceback" in line for line in daemon.lines), "\n".join(daemon.lines)
    finally:
        daemon.close()


@case(
    "K22",
    'http.run, http.status and http.metrics = "keys": requests without a key, with one for less, with the right one',
    expect="401 with WWW-Authenticate, 403, and the answer; unsigned Invoke is closed; root goes on over run.sock, others do not",
)
def test_everything_is_for_keys(tmp_path: Path, happened: Happened) -> None:
    with running(tmp_path / "state", '[http]\nrun = "keys"\nstatus = "keys"\nmetrics = "keys"\n') as daemon:
        daemon.deploy("echo", ECHO)
        daemon.deploy("other", ECHO)
        daemon.deploy("app", APP)
        reader, caller = key(daemon, "reader", "read"), key(daemon, "caller", "invoke")
        of_echo = key(daemon, "of-echo", "invoke", functions=["echo"])

        def run(name: str, headers: dict[str, str] | None = None) -> requests.Response:
            return requests.post(f"{daemon.url}/run/{name}", data=b"1", headers=headers, timeout=30)

        nothing = run("echo")
        assert (nothing.status_code, nothing.headers["WWW-Authenticate"]) == (401, 'Bearer realm="sockd"')
        assert "invalid_token" in run("echo", bearer(caller[:-1] + "x")).headers["WWW-Authenticate"]
        assert run("nobody").status_code == 401, "who has no key is not told which functions there are"
        assert run("echo", bearer(reader)).status_code == 403
        assert run("echo", bearer(caller)).json() == 1
        assert [run(name, bearer(of_echo)).status_code for name in ("echo", "other")] == [200, 403]
        shown = run("app", bearer(caller)).text
        happened(f"an app that is called with a key sees of it: {shown}")
        assert "HTTP_AUTHORIZATION" not in shown
        for path in ("status", "metrics"):
            got = [
                requests.get(f"{daemon.url}/{path}", headers=headers, timeout=30).status_code
                for headers in ({}, bearer(caller), bearer(reader))
            ]
            assert got == [401, 403, 200], path
        assert requests.get(f"{daemon.url}/healthz", timeout=30).status_code == 200
        assert daemon.request("POST", AWS_INVOKE.format("echo"), b"1").status == 403
        assert cli("invoke", "echo", "-d", "5", "--state-dir", str(daemon.state), home=tmp_path).stdout == "5\n"
        assert "401" in as_user(daemon, "invoke", "echo", "--json").stdout
        # A connection that was let in is asked for its key again.
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)
        for wanted in (200, 200, 401):
            if wanted == 401:
                daemon.manage("DELETE", "/keys/caller")
            connection.request("POST", "/run/echo", b"1", bearer(caller))
            response = connection.getresponse()
            assert (response.status, bool(response.read())) == (wanted, True)
        connection.close()


@case(
    "K22",
    "a function closes its own /run, or wants keys, also for its versions, over a restart and a kept connection",
    expect="so it is; functions beside it and function URLs are as open as they were",
)
def test_a_function_closes_its_own(tmp_path: Path, happened: Happened) -> None:
    state = tmp_path / "state"
    with running(state, "") as daemon:
        daemon.deploy("open", ECHO)
        daemon.deploy("closed", ECHO)
        daemon.deploy("keyed", {"f.py": ECHO, "sockd.toml": 'run = "keys"'})
        assert daemon.manage("POST", "/functions/closed/versions", b"{}").status == 200
        caller = key(daemon, "caller", "invoke")
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=30)

        def kept(name: str) -> int:
            connection.request("POST", f"/run/{name}", b"1")
            response = connection.getresponse()
            response.read()
            return response.status

        assert [kept("closed"), kept("closed"), kept("closed:1"), kept("closed:1")] == [200] * 4
        reported = cli("config", "closed", "--run", "off", "--state-dir", str(state), home=tmp_path)
        assert reported.returncode == 0, reported.stderr
        assert [kept("closed"), kept("closed:1"), kept("open")] == [403, 403, 200]
        connection.close()
    with running(state, "") as daemon:
        got = {name: daemon.run(name, 1).status for name in ("open", "closed", "closed:1", "keyed")}
        happened(str(got))
        assert got == {"open": 200, "closed": 403, "closed:1": 403, "keyed": 401}
        assert daemon.request("POST", "/run/keyed", b"1", bearer(caller)).json == 1
        assert daemon.request("POST", "/run/closed", b"1", bearer(caller)).status == 403
        for name, status in (("open", 200), ("closed", 403), ("keyed", 403)):
            assert daemon.request("POST", AWS_INVOKE.format(name), b"1").status == status
        url = daemon.manage("PUT", "/functions/closed/url", json.dumps({"auth": "NONE"}))
        assert url.status == 200, url
        path = "/" + url.json["path_url"].split("/", 3)[3]
        assert daemon.request("POST", path, b"1", {"content-type": "application/json"}).status == 200
        assert call_by_command(daemon, "closed", tmp_path).stdout == "1\n", "root manages it"
        daemon.deploy("closed", ECHO + "  # again")
        assert daemon.run("closed", 1).status == 403, "a deploy keeps what a command has set"
        daemon.deploy("closed", {"f.py": ECHO, "sockd.toml": 'run = "open"'})
        assert daemon.run("closed", 1).status == 200, "until it names the setting"


def call_by_command(daemon: RunningDaemon, name: str, home: Path) -> subprocess.CompletedProcess[str]:
    return cli("invoke", name, "-d", "1", "--state-dir", str(daemon.state), home=home)


@case(
    "K22", "http.run = false: root and another user run `sockd invoke`", expect="root is answered, the other is refused"
)
def test_a_closed_run_is_open_to_root(tmp_path: Path, happened: Happened) -> None:
    with running(tmp_path / "state", "[http]\nrun = false\nstatus = false\n") as daemon:
        daemon.deploy("echo", ECHO)
        assert daemon.run("echo", 1).status == 403
        assert daemon.request("POST", AWS_INVOKE.format("echo"), b"1").status == 403
        assert daemon.request("GET", "/status").status == 404
        both = invoke_as_nobody(daemon.state, "echo")
        happened(f"{both.stdout!r} {both.stderr!r}")
        assert both.stdout.split() == ['"root"'] and "/run is closed on this worker (http.run)" in both.stderr


@case(
    "K22",
    "AWS's API is asked under the name of a proxy: signed with a key, without a signature, and at a worker without keys",
    expect="the signed request is answered, as the proxy cannot change what is signed; the others are 403",
)
def test_signed_requests_come_under_any_name(tmp_path: Path, happened: Happened) -> None:
    path = "/2015-03-31/functions/"
    wanted = AWSRequest("GET", f"https://aws.example.org{path}")
    SigV4Auth(Credentials(KEY, SECRET), "lambda", "eu-central-1").add_auth(wanted)
    host = {"Host": "aws.example.org"}
    with running(tmp_path / "keys", KEYS) as daemon:
        signed = daemon.request("GET", path, headers={**dict(wanted.headers.items()), **host})
        unsigned = daemon.request("GET", path, headers=host)
        invoked = daemon.request("POST", AWS_INVOKE.format("f"), b"1", host)
        run = daemon.request("POST", "/run/f", b"1", host)
    with running(tmp_path / "none", "") as daemon:
        keyless = daemon.request("POST", AWS_INVOKE.format("f"), b"1", host)
    reported = [answer.status for answer in (signed, unsigned, invoked, run, keyless)]
    happened(f"signed {reported[0]}, others {reported[1:]}")
    assert reported == [200, 403, 403, 403, 403], signed


def test_a_deploy_that_opens_a_closed_function_says_so(tmp_path: Path) -> None:
    with running(tmp_path / "state", "") as daemon:
        daemon.deploy("keyed", {"f.py": ECHO, "sockd.toml": 'run = "keys"'})
        mark = daemon.mark
        daemon.deploy("keyed", ECHO)
        daemon.wait_line(r"deploy of keyed: /run was 'keys', and is 'as http.run' from now on", since=mark)
        assert daemon.run("keyed", 1).json == 1
