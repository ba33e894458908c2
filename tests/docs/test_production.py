"""The page for production: its proxy, its deploy from a CI, its backup, alerts, dashboard and uninstall do what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
import yaml
from botocore.config import Config

from benchmarks import upgrade
from sockd.base.config import Config as WorkerConfig
from sockd.http.server.listening.sockets import addresses_of, parse_listen
from sockd.linux.network.loopback import show
from sockd.observe.metrics import REASONS
from sockd.worker.life.ending import RESTART
from tests.abuse.clients import free_port
from tests.abuse.managing import bearer, cli, key, managed_at
from tests.daemon.aws_client import KEY, KEYS, SECRET
from tests.daemon.running import RunningDaemon
from tests.support.threads import in_background

REPO = Path(__file__).resolve().parents[2]
FILES = REPO / "docs" / "production"
pytestmark = pytest.mark.timeout(180)
PAGE = REPO / "docs" / "guide" / "production.md"
METRIC = re.compile(r"\b(?:faas|sockd)_[a-z_]+\b(?!\s*=)")
SHOP = """
def handler(event):
    print("was called")
    return ["shop", event]
"""


def has_cgroups(name: str) -> bool:
    """Whether a worker of this name has any."""
    return any(name in directories for _, directories, _ in os.walk("/sys/fs/cgroup"))


@contextmanager
def running(state: Path, config: str = "") -> Iterator[RunningDaemon]:
    daemon = RunningDaemon.start(state, config)
    try:
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
        assert not any("Traceback" in line for line in daemon.lines), "\n".join(daemon.lines)
    finally:
        daemon.close()


@contextmanager
def caddy(directory: Path, port: int, management: str) -> Iterator[dict[str, str]]:
    """Caddy with the page's file: the address of each of its sites, and the file of its authority's certificate.

    Args: port: of the worker, or of a group's front; management: its management door."""
    program = os.environ.get("SOCKD_CADDY") or shutil.which("caddy")
    if program is None:
        pytest.skip("caddy is not installed: apt-get install caddy, or SOCKD_CADDY=PATH")
    ports = {name: free_port() for name in ("FUNCTIONS", "AWS", "MANAGEMENT")}
    env = {
        **os.environ,
        **{name: f"localhost:{port}" for name, port in ports.items()},
        "HTTP_PORT": str(free_port()),
        "HTTPS_PORT": str(free_port()),
        "SOCKD": f"127.0.0.1:{port}",
        "SOCKD_MANAGEMENT": management.removeprefix("http://"),
        "XDG_DATA_HOME": str(directory / "data"),
        "XDG_CONFIG_HOME": str(directory / "config"),
        "HOME": str(directory),
    }
    # For a test: no admin port, and nothing put into the host's store of certificates.
    text = (
        (FILES / "Caddyfile")
        .read_text()
        .replace("{\n", "{\n\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n", 1)
    )
    (directory / "Caddyfile").write_text(text)
    command = [program, "run", "--config", str(directory / "Caddyfile"), "--adapter", "caddyfile"]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = []
            for line in process.stderr:
                lines.append(line)
                if "serving initial configuration" in line:
                    break
            else:
                raise AssertionError("".join(lines))
            authority = directory / "data" / "caddy" / "pki" / "authorities" / "local" / "root.crt"
            yield {**{name: f"https://localhost:{port}" for name, port in ports.items()}, "authority": str(authority)}
        finally:
            process.terminate()


