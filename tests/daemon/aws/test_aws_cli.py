"""The aws command line, as it comes from its package, in front of a running daemon."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from tests.daemon.aws_client import KEY, KEYS, ROLE, SECRET
from tests.daemon.running import RunningDaemon, zipped

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

AWS = (find_uv_bin(), "tool", "run", "--quiet", "--from", "awscli==1.46.2", "aws", "lambda")
"""In an environment of its own, as it wants botocore in one version and no other."""
CODE = """
def handler(event, context):
    print("seen")
    return {"by": 84 / event["by"], "version": context.function_version}
"""


@pytest.fixture(scope="module")
def config() -> str:
    return KEYS


class CommandLine:
    """Somebody who types `aws lambda ...`."""

    def __init__(self, url: str, directory: Path) -> None:
        self._directory = directory
        self._env = {
            **os.environ,
            "AWS_ENDPOINT_URL_LAMBDA": url,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "local",
            "AWS_PAGER": "",
        }

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*AWS, *words], cwd=self._directory, env=self._env, capture_output=True, text=True, check=False
        )

    def __call__(self, *words: str) -> Any:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout or "null")


@pytest.fixture
def aws(daemon: RunningDaemon, tmp_path: Path) -> CommandLine:
    return CommandLine(daemon.url, tmp_path)


def test_a_function_from_its_creation_to_its_end(aws: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "code.zip").write_bytes(zipped({"app.py": CODE}))
    (tmp_path / "event.json").write_text('{"by": 2}')
    made = ("--runtime", "python3.12", "--role", ROLE, "--handler", "app.handler", "--zip-file", "fileb://code.zip")
    assert aws("create-function", "--function-name", "f", *made)["State"] == "Active"
    aws("wait", "function-active-v2", "--function-name", "f")
    assert aws("publish-version", "--function-name", "f")["Version"] == "1"
    aws("create-alias", "--function-name", "f", "--name", "prod", "--function-version", "1")
    event = ("--payload", "fileb://event.json", "--log-type", "Tail", "answer.json")
    answer = aws("invoke", "--function-name", "f:prod", *event)
    assert (answer["StatusCode"], answer["ExecutedVersion"], "LogResult" in answer) == (200, "1", True)
    assert json.loads((tmp_path / "answer.json").read_text()) == {"by": 42, "version": "1"}
    later = ("--invocation-type", "Event", "--payload", "fileb://event.json", "answer.json")
    assert aws("invoke", "--function-name", "f", *later)["StatusCode"] == 202
    aws("delete-function", "--function-name", "f")


def test_errors_are_the_command_lines_own(aws: CommandLine) -> None:
    done = aws.run("invoke", "--function-name", "nobody", "answer.json")
    assert done.returncode != 0
    assert "(ResourceNotFoundException) when calling the Invoke operation: Function not found" in done.stderr
