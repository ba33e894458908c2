"""Group K: who may manage a worker. Root, the members of one group over its socket, and over TCP those with a key for it."""

from __future__ import annotations

import http.client
import json
import os
import select
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.abuse.clients import NOBODY, as_nobody
from tests.abuse.managing import GROUP, MANAGED, as_user, bearer, cli, key, managed_at
from tests.daemon.running import REPO, RunningDaemon, zipped
from tests.support.cases import Happened, case
from tests.support.private_worker import command_without

pytestmark = pytest.mark.root

ECHO = "def f(event): return event"


@pytest.fixture(scope="module")
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    command = command_without(request.config.getoption("broken", default=""))
    daemon = RunningDaemon.start(tmp_path_factory.mktemp("managed") / "state", MANAGED, command=command)
    try:
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
        assert not any("Traceback" in line for line in daemon.lines), "\n".join(daemon.lines)
    finally:
        daemon.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "shop"
    directory.mkdir()
    (directory / "f.py").write_text("def f(event):\n    print('was called')\n    return ['shop', event]")
    return directory


@case(
    "K20",
    "members of management.group, by their first or another of their groups, deploy, call, read logs and remove; others try",
    expect="members manage the worker; others are told which group may; nothing but the socket is open to the group",
)
def test_a_group_manages(daemon: RunningDaemon, happened: Happened, project: Path) -> None:
    gid = GROUP.gr_gid
    deployed = as_user(daemon, "deploy", ".", "--name", "shop", gid=gid, source=project)
    assert deployed.returncode == 0, deployed.stderr
    called = as_user(daemon, "invoke", "shop", "-d", "1", groups=[1, 2, 3, gid])
    assert called.stdout == '["shop",1]\n', called.stderr
    assert "was called" in as_user(daemon, "logs", "shop", groups=[gid]).stdout
    stranger = as_user(daemon, "ls", groups=[other for other in (1, 2, 3) if other != gid])
    assert stranger.returncode == 69
    assert f"is for root and the group {GROUP.gr_name}" in stranger.stderr
    assert f"sudo usermod -aG {GROUP.gr_name} $USER" in stranger.stderr
    assert as_user(daemon, "rm", "shop", groups=[gid]).returncode == 0
    found = (daemon.state / "sockd.sock").stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, gid, 0o660)
    seen = as_nobody(daemon.state)
    happened(f"of {seen['paths']} paths {len(seen['seen'])} are open to others")
    assert seen["seen"] == {} and not seen["sockd.sock"]
    doctor = cli("doctor", "--json", "--state-dir", str(daemon.state), home=project)
    reported = {each["name"]: each for each in json.loads(doctor.stdout)}
    assert reported["state directory"]["ok"] is True, reported["state directory"]


MEMBER_OPENS = f"""
import json, os, sys
directory = os.open(sys.argv[1], os.O_PATH | os.O_DIRECTORY)
os.setgroups([]); os.setresgid({GROUP.gr_gid}, {GROUP.gr_gid}, {GROUP.gr_gid}); os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
opened = []
for path in json.load(sys.stdin):
    for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDONLY | os.O_DIRECTORY):
        try:
            os.close(os.open(path, flags | os.O_NONBLOCK, dir_fd=directory))
            opened.append(path)
        except OSError:
            pass
print(json.dumps(opened))
"""


@case("K20", "a member of the group opens every path of the state directory", expect="none but the sockets opens")
def test_a_member_opens_no_file(daemon: RunningDaemon, happened: Happened) -> None:
    paths = [str(path.relative_to(daemon.state)) for path in daemon.state.rglob("*")]
    done = subprocess.run(
        [sys.executable, "-c", MEMBER_OPENS, str(daemon.state)],
        input=json.dumps(paths),
        capture_output=True,
        text=True,
        check=True,
    )
    happened(f"of {len(paths)} paths {done.stdout.strip()} opened")
    assert json.loads(done.stdout) == []


