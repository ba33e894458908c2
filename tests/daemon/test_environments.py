"""Environments and secrets of a real worker: who gets them, where they are not, and a key that is gone."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.daemon.running import REPO, DeployFailed, RunningDaemon, zipped
from tests.support import sockd_template

pytestmark = pytest.mark.root

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
CODE = "import os\ndef f(event):\n    return {key: os.environ.get(key) for key in event}\n"
HIDDEN, SHOWN, FROM_DEPLOY = "hidden-4711", "shown-4711", "deployed-4711"


@pytest.fixture(scope="module")
def config() -> str:
    return f'[lambda_api.keys]\n{KEY} = "{SECRET}"\n'


def sockd(daemon: RunningDaemon, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """The command line, as a process of its own."""
    return sockd_template.run(
        [sys.executable, "-m", "sockd", *arguments],
        cwd=REPO,
        env={**os.environ, "SOCKD_STATE_DIR": str(daemon.state)},
        input=text,
        timeout=15,
    )


def lambda_client(daemon: RunningDaemon) -> Any:
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    return boto3.client("lambda", endpoint_url=daemon.url, region_name="eu-central-1", **keys)


def test_a_function_gets_what_was_set_and_no_one_else_sees_it(daemon: RunningDaemon) -> None:
    daemon.deploy("f", CODE, env={"A": FROM_DEPLOY})
    assert daemon.call("f", ["A"]) == {"A": FROM_DEPLOY}
    assert sockd(daemon, "env", "f", f"B={SHOWN}").returncode == 0
    done = sockd(daemon, "secret", "set", "f", "C", text=HIDDEN + "\n")
    assert done.returncode == 0, done.stderr
    assert daemon.call("f", ["A", "B", "C"]) == {"A": FROM_DEPLOY, "B": SHOWN, "C": HIDDEN}

    masked, shown = sockd(daemon, "env", "f"), sockd(daemon, "env", "f", "--show", "--json")
    assert all(name in masked.stdout for name in "ABC")
    assert json.loads(shown.stdout) == {"env": {"A": FROM_DEPLOY, "B": SHOWN}, "secrets": ["C"]}
    assert json.loads(sockd(daemon, "secret", "ls", "--json").stdout) == {"f": ["C"]}
    with closing(lambda_client(daemon)) as client:
        reported = client.get_function_configuration(FunctionName="f")["Environment"]["Variables"]
        assert reported == {"A": FROM_DEPLOY, "B": SHOWN, "C": "********"}, "its caller may read variables, as on AWS"
        client.update_function_configuration(FunctionName="f", Environment={"Variables": {**reported, "B": "other"}})
    assert daemon.call("f", ["B", "C"]) == {"B": "other", "C": HIDDEN}

    looked_at = [masked.stdout + masked.stderr + shown.stdout + shown.stderr + done.stdout + done.stderr]
    for path in ("/functions", "/functions/f", "/functions/f/logs", "/functions/f/env", "/secrets", "/status", "/tree"):
        looked_at.append(daemon.manage("GET", path).body.decode())
    traces = daemon.manage("GET", "/traces").json
    looked_at += [daemon.manage("GET", f"/traces/{trace['request_id']}").body.decode() for trace in traces]
    looked_at += [daemon.request("GET", path).body.decode() for path in ("/status", "/metrics")]
    looked_at.append("\n".join(daemon.lines))
    assert HIDDEN not in "".join(looked_at)
    assert SHOWN not in "".join(looked_at[1:])
    for file in daemon.state.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert not any(value.encode() in content for value in (HIDDEN, SHOWN, FROM_DEPLOY)), file


def test_secrets_and_variables_that_commands_set_stay_over_a_deploy(daemon: RunningDaemon) -> None:
    daemon.deploy("kept", CODE, env={"A": "1"})
    assert sockd(daemon, "secret", "set", "kept", "C", text="c").returncode == 0
    assert sockd(daemon, "env", "kept", "B=2", "--unset", "A").returncode == 0
    assert daemon.call("kept", ["A", "B", "C"]) == {"A": None, "B": "2", "C": "c"}
    daemon.deploy("kept", CODE + "# another\n", env={"A": "3"})
    assert daemon.call("kept", ["A", "B", "C"]) == {"A": "3", "B": "2", "C": "c"}, "the deploy names A, and not B"
    daemon.deploy("kept", CODE + "# another\n", env={"A": "3", "B": "4"})
    assert daemon.call("kept", ["A", "B", "C"]) == {"A": "3", "B": "4", "C": "c"}
    assert sockd(daemon, "secret", "rm", "kept", "C").returncode == 0
    assert daemon.call("kept", ["C"]) == {"C": None}


@pytest.mark.parametrize(
    ("arguments", "text", "words"),
    [
        (("env", "bad", "C=x"), "", "is a secret of this function"),
        (("env", "bad", "_HANDLER=x"), "", "reserved"),
        (("env", "bad", "--unset", "NONE"), "", "no variable 'NONE'; `sockd env bad` lists them"),
        (("env", "bad", "no-assignment-4711"), "", "variable 1 of 1 is not KEY=VALUE"),
        (("env", "nobody", "A=1"), "", "no function 'nobody'"),
        (("secret", "set", "bad", "1C"), "secret-4711", "must be letters"),
        (("secret", "set", "bad", "C"), "", "no value was given"),
        (("secret", "set", "bad", "D"), "secret-4711" * 400, "the limit is 4096"),
        (("secret", "rm", "bad", "D"), "", "no secret 'D'; `sockd env bad` lists them"),
    ],
)
def test_what_cannot_be_set_is_refused_without_being_repeated(
    daemon: RunningDaemon, arguments: tuple[str, ...], text: str, words: str
) -> None:
    if "bad" not in json.dumps(daemon.manage("GET", "/functions").json):
        daemon.deploy("bad", CODE)
        assert sockd(daemon, "secret", "set", "bad", "C", text="c").returncode == 0
    done = sockd(daemon, *arguments, text=text)
    assert done.returncode != 0 and words in done.stderr
    assert "4711" not in done.stdout + done.stderr


def test_the_daemon_leaves_no_core(daemon: RunningDaemon) -> None:
    assert resource.prlimit(daemon.pid, resource.RLIMIT_CORE) == (1, 1)


def test_a_lost_key_stops_only_the_functions_that_need_it(tmp_path: Path) -> None:
    state, key = tmp_path / "state", tmp_path / "elsewhere.key"
    config = f'[secrets]\nkey_file = "{key}"\n[lambda_api.keys]\n{KEY} = "{SECRET}"\n'
    daemon = RunningDaemon.start(state, config)
    try:
        assert len(key.read_bytes()) == 32 and not (state / "secret.key").exists()
        daemon.deploy("plain", CODE)
        daemon.deploy("secretive", CODE, env={"A": HIDDEN})
        daemon.kill()
        daemon.close()
        key.unlink()
        daemon = RunningDaemon.start(state, config)
        assert any("secretive" in line and "Put the right file back" in line for line in daemon.lines)
        assert daemon.call("plain", ["A"]) == {"A": None}
        answer = daemon.run("secretive", ["A"])
        assert (answer.status, answer.json["errorType"]) == (503, "Secrets.Locked")
        daemon.close()
        key.write_bytes(bytes(32))
        key.chmod(0o600)
        daemon = RunningDaemon.start(state, config)
        assert daemon.run("secretive", ["A"]).json["errorType"] == "Secrets.Locked"
        with pytest.raises(DeployFailed, match="--force"):
            daemon.deploy("secretive", CODE, env={"A": "anew"})
        for refused in (
            sockd(daemon, "config", "secretive", "--memory", "64"),
            sockd(daemon, "env", "secretive", "A=anew"),
        ):
            assert refused.returncode != 0 and "--force" in refused.stderr
        with closing(lambda_client(daemon)) as client, pytest.raises(ClientError, match="--force"):
            client.update_function_code(FunctionName="secretive", ZipFile=zipped({"f.py": CODE}))
        daemon.deploy("secretive", CODE, env={"A": "anew"}, force=True)
        assert daemon.call("secretive", ["A"]) == {"A": "anew"}
    finally:
        daemon.close()