@pytest.mark.root
def test_the_caddyfile_publishes_what_the_page_says(tmp_path: Path) -> None:
    config = f'[http]\nrun = "keys"\n[management]\nlisten = "127.0.0.1:0"\n{KEYS}'
    with running(tmp_path / "state", config) as daemon, caddy(tmp_path, daemon.port, managed_at(daemon)) as sites:
        trusted = sites["authority"]
        daemon.deploy("shop", {"handler.py": SHOP})
        daemon.deploy("ticks", "def f(event):\n    for n in range(3):\n        yield f'{n}\\n'")
        caller, whole = key(daemon, "caller", "invoke"), key(daemon, "whole", "read", "invoke", "deploy")

        def status(path: str, **headers: str) -> int:
            return requests.get(sites["FUNCTIONS"] + path, headers=headers, verify=trusted, timeout=30).status_code

        assert status("/run/shop") == 401
        assert status("/run/shop", **bearer(caller)) == 200
        streamed = requests.get(f"{sites['FUNCTIONS']}/run/ticks", headers=bearer(caller), verify=trusted, timeout=30)
        assert streamed.text == "0\n1\n2\n"
        url = daemon.manage("PUT", "/functions/shop/url", json.dumps({"auth": "NONE"})).json["path_url"]
        assert status("/" + url.split("/", 3)[3]) == 200
        for path in (
            "/",
            "/status",
            "/metrics",
            "/functions/shop",
            "/traces/x",
            "/events",
            "/healthz",
            "/2015-03-31/functions",
        ):
            assert status(path) == 404, path
        client = boto3.Session(region_name="eu-central-1").client(
            "lambda",
            endpoint_url=sites["AWS"],
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            verify=trusted,
            config=Config(retries={"total_max_attempts": 1}),
        )
        assert json.load(client.invoke(FunctionName="shop", Payload=b"7")["Payload"]) == ["shop", 7]
        client.close()
        assert requests.get(f"{sites['AWS']}/status", verify=trusted, timeout=30).status_code == 404
        # The command, as on the page: login, deploy, call, logs -f, logout.
        home, project = tmp_path / "home", tmp_path / "shop"
        project.mkdir()
        (project / "handler.py").write_text(SHOP.replace("shop", "new shop"))
        where = {"SOCKD_WORKER": sites["MANAGEMENT"], "SSL_CERT_FILE": trusted}
        untrusted = cli("login", sites["MANAGEMENT"], home=home, stdin=whole + "\n")
        assert untrusted.returncode == 69 and "certificate" in untrusted.stderr
        for arguments, shown in (
            (("login", sites["MANAGEMENT"]), "may read, invoke, deploy"),
            (("deploy", str(project)), "shop: version 2"),
            (("invoke", "shop", "-d", "1"), '["new shop",1]'),
            (("logs", "shop"), "was called"),
            (("logout",), "deleted the key"),
        ):
            done = cli(*arguments, home=home, stdin=whole + "\n", **where)  # type: ignore[arg-type]
            assert done.returncode == 0 and shown in done.stdout, (arguments, done.stderr)
        # A CI without the command, as on the page.
        (shell,) = (
            block for block in re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.M | re.S) if "curl" in block
        )
        for tool in ("jq", "curl"):
            if shutil.which(tool) is None:
                pytest.skip(f"{tool} is not installed")
        env = {**os.environ, **where, "CURL_CA_BUNDLE": trusted, "SOCKD_KEY": whole}
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", shell], cwd=tmp_path, env=env, check=True, capture_output=True
        )
        (project / "handler.py").write_text("def handler(event: return 1")
        (tmp_path / "shop" / "requirements.txt").write_text("!!")
        broken = subprocess.run(["bash", "-euo", "pipefail", "-c", shell], cwd=tmp_path, env=env, capture_output=True)
        assert broken.returncode != 0, "a deploy that fails fails the job"