@case(
    "K20",
    "the mode of the management socket is changed to 0666, and another user connects",
    expect="403: the daemon asks the kernel who it is",
)
def test_the_mode_of_the_socket_is_not_all_that_guards_it(daemon: RunningDaemon, happened: Happened) -> None:
    os.chmod(daemon.state / "sockd.sock", 0o666)
    try:
        stranger = as_user(daemon, "ls")
    finally:
        os.chmod(daemon.state / "sockd.sock", 0o660)
    happened(stranger.stderr)
    assert stranger.returncode == 1 and f"members of the group '{GROUP.gr_name}' may manage" in stranger.stderr


@case(
    "K20",
    "management.group names a group that this host does not have",
    expect="the worker does not start, and says why",
)
def test_a_group_that_is_not_there(tmp_path: Path, happened: Happened) -> None:
    daemon = RunningDaemon.launch(tmp_path / "state", '[management]\ngroup = "no-such-group"\n')
    try:
        assert daemon.wait() == 1
        happened(" ".join(daemon.lines))
        assert any("groupadd --system no-such-group" in line for line in daemon.lines)
    finally:
        daemon.close()


@case(
    "K21",
    "a user elsewhere logs in with a key and deploys, calls, configures, lists, reads logs and traces, and removes",
    expect="each works as on the worker's host; after `sockd logout`, and after `sockd keys rm`, none does",
)
def test_a_worker_elsewhere(daemon: RunningDaemon, happened: Happened, project: Path, tmp_path: Path) -> None:
    url, home = managed_at(daemon), tmp_path / "config"
    state = ("--state-dir", str(daemon.state))
    made = cli("keys", "add", "ci", "--may", "deploy", "--may", "invoke", "--may", "read", *state, home=home)
    text = made.stdout.strip()
    assert text.startswith("sockd_") and text not in made.stderr
    logged_in = cli("login", url, home=home, stdin=text + "\n")
    assert logged_in.returncode == 0, logged_in.stderr
    assert "may read, invoke, deploy" in logged_in.stdout and text not in logged_in.stdout
    file = home / "sockd" / "credentials.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700

    def sockd(*arguments: str) -> str:
        done = cli(*arguments, home=home, cwd=project, SOCKD_WORKER=url)
        assert done.returncode == 0, (arguments, done.stderr)
        return done.stdout

    assert "127.0.0.1" not in sockd("deploy", ".", "--name", "shop"), "no address that means nothing here"
    assert json.loads(sockd("invoke", "shop", "-d", "7")) == ["shop", 7]
    request_id = sockd("invoke", "shop", "--async").strip()
    assert len(request_id) == 36
    assert "256 MB" in sockd("config", "shop", "--memory", "256")
    assert "shop" in sockd("ls")
    assert "was called" in sockd("logs", "shop")
    trace_id = json.loads(sockd("invoke", "shop", "--json"))["request_id"]
    assert trace_id in sockd("trace", trace_id, "--json")
    for line in follow(home, project, url, lambda: sockd("invoke", "shop")):
        assert "was called" in line
    sockd("rm", "shop")
    happened(sockd("ls"))
    assert cli("logout", url, home=home).returncode == 0
    assert cli("ls", home=home, SOCKD_WORKER=url).returncode == 2
    assert cli("ls", home=home, SOCKD_WORKER=url, SOCKD_KEY=text).returncode == 0, "CI keeps no file"
    assert cli("keys", "rm", "ci", *state, home=home).returncode == 0
    refused = cli("ls", home=home, SOCKD_WORKER=url, SOCKD_KEY=text)
    assert refused.returncode == 1 and "revoked" in refused.stderr


