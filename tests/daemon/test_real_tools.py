"""What AWS's tools and libraries expect around a function: its variables, runtime names, numbers, archives with packages."""

from __future__ import annotations

import sys
from typing import Any

import boto3
import pytest

from tests.daemon import aws_client
from tests.daemon.running import DeployFailed, RunningDaemon
from tests.daemon.test_runtime_api import BOOTSTRAP, RIC, archive
from tests.support.servers.package_index import PackageIndex, wheel

pytestmark = pytest.mark.root

ENVIRON = "import os\ndef f(event): return dict(os.environ)"
PYTHON = f"AWS_Lambda_python{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(scope="module")
def config() -> str:
    return aws_client.KEYS


def test_the_handler_and_the_region_are_reported_as_on_aws(daemon: RunningDaemon) -> None:
    daemon.deploy("reported", {"deep/er/mod.py": ENVIRON.replace("f(", "go(")}, handler="deep.er.mod:go")
    env = daemon.call("reported")
    module, _, name = env["_HANDLER"].rpartition(".")
    assert (module, name) == ("deep.er.mod", "go")
    assert (env["AWS_REGION"], env["AWS_DEFAULT_REGION"]) == ("us-east-1", "us-east-1")
    assert env["AWS_EXECUTION_ENV"] == PYTHON


@pytest.mark.parametrize(
    ("own", "reported"),
    [
        ({"AWS_REGION": "a"}, ("a", "a")),
        ({"AWS_DEFAULT_REGION": "b"}, ("b", "b")),
        ({"AWS_REGION": "a", "AWS_DEFAULT_REGION": "b"}, ("a", "b")),
    ],
)
def test_a_functions_own_region_wins(daemon: RunningDaemon, own: dict[str, str], reported: tuple[str, str]) -> None:
    daemon.deploy("own", ENVIRON, env=own)
    env = daemon.call("own")
    assert (env["AWS_REGION"], env["AWS_DEFAULT_REGION"]) == reported


def test_an_exec_wrapper_starts_awss_client_and_may_change_the_handler(
    daemon: RunningDaemon, index: PackageIndex
) -> None:
    index.add(wheel("awslambdaric", "1.0", {"awslambdaric/__init__.py": "", "awslambdaric/__main__.py": RIC}))
    code = "import os\ndef handler(event, context): return 0\ndef wrapped(event, context): return dict(os.environ)\n"
    wrapper = '#!/bin/sh\nexport _HANDLER=app.wrapped\nexec "$@"\n'
    files = archive(wrapper, "otel-wrapper", app__py=code, requirements__txt="awslambdaric==1.0\n")
    env = {"AWS_LAMBDA_EXEC_WRAPPER": "/var/task/otel-wrapper"}
    daemon.deploy("wrapped", files, runtime="provided", handler="app:handler", env=env)
    env = daemon.call("wrapped")
    assert env["_HANDLER"] == "app.wrapped" and env["AWS_EXECUTION_ENV"] == PYTHON


def test_a_handler_that_is_forked_is_only_given_the_wrapper(daemon: RunningDaemon) -> None:
    daemon.deploy("forked", ENVIRON, env={"AWS_LAMBDA_EXEC_WRAPPER": "/opt/any"})
    assert daemon.call("forked")["AWS_LAMBDA_EXEC_WRAPPER"] == "/opt/any"
    daemon.wait_line("AWS_LAMBDA_EXEC_WRAPPER is not run")


@pytest.mark.parametrize("runtime", ["provided", "provided.al2", "provided.al2023"])
def test_create_function_takes_programs(daemon: RunningDaemon, runtime: str) -> None:
    client = aws_client.client_of(boto3.Session(region_name="us-east-1"), daemon)
    name = runtime.replace(".", "-")
    code = BOOTSTRAP.replace('"port": host', '"env": dict(os.environ)')
    created = client.create_function(
        FunctionName=name, Runtime=runtime, Role=aws_client.ROLE, Handler="any", Code={"ZipFile": archive(code)}
    )
    assert created["Runtime"] == runtime
    env = aws_client.invoke(client, name)["Payload"]["env"]
    assert env["_HANDLER"] == "any" and "AWS_EXECUTION_ENV" not in env
    changed = client.update_function_configuration(FunctionName=name, Runtime="python3.12", Handler="f.f")
    assert changed["Runtime"] == "python3.12"
    assert aws_client.invoke(client, name)["FunctionError"], "a bootstrap is no Python handler"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Decimal('1.10')", b"1.10"),
        ("{'a': [Decimal('12345678901234567890.123456789'), '1\"']}", b'{"a":[12345678901234567890.123456789,"1\\""]}'),
        ("Decimal('1E+3')", b"1E+3"),
        ("(x for x in [Decimal('2.50'), 1])", b"2.50\n1\n"),
        ("Decimal('NaN')", b"NaN"),
        ("{'a': float('inf'), b'k': b'text'}", b'{"a":Infinity,"k":"text"}'),
        ("b'\\x00\\xff'", b"\x00\xff"),
    ],
)
def test_a_decimal_in_an_answer_is_a_number_with_all_its_digits(daemon: RunningDaemon, value: str, text: bytes) -> None:
    daemon.deploy("decimal", f"from decimal import Decimal\ndef f(event): return {value}")
    answer = daemon.run("decimal")
    assert (answer.status, answer.body) == (200, text)


