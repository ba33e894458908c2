"""Variables that CPython obeys only when it starts: refused by each API, unless they change nothing or a program gets them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from sockd.isolation.roots.interpreter import OWN_PYTHON
from sockd.isolation.roots.interpreter_settings import TOO_LATE
from tests.daemon.aws_client import KEYS, create
from tests.daemon.images.test_image_zygotes import FILES, served
from tests.daemon.images.test_images import deploy, upload
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.test_environments import sockd
from tests.daemon.test_runtime_api import archive
from tests.support.images.image_layouts import ASK, PYTHON, Files, python_files, write_layout

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def config() -> str:
    return KEYS


SEED = {"PYTHONHASHSEED": "4711"}
CODE = "def f(event): return 'as before'\n"


def refusal_of_deploy(daemon: RunningDaemon, files: dict[str, str], **settings: Any) -> str:
    with pytest.raises(DeployFailed) as failed:
        daemon.deploy("refused", files, **settings)
    assert (failed.value.status, failed.value.type) == (400, "InvalidParameterValueException")
    return str(failed.value.message)


def refusal_of_command(daemon: RunningDaemon, *arguments: str) -> str:
    done = sockd(daemon, *arguments, text="4711\n")
    assert done.returncode != 0
    return " ".join(done.stderr.split())


def refusal_of_aws(client: Any, operation: Callable[..., object], *arguments: Any, **settings: Any) -> str:
    with pytest.raises(client.exceptions.InvalidParameterValueException) as refused:
        operation(*arguments, **settings, Environment={"Variables": SEED})
    return str(refused.value.response["Error"]["Message"])


def test_a_variable_that_would_be_ignored_is_refused_by_each_api(daemon: RunningDaemon, client: Any) -> None:
    said = [
        refusal_of_deploy(daemon, {"f.py": CODE}, env=SEED),
        refusal_of_deploy(daemon, {"f.py": CODE, "sockd.toml": '[env]\nPYTHONHASHSEED = "4711"\n'}),
        refusal_of_aws(client, create, client, "refused", ""),
    ]
    assert daemon.run("refused").status == 404, "nothing was deployed"
    daemon.deploy("kept", CODE, env={"PYTHONHASHSEED": "random"})
    said += [
        refusal_of_command(daemon, "env", "kept", "PYTHONHASHSEED=4711"),
        refusal_of_command(daemon, "secret", "set", "kept", "PYTHONHASHSEED"),
        refusal_of_aws(client, client.update_function_configuration, FunctionName="kept"),
    ]
    for words in said:
        assert f"env name 'PYTHONHASHSEED': {TOO_LATE}" in words and "subprocess" in words
        assert "4711" not in words, "a value may be a secret"
    assert daemon.call("kept") == "as before" and daemon.manage("GET", "/functions/kept").json["version_number"] == 1


PROGRAM = """#!{python}
import http.client, json, os
{ask}
while True:
    headers, event = ask("GET", "invocation/next")
    ask("POST", "invocation/" + headers["Lambda-Runtime-Aws-Request-Id"] + "/response", json.dumps(hash("a")))
"""


def hash_of_a(seed: str) -> int:
    """What an interpreter that starts with this seed makes of a text."""
    program = [OWN_PYTHON.executable, "-c", "print(hash('a'))"]
    done = subprocess.run(program, env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_a_program_next_to_its_code_gets_all_variables(daemon: RunningDaemon) -> None:
    program = PROGRAM.format(python=OWN_PYTHON.executable, ask=ASK)
    daemon.deploy("program", archive(program), env=SEED)
    assert daemon.call("program") == hash_of_a("4711")


SAYS = """
import sys
def handler(event, context):
    return [hash("a"), sys.stdout.encoding, sys.stdout.write_through, sys.warnoptions, sys.dont_write_bytecode]
"""


@pytest.fixture(scope="module")
def image(daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of an image whose ENV has such variables, as Python's own images have some."""
    path = tmp_path_factory.mktemp("image")
    own = ["PYTHONHASHSEED=7", "PYTHONUNBUFFERED=1", "PYTHONIOENCODING=latin-1", "PYTHONDONTWRITEBYTECODE=1"]
    config = {
        "Entrypoint": [PYTHON, "-m", "awslambdaric"],
        "Cmd": ["app.handler"],
        "Env": ["PATH=/opt/python/bin", *own],
        "WorkingDir": "/app",
    }
    plain = {**FILES.plain, "app/app.py": SAYS}
    write_layout(path, [python_files().tar(), Files(plain=plain)], config)
    return upload(daemon, path)


def test_variables_of_an_image_hold_from_the_start_of_its_python(daemon: RunningDaemon, image: str) -> None:
    served(daemon, "by-zygote", image, env={"PYTHONHASHSEED": "7", "PYTHONWARNINGS": "error"})
    deploy(daemon, "as-program", image, zygote="none", env={"PYTHONWARNINGS": "error"})
    answer = daemon.call("by-zygote", {})
    assert answer == [hash_of_a("7"), "iso8859-1", True, ["error"], True]
    assert answer == daemon.call("as-program", {})


@pytest.mark.parametrize(
    "env",
    [{"PYTHONHASHSEED": "random"}, {"PYTHONUNBUFFERED": ""}, {"PYTHONPATH": "/opt/more"}, {"PYTHONUTF8": "1"}],
    ids=lambda env: "".join(env),
)
def test_a_handler_in_an_image_is_refused_what_only_its_program_could_obey(
    daemon: RunningDaemon, image: str, env: dict[str, str]
) -> None:
    with pytest.raises(DeployFailed, match=r'zygote = "none"') as failed:
        deploy(daemon, "refused-image", image, env=env)
    assert failed.value.status == 400 and next(iter(env)) in failed.value.message
    deploy(daemon, "program-image", image, zygote="none", env=env)
    assert daemon.run("program-image", {}).status == 200