def test_the_public_port_is_reported_from_the_management_api(
    daemon: RunningDaemon, project: Path, tmp_path: Path
) -> None:
    text = key(daemon, "strayed", "read", "deploy", "invoke")
    refused = cli("login", daemon.url, home=tmp_path, stdin=text + "\n")
    assert refused.returncode == 1 and "management.listen" in refused.stderr and "refuses" not in refused.stderr
    daemon.deploy("near", ECHO)  # with a function, /functions is a page; without one it is the page that says so
    for command in (("ls",), ("logs", "near"), ("deploy", str(project))):
        done = cli(*command, home=tmp_path, SOCKD_WORKER=daemon.url, SOCKD_KEY=text)
        assert done.returncode != 0 and "Traceback" not in done.stderr, done.stderr
        assert command[0] == "logs" or "management.listen" in done.stderr, done.stderr
    assert daemon.manage("DELETE", "/keys/strayed").status == 200


def test_who_may_call_a_function_is_shown_and_a_refused_call_has_no_log(daemon: RunningDaemon, tmp_path: Path) -> None:
    daemon.deploy("closed", ECHO)
    state = ("--state-dir", str(daemon.state))
    assert "as http.run" in cli("config", "closed", *state, home=tmp_path).stdout
    assert "keys" in cli("config", "closed", "--run", "keys", *state, home=tmp_path).stdout
    reader = key(daemon, "looks", "read")
    refused = cli("invoke", "closed", home=tmp_path, SOCKD_WORKER=managed_at(daemon), SOCKD_KEY=reader)
    assert refused.returncode == 1 and "AccessDenied" in refused.stderr and "sockd logs" not in refused.stderr
    assert daemon.manage("DELETE", "/keys/looks").status == 200