@pytest.mark.parametrize("value", ["[Decimal('1'), {1}]", "{Decimal('1'): 2}"])
def test_what_is_no_json_is_still_refused(daemon: RunningDaemon, value: str) -> None:
    daemon.deploy("decimal", f"from decimal import Decimal\ndef f(event): return {value}")
    assert daemon.run("decimal").json["errorType"] == "Runtime.MarshalError"


def brought(version: str) -> dict[str, Any]:
    """A package as `pip install --target` leaves it in an archive."""
    return {
        "bring_me/__init__.py": f"WHERE = 'the archive, {version}'\n",
        f"bring_me-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: bring-me\nVersion: {version}\n",
        "f.py": "import bring_me\ndef f(event): return bring_me.WHERE\n",
    }


def test_packages_that_an_archive_brings_are_not_resolved_again(daemon: RunningDaemon, index: PackageIndex) -> None:
    """No index has it: resolving would fail."""
    daemon.deploy("brings", {**brought("1.2"), "requirements.txt": "Bring.Me>=1\nnever ; sys_platform == 'win32'\n"})
    assert daemon.call("brings") == "the archive, 1.2"
    daemon.wait_line("packages of requirements.txt that are in the code are used as they are")


def test_what_an_archive_does_not_bring_is_installed(daemon: RunningDaemon, index: PackageIndex) -> None:
    index.add(wheel("asked-for", "1.0", {"asked_for.py": "X = 1\n"}))
    index.add(wheel("bring-me", "2.0", {"bring_me/__init__.py": "WHERE = 'the index'\n"}))
    info = daemon.deploy("some", {**brought("1.2"), "requirements.txt": "bring-me<2\nasked-for\n"})
    assert info["packages"] == ["asked-for==1.0"]
    info = daemon.deploy("some", {**brought("1.2"), "requirements.txt": "bring-me>=2\n"})
    assert info["packages"] == ["bring-me==2.0"], "another version than what is asked for"


PROJECT = '[project]\nname = "app"\ndependencies = ["asked-for"]\n'
SCRIPT = '# /// script\n# dependencies = ["asked-for"]\n# ///\n'
ASKS = "import asked_for\ndef f(event): return asked_for.X\n"


@pytest.mark.parametrize(
    "files",
    [
        {"f.py": ASKS, "pyproject.toml": PROJECT},
        {"f.py": SCRIPT + ASKS},
        {"f.py": ASKS, "requirements.txt": "asked-for"},
    ],
)
def test_dependencies_are_read_wherever_they_are_declared(
    daemon: RunningDaemon, index: PackageIndex, files: dict[str, str]
) -> None:
    index.add(wheel("asked-for", "1.0", {"asked_for.py": "X = 1\n"}))
    assert daemon.deploy("declares", files)["packages"] == ["asked-for==1.0"]
    assert daemon.call("declares") == 1


def test_a_deploy_says_which_dependencies_it_ignores(daemon: RunningDaemon, index: PackageIndex) -> None:
    index.add(wheel("asked-for", "1.0", {"asked_for.py": "X = 1\n"}))
    both = {"f.py": ASKS, "requirements.txt": "asked-for", "pyproject.toml": PROJECT}
    daemon.deploy("declares", {**both, "pyproject.toml": PROJECT + '[dependency-groups]\ndev = ["never"]\n'})
    daemon.wait_line("the dependencies of pyproject.toml are ignored, those of requirements.txt are used")
    daemon.wait_line("dependency-groups ignored")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('[project]\nrequires-python = ">=3.99"\n', "Packages.ResolveFailed"),
        ('[project]\ndependencies = ["x @ file:///etc/passwd"]\n', "Packages.ResolveFailed"),
        ('[project]\ndependencies = ["--index-url=http://127.0.0.1"]\n', "Packages.ResolveFailed"),
        ("[project]\ndependencies = 1\n", "InvalidZipFileException"),
    ],
)
def test_dependencies_that_cannot_be_met_are_refused(daemon: RunningDaemon, text: str, error: str) -> None:
    with pytest.raises(DeployFailed, match=r"pyproject\.toml") as refused:
        daemon.deploy("refused", {"f.py": ASKS, "pyproject.toml": text})
    assert refused.value.type.endswith(error) and refused.value.status == 400