@pytest.mark.root
def test_the_job_of_a_ci_does_its_steps_with_the_key_of_the_page(tmp_path: Path) -> None:
    page = PAGE.read_text()
    add = next(line for line in page.splitlines() if line.startswith("sudo sockd keys add ci "))
    (workflow,) = (block for block in re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S) if "jobs:" in block)
    steps = [step["run"] for step in yaml.safe_load(workflow)["jobs"]["deploy"]["steps"] if "run" in step]
    commands = [shlex.split(step)[1:] for step in steps if step.startswith("sockd ")]
    assert {command[0] for command in commands} >= {"deploy", "invoke"}
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "handler.py").write_text(SHOP)
    with running(tmp_path / "state", '[management]\nlisten = "127.0.0.1:0"\n') as daemon:
        made = cli(*shlex.split(add)[2:], "--state-dir", str(daemon.state), home=tmp_path)
        assert made.returncode == 0, made.stderr
        where: dict[str, Any] = {"SOCKD_WORKER": managed_at(daemon), "SOCKD_KEY": made.stdout.strip()}
        for command in (*commands, ["ls"]):
            done = cli(*command, home=tmp_path, cwd=tmp_path, **where)
            assert done.returncode == 0 and "shop" in done.stdout, (command, done.stderr)
        daemon.deploy("other", "def f(event): return event")
        assert "other" not in cli("ls", home=tmp_path, **where).stdout
        refused = cli("invoke", "other", home=tmp_path, **where)
        assert refused.returncode == 1 and "is for shop only" in refused.stderr
        daemon.call("other", 1)
        for command in (
            ["schedule", "add", "shop", "rate(5 minutes)"],
            ["events", "ls", "--function", "shop"],
            ["events", "retry", "--function", "shop"],
            ["trace", "--function", "shop"],
            ["trace"],
        ):
            done = cli(*command, home=tmp_path, **where)
            assert done.returncode == 0 and "other" not in done.stdout, (command, done.stderr)