def follow(home: Path, project: Path, url: str, call: object) -> list[str]:
    """What `sockd logs -f` shows of a call that is made while it runs."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("SOCKD_")}
    env = {**known, "PYTHONPATH": str(REPO), "XDG_CONFIG_HOME": str(home), "SOCKD_WORKER": url, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "sockd", "logs", "shop", "-f", "--json", "--since", "1h"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as following:
        try:
            assert following.stdout is not None
            earlier = following.stdout.readline()  # it follows by now
            assert callable(call)
            call()
            assert select.select([following.stdout], [], [], 30)[0]
            return [earlier, following.stdout.readline()]
        finally:
            following.terminate()


def test_a_file_of_decorated_functions_is_deployed_elsewhere(daemon: RunningDaemon, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import sockd\n\n@sockd.function\ndef doubled(x):\n    return 2 * x\n")
    text = key(daemon, "apps", "deploy")
    done = cli(
        "deploy", "app.py", "--worker", managed_at(daemon), home=tmp_path / "config", cwd=tmp_path, SOCKD_KEY=text
    )
    assert done.returncode == 0 and "doubled: version 1" in done.stdout, done.stderr
    assert daemon.remove("doubled").status == 200
    assert daemon.manage("DELETE", "/keys/apps").status == 200


@case(
    "K21",
    "requests without a key, with a wrong one, with one of another scheme, with two, with one for less",
    expect="401 with WWW-Authenticate, 403 for a key that may not, and nothing done; no key makes keys",
)
def test_a_key_allows_what_it_was_made_for(daemon: RunningDaemon, happened: Happened) -> None:
    url = managed_at(daemon)
    daemon.deploy("shop", ECHO)
    daemon.deploy("other", ECHO)
    reader, caller, deployer = (key(daemon, name, name) for name in ("read", "invoke", "deploy"))
    shop = key(daemon, "shop", "read", "invoke", "deploy", functions=["shop"])
    whole = key(daemon, "whole", "read", "invoke", "deploy")
    wrong = reader[:-1] + ("0" if reader[-1] != "0" else "1")
    for headers in (
        {},
        bearer(""),
        bearer(wrong),
        bearer("sockd_00000000_" + "0" * 64),
        {"Authorization": reader},
        {"Authorization": f"Basic {reader}"},
        bearer(reader + "\u00e9"),
    ):
        answer = requests.get(
            f"{url}/functions", headers={k: v.encode("latin-1") for k, v in headers.items()}, timeout=30
        )
        assert answer.status_code == 401, (headers, answer.text)
        assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="sockd"')
        assert answer.json()["errorType"] == "UnauthorizedException"

    def status(text: str, method: str, path: str, data: bytes | None = None) -> int:
        return requests.request(method, url + path, data=data, headers=bearer(text), timeout=30).status_code

    code = zipped({"f.py": ECHO})
    table = {
        ("GET", "/functions"): "read shop whole",
        ("GET", "/functions/shop"): "read shop whole",
        ("GET", "/functions/shop/logs"): "read shop whole",
        ("GET", "/functions/other/logs"): "read whole",
        ("GET", "/functions/shop/env"): "read shop whole",
        ("GET", "/functions/shop/env?values=1"): "deploy shop whole",
        ("GET", "/functions%2Fother"): "read whole",
        ("GET", "/traces"): "read shop whole",
        ("GET", "/traces?function=other"): "read whole",
        ("GET", "/status"): "read shop whole",
        ("GET", "/key"): "read invoke deploy shop whole",
        ("GET", "/keys"): "",
        ("POST", "/keys"): "",
        ("DELETE", "/keys/read"): "",
        ("POST", "/functions/shop/debug"): "",
        ("POST", "/functions/shop/invoke"): "invoke shop whole",
        ("POST", "/functions/shop:$LATEST/invoke"): "invoke shop whole",
        ("POST", "/functions/other/invoke"): "invoke whole",
        ("PUT", "/functions/shop"): "deploy shop whole",
        ("PUT", "/functions/other"): "deploy whole",
    }
    quoted = http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=30)
    quoted.request("GET", "/functions/shop/env?%76alues=1", headers=bearer(reader))
    assert quoted.getresponse().status == 403
    quoted.close()
    keys = {"read": reader, "invoke": caller, "deploy": deployer, "shop": shop, "whole": whole}
    for (method, path), may in table.items():
        body = code if method == "PUT" else b"{}" if method == "POST" else None
        got = {name: status(text, method, path, body) for name, text in keys.items()}
        wanted = {name: 200 if name in may.split() else 403 for name in keys}
        assert got == wanted, (method, path)
    seen = {
        name: {
            function["name"] for function in requests.get(f"{url}/functions", headers=bearer(text), timeout=30).json()
        }
        for name, text in (("shop", shop), ("whole", whole))
    }
    assert seen["shop"] == {"shop"} and seen["whole"] >= {"shop", "other"}
    traced = {
        name: {each["function"] for each in requests.get(f"{url}/traces", headers=bearer(text), timeout=30).json()}
        for name, text in (("shop", shop), ("whole", whole))
    }
    assert traced["shop"] == {"shop"} and traced["whole"] >= {"shop", "other"}
    shown = requests.get(f"{url}/status", headers=bearer(shop), timeout=30).json()
    assert shown.keys() == {"version", "limits"}, "nothing of other functions"
    happened(f"{len(table)} requests with each of {len(keys)} keys")
    kept = (daemon.state / "keys.json").read_text()
    assert all(text.rpartition("_")[2] not in kept for text in keys.values()), "hashes alone are kept"
    listed = daemon.manage("GET", "/keys")
    assert {each["name"] for each in listed.json} == set(keys) and "digest" not in listed.body.decode()
    for name in keys:
        assert daemon.manage("DELETE", f"/keys/{name}").status == 200
    assert status(whole, "GET", "/functions") == 401
    for name in ("shop", "other"):
        daemon.remove(name)


@case(
    "K21",
    "a key for one function, and one that may deploy alone, name a function that is closed to them as a destination of events",
    expect="403; the other function does not run",
)
def test_no_key_calls_a_function_by_way_of_another(daemon: RunningDaemon, happened: Happened) -> None:
    url = managed_at(daemon)
    daemon.deploy("mine", ECHO)
    daemon.deploy(
        "closed", {"f.py": "def f(event):\n    print('was called')\n    return event", "sockd.toml": 'run = "off"'}
    )
    reported = {}
    for name, rights, functions in (
        ("of-mine", ("read", "invoke", "deploy"), ["mine"]),
        ("deployer", ("deploy",), []),
    ):
        headers = bearer(key(daemon, name, *rights, functions=functions))
        for side in ("on_success", "on_failure"):
            body = json.dumps({side: "closed"})
            path = f"{url}/functions/mine/event-invoke-config"
            reported[name, side] = requests.put(path, data=body, headers=headers, timeout=30).status_code
        schedule = json.dumps({"function": "closed", "expression": "rate(1 minute)"})
        put = requests.put(f"{url}/schedules/{name}", data=schedule, headers=headers, timeout=30)
        reported[name, "schedule"] = put.status_code
    happened(str(reported))
    assert set(reported.values()) == {403}
    assert daemon.manage("GET", "/functions/mine/event-invoke-config").json == []
    assert daemon.manage("GET", "/schedules").json == []
    assert daemon.logs("closed") == []
    for name in ("of-mine", "deployer"):
        assert daemon.manage("DELETE", f"/keys/{name}").status == 200
    for name in ("mine", "closed"):
        assert daemon.remove(name).status == 200


@case("K21", "the address is plain http to another machine", expect="neither the worker nor the client does it unasked")
def test_plain_http_needs_to_be_asked_for(tmp_path: Path, happened: Happened) -> None:
    refused = cli("login", "http://192.0.2.7:5001", home=tmp_path, stdin="sockd_x\n")
    happened(refused.stderr)
    assert refused.returncode == 2 and "--plain-http" in refused.stderr
    by_variable = cli("ls", home=tmp_path, SOCKD_WORKER="http://192.0.2.7:5001", SOCKD_KEY="sockd_x")
    assert by_variable.returncode == 2 and "in the clear" in by_variable.stderr
    daemon = RunningDaemon.launch(tmp_path / "state", '[management]\nlisten = "0.0.0.0:0"\n')
    try:
        assert daemon.wait() == 1
        assert any("management.plain_http = true" in line for line in daemon.lines), daemon.lines
    finally:
        daemon.close()


@case("K21", "credentials.json is open to others, or damaged", expect="it is not used, and the fix is said")
def test_credentials_that_others_can_read_are_not_used(tmp_path: Path, happened: Happened) -> None:
    file = tmp_path / "sockd" / "credentials.json"
    file.parent.mkdir()
    file.write_text('{"https://w.example": {"key": "sockd_x"}}')
    file.chmod(0o640)
    refused = cli("ls", "--worker", "https://w.example", home=tmp_path)
    happened(refused.stderr)
    assert refused.returncode == 2 and f"chmod 600 {file}" in refused.stderr
    file.chmod(0o600)
    file.write_text("[")
    assert f"rm {file}" in cli("ls", "--worker", "https://w.example", home=tmp_path).stderr


@case(
    "K21",
    "keys outlive a restart; keys.json is damaged",
    expect="known again; a worker that cannot read them does not start",
)
def test_keys_outlive_the_worker(tmp_path: Path, happened: Happened) -> None:
    state = tmp_path / "state"
    daemon = RunningDaemon.start(state, MANAGED)
    try:
        text = key(daemon, "ci", "read")
        assert stat.S_IMODE((state / "keys.json").stat().st_mode) == 0o600
    finally:
        daemon.close()
    daemon = RunningDaemon.start(state, MANAGED)
    try:
        assert requests.get(f"{managed_at(daemon)}/status", headers=bearer(text), timeout=30).status_code == 200
    finally:
        daemon.close()
    (state / "keys.json").write_text("{")
    daemon = RunningDaemon.launch(state, MANAGED)
    try:
        assert daemon.wait() == 1
        happened(" ".join(daemon.lines))
        assert any("keys.json in the state directory is damaged" in line for line in daemon.lines)
    finally:
        daemon.close()
