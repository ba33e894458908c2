"""A deploy's new version is started once before requests go to it; one that does not start leaves the version before in force."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.aws_client import KEYS
from tests.daemon.running import REPO, DeployFailed, RunningDaemon, zipped
from tests.support.threads import at_once

WORKS = "def f(event): return 1\n"
BROKEN = "import os\nprint('printed by the import')\nimport no_such_module\ndef f(event): return 2\n"


@pytest.fixture(scope="module")
def config() -> str:
    return f"[sandbox]\nmemory_mb = 600\n{KEYS}"


@pytest.fixture
def name(daemon: RunningDaemon, request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.originalname[:60]
    yield name
    daemon.manage("DELETE", f"/functions/{name}")


def deploy(daemon: RunningDaemon, name: str, text: str, **settings: Any) -> dict[str, Any]:
    return daemon.deploy(name, text, check=True, **settings)


def test_a_version_that_cannot_be_imported_is_refused_and_the_one_before_serves(
    daemon: RunningDaemon, name: str
) -> None:
    first = deploy(daemon, name, WORKS)
    with pytest.raises(DeployFailed) as refused:
        deploy(daemon, name, BROKEN)
    assert (refused.value.status, refused.value.type) == (422, "Deploy.VersionFailed")
    assert "ModuleNotFoundError: No module named 'no_such_module'" in refused.value.message
    assert '/var/task/f.py", line 3' in "".join(refused.value.error["stackTrace"])
    assert daemon.call(name) == 1
    assert daemon.manage("GET", f"/functions/{name}").json["version"] == first["version"]
    logs = daemon.manage("GET", f"/functions/{name}/logs").body.decode()
    assert "printed by the import" in logs, "what the start printed is in the function's log"


def test_a_first_deploy_is_checked_too_and_leaves_nothing(daemon: RunningDaemon, name: str) -> None:
    with pytest.raises(DeployFailed) as refused:
        deploy(daemon, name, BROKEN)
    assert refused.value.type == "Deploy.VersionFailed"
    assert refused.value.error["stackTrace"][-1] == "The start printed:\nprinted by the import\n"
    assert daemon.manage("GET", f"/functions/{name}").status == 404
    deploy(daemon, name, WORKS)
    assert daemon.call(name) == 1


def test_without_the_check_any_version_is_deployed(daemon: RunningDaemon, name: str) -> None:
    deploy(daemon, name, WORKS)
    daemon.deploy(name, BROKEN, check=False)
    assert daemon.run(name).status == 500
    with pytest.raises(DeployFailed, match="check: must be true or false"):
        daemon.deploy(name, WORKS, check="perhaps")


def test_nothing_is_called_and_the_start_ends_before_the_answer(daemon: RunningDaemon, name: str) -> None:
    deploy(daemon, name, "import os\nPID = os.getpid()\ndef f(event): return PID\n")
    stats = next(each for each in daemon.manage("GET", "/functions").json if each["name"] == name)
    assert stats["version_number"] == 1
    answer = daemon.run(name)
    assert answer.headers["x-sockd-cold"] == "1", "the check's sandbox serves no request"


@pytest.mark.parametrize(
    ("text", "settings", "words"),
    [
        ("import time\ntime.sleep(60)\ndef f(event): pass\n", {"init_timeout_s": 0.5}, "init_timeout_s"),
        ("x = bytearray(400 << 20)\ndef f(event): pass\n", {"memory_mb": 64}, "OutOfMemory|MemoryError"),
        ("import os\nos._exit(3)\n", {}, "Runtime.ExitError"),
        ("def g(event): pass\n", {}, "Runtime.HandlerNotFound"),
    ],
)
def test_what_ends_a_start_otherwise_is_refused_too(
    daemon: RunningDaemon, name: str, text: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(DeployFailed, match=words) as refused:
        deploy(daemon, name, text, **settings)
    assert refused.value.type == "Deploy.VersionFailed"


def test_a_program_is_started_likewise(daemon: RunningDaemon, name: str) -> None:
    program = {"bootstrap": "#!/bin/sh\nexit 7\n"}
    with pytest.raises(DeployFailed) as refused:
        daemon.deploy(name, program, check=True, runtime="provided")
    assert refused.value.type in ("Deploy.VersionFailed", "InvalidParameterValueException"), refused.value


def test_without_free_memory_nothing_changes_and_the_deploy_can_be_repeated(daemon: RunningDaemon, name: str) -> None:
    deploy(daemon, name, WORKS, memory_mb=64)
    free = daemon.manage("GET", "/status").json
    deploy(daemon, "holder", WORKS, memory_mb=500, reserved_memory_mb=500)
    try:
        with pytest.raises(DeployFailed) as refused:
            deploy(daemon, name, WORKS.replace("1", "2"), memory_mb=128, init_timeout_s=0.2)
        assert refused.value.status == 503, free
        assert "nothing was changed" in refused.value.message and "--no-check" in refused.value.message
        assert daemon.call(name) == 1
    finally:
        daemon.manage("DELETE", "/functions/holder")
    deploy(daemon, name, WORKS.replace("1", "2"), memory_mb=128)
    assert daemon.call(name) == 2


def test_a_web_app_is_known_before_its_first_request(daemon: RunningDaemon, name: str) -> None:
    app = "def f(environ, start_response):\n    start_response('200 OK', [])\n    return [b'hello']\n"
    assert deploy(daemon, name, app)["is_app"]
    assert daemon.request("GET", f"/run/{name}/").body == b"hello"


def test_the_command_line_shows_the_traceback_and_can_do_without_the_check(
    daemon: RunningDaemon, name: str, tmp_path: Path
) -> None:
    (tmp_path / "f.py").write_text(BROKEN)
    done = sockd(daemon, "deploy", str(tmp_path), "--name", name)
    assert done.returncode == 1 and "does not start" in done.stderr
    assert '/var/task/f.py", line 3' in done.stderr and "import no_such_module" in done.stderr
    as_json = json.loads(sockd(daemon, "deploy", str(tmp_path), "--name", name, "--json").stderr.splitlines()[-1])
    assert "no_such_module" in as_json["error"] and "f.py" in as_json["why"]
    assert sockd(daemon, "deploy", str(tmp_path), "--name", name, "--no-check").returncode == 0


NEEDS_A = "import os\nMODE = os.environ['A']\ndef f(event): return MODE\n"


def test_a_change_of_settings_after_which_the_function_does_not_start_is_refused(
    daemon: RunningDaemon, name: str
) -> None:
    deploy(daemon, name, f"BALLAST = bytearray(60 << 20)\n{NEEDS_A}", memory_mb=128, env={"A": "1"})
    before = daemon.manage("GET", f"/functions/{name}").json["version"]
    for words, arguments in (
        ("OutOfMemory", ("config", name, "--memory", "32")),
        ("KeyError", ("env", name, "--unset", "A")),
    ):
        refused = sockd(daemon, *arguments)
        assert refused.returncode == 1 and words in refused.stderr and "does not start" in refused.stderr, refused
    answer = daemon.manage("PATCH", f"/functions/{name}/settings", b'{"memory_mb": 32}')
    assert (answer.status, answer.json["errorType"]) == (422, "Deploy.VersionFailed")
    assert daemon.manage("GET", f"/functions/{name}").json["version"] == before
    assert daemon.call(name) == "1"
    assert sockd(daemon, "env", name, "--unset", "A", "--no-check").returncode == 0
    assert daemon.run(name).status == 500


def test_a_function_that_does_not_start_can_be_changed_step_by_step(daemon: RunningDaemon, name: str) -> None:
    daemon.deploy(name, f"import os\nB = os.environ['B']\n{NEEDS_A}", check=False)
    assert sockd(daemon, "env", name, "A=1").returncode == 0
    assert daemon.run(name).status == 500
    assert sockd(daemon, "env", name, "B=1").returncode == 0
    assert daemon.call(name) == "1"


def test_a_change_that_no_start_sees_starts_nothing(daemon: RunningDaemon, name: str) -> None:
    daemon.deploy(name, BROKEN, check=False)
    for change in ({"concurrency": 3}, {"timeout_s": 5}, {"run": "open"}, {"snapshot": False}):
        assert daemon.manage("PATCH", f"/functions/{name}/settings", json.dumps(change)).status == 200
    assert not daemon.logs(name), "a start that fails is in the log"
    assert daemon.manage("PATCH", f"/functions/{name}/settings", b'{"memory_mb": 99}').status == 200
    assert daemon.logs(name)


def test_two_changes_at_once_both_hold(daemon: RunningDaemon, name: str) -> None:
    deploy(daemon, name, "import os\ndef f(event): return [os.environ.get(key) for key in 'ABCD']\n")
    assert set(at_once(4, partial(set_variable, daemon, name))) == {200}
    assert daemon.call(name) == ["0", "1", "2", "3"]


def set_variable(daemon: RunningDaemon, name: str, number: int) -> int:
    body = json.dumps({"set": {"ABCD"[number]: str(number)}})
    return daemon.manage("PATCH", f"/functions/{name}/env", body).status


def sockd(daemon: RunningDaemon, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SOCKD_STATE_DIR": str(daemon.state), "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "sockd", *arguments], env=env, cwd=REPO, capture_output=True, text=True, check=False
    )


def test_aws_clients_see_a_failed_state_with_its_reason(daemon: RunningDaemon, client: Any, name: str) -> None:
    role, broken = "arn:aws:iam::123456789012:role/r", {"ZipFile": zipped({"app.py": BROKEN})}
    made = client.create_function(FunctionName=name, Runtime="python3.11", Role=role, Handler="app.f", Code=broken)
    assert (made["State"], made["StateReasonCode"]) == ("Failed", "FunctionError")
    assert "no_such_module" in made["StateReason"]
    answer = client.invoke(FunctionName=name)
    assert answer["FunctionError"] == "Unhandled" and "no_such_module" in answer["Payload"].read().decode()
    fixed = client.update_function_code(
        FunctionName=name, ZipFile=zipped({"app.py": WORKS.replace("f(event)", "f(e, c)")})
    )
    assert (fixed["State"], fixed["LastUpdateStatus"]) == ("Active", "Successful")
    failed = client.update_function_code(FunctionName=name, ZipFile=zipped({"app.py": BROKEN}))
    assert (failed["State"], failed["LastUpdateStatus"]) == ("Active", "Failed")
    assert "no_such_module" in failed["LastUpdateStatusReason"] and failed["CodeSha256"] == fixed["CodeSha256"]
    shown = client.get_function_configuration(FunctionName=name)
    assert (shown["LastUpdateStatus"], shown["LastUpdateStatusReasonCode"]) == ("Failed", "FunctionError")
    assert client.invoke(FunctionName=name)["Payload"].read() == b"1", "the code before serves on"
    client.update_function_configuration(FunctionName=name, MemorySize=256)
    assert client.get_function(FunctionName=name)["Configuration"]["LastUpdateStatus"] == "Successful"