@pytest.mark.root
def test_a_backup_is_made_while_the_worker_runs_and_is_that_worker(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "backup"
    with running(state) as daemon:
        daemon.deploy(
            "shop",
            {"f.py": "import os\ndef f(event): return [os.environ['A'], os.environ['B'], event]"},
            env={"A": "1"},
        )
        assert daemon.manage("PUT", "/functions/shop/secrets/B", "hunter2").status == 200
        assert daemon.manage("POST", "/functions/shop/versions", b"{}").status == 200
        text = key(daemon, "ci", "read")
        daemon.deploy("later", "def f(event): return event", concurrency=0)
        daemon.run("later", {}, x_amz_invocation_type="Event")

        def deploys() -> None:
            for number in range(10):
                daemon.deploy("churn", f"def f(event): return {number}")
                daemon.remove("churn")

        with in_background(deploys) as deployed:
            done = cli("backup", str(copy), "--state-dir", str(state), home=tmp_path)
            deployed()
        assert done.returncode == 0, done.stderr
        assert copy.stat().st_mode & 0o777 == 0o700
        again = cli("backup", str(copy), "--state-dir", str(state), home=tmp_path)
        assert again.returncode == 1 and f"error: {copy} exists\n  fix: name a directory" in again.stderr
    shutil.rmtree(state)
    restored = cli("restore", str(copy), "--state-dir", str(state), home=tmp_path)
    assert restored.returncode == 0 and "functions restored" in restored.stdout, restored.stderr
    with running(state, '[management]\nlisten = "127.0.0.1:0"\n') as daemon:
        assert daemon.call("shop", 7) == ["1", "hunter2", 7]
        assert daemon.call("shop:1", 8) == ["1", "hunter2", 8]
        assert requests.get(f"{managed_at(daemon)}/status", headers=bearer(text), timeout=30).status_code == 200
        events = daemon.manage("GET", "/events").json
        assert [event["function"] for event in events] == ["later"], "it runs again"
        assert daemon.remove("later").status == 200
    left = cli("backup", str(tmp_path / "offline"), "--state-dir", str(state), home=tmp_path)
    assert left.returncode == 0, left.stderr


def test_what_is_no_state_directory_is_not_copied(tmp_path: Path) -> None:
    done = cli("backup", str(tmp_path / "copy"), "--state-dir", str(tmp_path), home=tmp_path)
    assert done.returncode in (1, 2) and not (tmp_path / "copy").exists()


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What /metrics of a worker has: names, and the values of some labels."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with running(tmp_path_factory.mktemp("metrics") / "state") as daemon:
        daemon.deploy("f", "def f(event): return event")
        daemon.deploy("fails", "def f(event): raise KeyError")
        daemon.call("f", 1)
        daemon.run("fails", 1)
        page = daemon.request("GET", "/metrics").body.decode()
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", page, re.M):
        names |= {name, *(f"{name}_{end}" for end in ("bucket", "sum", "count") if kind in ("histogram", "summary"))}
    labels: dict[str, set[str]] = {}
    for label, value in re.findall(r'[{,]([a-z_]+)="([^"]*)"', page):
        labels.setdefault(label, set()).add(value)
    return {"names": names, "labels": set(labels), "phases": labels["phase"]}


def expressions() -> list[tuple[str, str]]:
    """Each query of the rules and of the dashboard, with where it is."""
    rules = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"][0]["rules"]
    found = [(rule["alert"], rule["expr"]) for rule in rules]
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    found += [(panel["title"], each["expr"]) for panel in dashboard["panels"] for each in panel["targets"]]
    return found + [
        (each["name"], each["definition"]) for each in dashboard["templating"]["list"] if "definition" in each
    ]


@pytest.mark.root
def test_rules_and_dashboard_name_metrics_that_there_are(exposed: dict[str, set[str]]) -> None:
    used: set[str] = set()
    for where, expression in expressions():
        bare = re.sub(r"\b(?:by|without) \([^)]*\)|, faas_name\)", "", expression)
        names = set(METRIC.findall(re.sub(r"\{[^}]*\}", "", bare)))
        assert names or "up{" in expression, where
        assert names <= exposed["names"], (where, names - exposed["names"])
        used |= names
        for label in re.findall(r"([a-z_]+)=~?\"", expression):
            assert label in exposed["labels"] | {"instance", "job", "reason"}, (where, label)
        for value in re.findall(r'reason=~?"([^"]*)"', expression):
            assert set(value.split("|")) <= set(REASONS.values()), where
        for value in re.findall(r'phase="([^"]*)"', expression):
            assert value in exposed["phases"], where
    assert len(used) > 12


def test_promtool_is_content() -> None:
    program = os.environ.get("SOCKD_PROMTOOL") or shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: apt-get install prometheus, or SOCKD_PROMTOOL=PATH")
    done = subprocess.run([program, "check", "rules", str(FILES / "alerts.yml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_lead_to_commands_that_there_are() -> None:
    from sockd.client.cli.main import COMMANDS

    rules = yaml.safe_load((FILES / "alerts.yml").read_text())["groups"][0]["rules"]
    assert len(rules) == 12, "the page says twelve"
    summaries = [rule["annotations"]["summary"] for rule in rules]
    named = {word for summary in summaries for word in re.findall(r"\bsockd ([a-z]+)\b", summary)}
    assert named and named <= set(COMMANDS)


@pytest.mark.root
def test_a_worker_that_was_stopped_leaves_files_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    killed = RunningDaemon.start(state)
    try:
        killed.deploy("f", "def f(event): return event")
        assert killed.call("f", 1) == 1
        killed.kill()
        killed.end_reading()
        assert has_cgroups(killed.cgroup), "SIGKILL leaves cgroups"
        with running(state) as daemon:
            assert daemon.call("f", 1) == 1
            port = daemon.port
        assert not has_cgroups(killed.cgroup), "a start and a stop remove them"
    finally:
        killed.close()
    assert str(state) not in Path("/proc/self/mounts").read_text()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
    shutil.rmtree(state)


@pytest.mark.root
@pytest.mark.parametrize("way", upgrade.WAYS)
def test_no_request_fails_in_an_upgrade(way: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert upgrade.run(way, 600, 16), capsys.readouterr().out


def test_the_units_restart_the_worker_as_the_page_says() -> None:
    service, socket_unit = ((REPO / "systemd" / name).read_text() for name in ("sockd.service", "sockd.socket"))
    assert f"ExecReload=/bin/kill -{RESTART.name.removeprefix('SIG')} $MAINPID\n" in service
    assert "--listen" not in service, "the file of its configuration says where"
    host, port = parse_listen(WorkerConfig.load(REPO / "systemd" / "sockd.toml").http.listen)
    assert re.findall(r"^ListenStream=(.*)$", socket_unit, re.M) == [
        f"{show(each)}:{port}" for each in addresses_of(host)
    ]
