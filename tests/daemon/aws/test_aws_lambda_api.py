"""AWS's Lambda API in front of a real worker, driven by boto3 and the aws command line as they are."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError

from tests.daemon.aws_client import KEY, KEYS, ROLE, SECRET, client_of, create, invoke
from tests.daemon.gate import Gate
from tests.daemon.running import COMMAND, RunningDaemon, zipped
from tests.support.threads import in_background

pytestmark = pytest.mark.root
CODE = """
import os, sys
def handler(event, context):
    print("working on", event.get("what"))
    if event.get("what") == "raise":
        raise KeyError("no such thing")
    if event.get("what") == "exit":
        os._exit(3)
    if event.get("what") == "wait":
        import time
        time.sleep(30)
    if event.get("what") == "fill":
        return len(bytearray(400 << 20))
    return {"event": event, "id": context.aws_request_id, "env": os.environ.get("GREETING")}
"""
WAITING = "from gate import wait\ndef handler(event, context):\n    return wait(event['gate'])\n"


@pytest.fixture(scope="module")
def config() -> str:
    return KEYS


@pytest.fixture
def function(client: Any) -> Iterator[str]:
    """A function for one test."""
    create(client, "f", CODE, Timeout=10, MemorySize=128)
    yield "f"
    client.delete_function(FunctionName="f")


def test_a_function_from_its_creation_to_its_end(client: Any) -> None:
    archive = zipped({"app.py": CODE, "gate.py": Gate.CODE})
    created = create(
        client,
        "whole",
        CODE,
        Description="all of it",
        Timeout=7,
        MemorySize=256,
        Environment={"Variables": {"GREETING": "hello"}},
        EphemeralStorage={"Size": 600},
        Tags={"team": "a"},
    )
    assert created["State"] == "Active"
    assert created["CodeSha256"] == base64.b64encode(hashlib.sha256(archive).digest()).decode()
    assert created["CodeSize"] == len(archive)
    started = time.monotonic()
    client.get_waiter("function_active_v2").wait(FunctionName="whole")
    client.get_waiter("function_updated_v2").wait(FunctionName="whole")
    client.get_waiter("function_exists").wait(FunctionName="whole")
    waited_s = time.monotonic() - started
    got = client.get_function(FunctionName=created["FunctionArn"])
    assert got["Tags"] == {"team": "a"}
    configuration = got["Configuration"]
    assert client.get_function_configuration(FunctionName="whole")["RevisionId"] == created["RevisionId"]
    wanted = {
        "FunctionName": "whole",
        "Runtime": "python3.12",
        "Role": ROLE,
        "Handler": "app.handler",
        "Description": "all of it",
        "Timeout": 7,
        "MemorySize": 256,
        "Environment": {"Variables": {"GREETING": "hello"}},
        "EphemeralStorage": {"Size": 600},
        "Version": "$LATEST",
    }
    assert {key: configuration[key] for key in wanted} == wanted
    answer = invoke(client, "whole", {"x": 1})
    assert (answer["StatusCode"], answer["ExecutedVersion"]) == (200, "$LATEST")
    assert "FunctionError" not in answer
    assert answer["Payload"]["event"] == {"x": 1}
    assert answer["Payload"]["env"] == "hello"
    assert answer["Payload"]["id"] == answer["ResponseMetadata"]["RequestId"]
    client.delete_function(FunctionName="whole")
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        client.get_function(FunctionName="whole")
    assert waited_s < 10  # a waiter that has to wait sleeps for seconds at a time, five times as often


@pytest.mark.parametrize("name", ["f", "f:$LATEST", "arn:aws:lambda:local:000000000000:function:f"])
def test_a_function_by_any_of_its_names(client: Any, function: str, name: str) -> None:
    assert invoke(client, name, {"x": 1})["StatusCode"] == 200


def test_an_arn_of_another_region_or_account_is_not_the_local_function(client: Any, function: str) -> None:
    for prefix, error in (
        ("arn:aws:lambda:eu-central-1:123456789012", client.exceptions.ResourceNotFoundException),
        ("arn:aws:lambda:local:123456789012", ClientError),
    ):
        for ask in (client.invoke, client.get_function, client.delete_function, client.list_aliases):
            with pytest.raises(error):
                ask(FunctionName=f"{prefix}:function:f")
    assert invoke(client, "f", {})["StatusCode"] == 200


def test_a_dry_run_runs_nothing(client: Any, daemon: RunningDaemon, function: str) -> None:
    assert invoke(client, "f", InvocationType="DryRun")["StatusCode"] == 204
    assert daemon.logs("f") == []


def test_no_payload_is_the_empty_event(client: Any, function: str) -> None:
    assert json.loads(client.invoke(FunctionName="f")["Payload"].read())["event"] == {}


def test_the_log_tail_has_the_lines_that_aws_puts_around_it(client: Any, function: str) -> None:
    answer = invoke(client, "f", {"what": "log"}, LogType="Tail")
    request_id = answer["ResponseMetadata"]["RequestId"]
    start, printed, end, report = base64.b64decode(answer["LogResult"]).decode().splitlines()
    assert start == f"START RequestId: {request_id} Version: $LATEST"
    assert printed == "working on log"
    assert end == f"END RequestId: {request_id}"
    fields = dict(field.split(": ", 1) for field in report.removeprefix("REPORT ").strip().split("\t"))
    assert fields["RequestId"] == request_id
    assert fields["Memory Size"] == "128 MB"
    assert re.fullmatch(r"[0-9]+\.[0-9]{2} ms", fields["Init Duration"])
    assert 1 <= int(fields["Max Memory Used"].split()[0]) <= 128
    again = base64.b64decode(invoke(client, "f", {"what": "log"}, LogType="Tail")["LogResult"])
    assert b"Init Duration" not in again


LOGS = "import logging\ndef handler(event, context):\n    logging.info('seen')\n    return 1 / event['by']\n"


@pytest.mark.parametrize("handler", ["nowhere.handler", "app.nothing"])
def test_a_handler_that_is_not_in_the_archive_fails_when_it_is_invoked(client: Any, handler: str) -> None:
    create(client, "absent", CODE, Handler=handler)
    try:
        answer = invoke(client, "absent", {})
        assert answer["Payload"]["errorType"] == "Runtime.HandlerNotFound", answer
    finally:
        client.delete_function(FunctionName="absent")


def used_mb(log_result: str) -> int:
    found = re.search("Max Memory Used: ([0-9]+) MB", base64.b64decode(log_result).decode())
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("what", ["exit", "wait"])
def test_the_report_of_a_process_that_ended_has_the_memory_that_it_used(client: Any, function: str, what: str) -> None:
    if what == "wait":
        client.update_function_configuration(FunctionName="f", Timeout=1)
    for _ in range(2):
        assert invoke(client, "f", {"what": "fill"})["FunctionError"] == "Unhandled"  # its cgroup is used again
        assert 1 <= used_mb(invoke(client, "f", {"what": what}, LogType="Tail")["LogResult"]) < 100


def test_a_logging_config_makes_the_log_json(client: Any, daemon: RunningDaemon) -> None:
    def tail(by: int) -> list[dict[str, Any]]:
        log = base64.b64decode(invoke(client, "json", {"by": by}, LogType="Tail")["LogResult"])
        return [json.loads(line) for line in log.splitlines()]

    wanted = {"LogFormat": "JSON", "ApplicationLogLevel": "INFO", "SystemLogLevel": "INFO"}
    create(client, "json", LOGS, LoggingConfig=wanted)
    try:
        shown = client.get_function_configuration(FunctionName="json")["LoggingConfig"]
        assert shown == {**wanted, "LogGroup": "/aws/lambda/json"}
        start, seen, report = tail(1)
        assert (start["type"], report["type"], seen["message"]) == ("platform.start", "platform.report", "seen")
        assert report["record"]["status"] == "success" and report["record"]["metrics"]["memorySizeMB"] == 128
        assert start["record"]["requestId"] == seen["requestId"] == report["record"]["requestId"]
        _, _, failed, report = tail(0)
        assert (failed["errorType"], report["record"]["status"]) == ("ZeroDivisionError", "error")
        client.update_function_code(FunctionName="json", ZipFile=zipped({"app.py": LOGS + "# changed\n"}))
        assert tail(1)[0]["type"] == "platform.start", "new code leaves it as it is"
        quiet = {"LogFormat": "JSON", "ApplicationLogLevel": "WARN", "SystemLogLevel": "WARN"}
        assert client.update_function_configuration(FunctionName="json", LoggingConfig=quiet)["LoggingConfig"] == {
            **quiet,
            "LogGroup": "/aws/lambda/json",
        }
        assert tail(1) == [] and [line.get("type") for line in tail(0)] == [None, "platform.report"]
        client.update_function_configuration(FunctionName="json", LoggingConfig={"LogFormat": "Text"})
        reported = base64.b64decode(invoke(client, "json", {"by": 0}, LogType="Tail")["LogResult"]).decode()
        assert reported.startswith("START RequestId: ") and "[ERROR] ZeroDivisionError: division by zero" in reported
        with pytest.raises(ClientError, match="enum value set"):
            client.update_function_configuration(FunctionName="json", LoggingConfig={"LogFormat": "XML"})
        level = {"LogFormat": "Text", "ApplicationLogLevel": "INFO"}
        with pytest.raises(ClientError, match="log_level"):
            client.update_function_configuration(FunctionName="json", LoggingConfig=level)
    finally:
        client.delete_function(FunctionName="json")


@pytest.mark.parametrize(
    ("what", "error_type", "message"),
    [
        ("raise", "KeyError", "'no such thing'"),
        ("exit", "Runtime.ExitError", r"RequestId: [0-9a-f-]{36} Error: Runtime exited.*"),
        ("wait", "Sandbox.Timedout", r"RequestId: [0-9a-f-]{36} Error: Task timed out after 1.00 seconds"),
        ("fill", "Sandbox.OutOfMemory", r"RequestId: [0-9a-f-]{36} Error: out of memory: limit 128 MB.*"),
    ],
)
def test_a_function_that_fails_is_an_answer(
    client: Any, function: str, what: str, error_type: str, message: str
) -> None:
    if what == "wait":
        client.update_function_configuration(FunctionName="f", Timeout=1)
    for options in ({}, {"LogType": "Tail"}):
        answer = invoke(client, "f", {"what": what}, **options)
        assert (answer["StatusCode"], answer["FunctionError"]) == (200, "Unhandled")
        assert answer["Payload"]["errorType"] == error_type
        assert re.fullmatch(message, answer["Payload"]["errorMessage"])
        if what == "wait":
            return
    log = base64.b64decode(answer["LogResult"]).decode()
    assert "working on" in log and f"[ERROR] {error_type}: " in log, log
    if what == "raise":
        assert "[ERROR] KeyError: 'no such thing'\nTraceback (most recent call last):\n" in log
        assert "Duration: 0.00 ms" not in log


def test_errors_come_as_the_exceptions_that_boto3_has_for_them(client: Any, function: str) -> None:
    errors = client.exceptions
    with pytest.raises(errors.ResourceNotFoundException, match=r"function:none:\$LATEST") as caught:
        invoke(client, "none")
    assert caught.value.response["Type"] == "User"
    with pytest.raises(errors.ResourceNotFoundException, match="function:f:7"):
        invoke(client, "f", Qualifier="7")
    with pytest.raises(errors.InvalidParameterValueException, match="does not match"):
        invoke(client, "f:$LATEST", Qualifier="7")
    with pytest.raises(errors.InvalidRequestContentException):
        client.invoke(FunctionName="f", Payload=b"no json")
    with pytest.raises(errors.RequestTooLargeException):
        client.invoke(FunctionName="f", Payload=b'"' + b"x" * (6 << 20) + b'"')
    with pytest.raises(errors.ResourceConflictException):
        create(client, "f", CODE)
    with pytest.raises(errors.InvalidParameterValueException, match="ZipFile"):
        client.update_function_code(FunctionName="f", S3Bucket="bucket", S3Key="k")
    with pytest.raises(errors.InvalidParameterValueException, match="zip"):
        client.update_function_code(FunctionName="f", ZipFile=b"no zip")
    with pytest.raises(errors.InvalidParameterValueException, match="memory_mb"):
        client.update_function_configuration(FunctionName="f", MemorySize=20_000)
    with pytest.raises(errors.InvalidParameterValueException, match="runtime"):
        client.create_function(
            FunctionName="js", Runtime="nodejs22.x", Role=ROLE, Handler="a.b", Code={"ZipFile": zipped({"a.js": ""})}
        )
    with pytest.raises(ClientError, match=r"UnknownOperationException.*does not offer ListCodeSigningConfigs"):
        client.list_code_signing_configs()


def test_too_many_at_a_time_are_throttled(client: Any, function: str, gate: Gate, daemon: RunningDaemon) -> None:
    files = {"f.py": WAITING.replace("handler", "f"), "gate.py": Gate.CODE}
    daemon.deploy("narrow", files, concurrency=1, queue_depth=0, timeout_s=20)
    with in_background(lambda: invoke(client, "narrow", {"gate": gate.port})) as first:
        gate.arrived()
        with pytest.raises(client.exceptions.TooManyRequestsException) as caught:
            invoke(client, "narrow")
        assert caught.value.response["Reason"] == "ReservedFunctionConcurrentInvocationLimitExceeded"
        gate.open()
        assert first()["StatusCode"] == 200
    daemon.remove("narrow")


def test_code_and_settings_change_apart(client: Any, function: str) -> None:
    before = client.get_function_configuration(FunctionName="f")
    settings = {"Environment": {"Variables": {"GREETING": "hi"}}, "Timeout": 4, "Description": "changed"}
    changed = client.update_function_configuration(FunctionName="f", RevisionId=before["RevisionId"], **settings)
    assert (changed["Timeout"], changed["Description"], changed["MemorySize"]) == (4, "changed", 128)
    assert changed["CodeSha256"] == before["CodeSha256"]
    assert invoke(client, "f")["Payload"]["env"] == "hi"
    with pytest.raises(client.exceptions.PreconditionFailedException):
        client.update_function_code(FunctionName="f", ZipFile=b"", RevisionId=before["RevisionId"])
    other = zipped({"app.py": "def handler(event, context): return 'other'", "sockd.toml": "timeout_s = 1\npids = 99"})
    tried = client.update_function_code(FunctionName="f", ZipFile=other, DryRun=True)
    assert tried["CodeSha256"] == base64.b64encode(hashlib.sha256(other).digest()).decode()
    assert invoke(client, "f")["Payload"]["env"] == "hi"
    updated = client.update_function_code(FunctionName="f", ZipFile=other)
    assert updated["CodeSha256"] == tried["CodeSha256"]
    assert (updated["Timeout"], updated["Environment"]) == (4, settings["Environment"])
    assert invoke(client, "f")["Payload"] == "other"


def test_functions_are_listed_page_by_page(client: Any) -> None:
    names = [f"page{number}" for number in range(5)]
    for name in names:
        create(client, name, CODE)
    pages = list(client.get_paginator("list_functions").paginate(PaginationConfig={"PageSize": 2}))
    listed = [function["FunctionName"] for page in pages for function in page["Functions"]]
    assert [name for name in listed if name.startswith("page")] == names
    assert all(len(page["Functions"]) <= 2 for page in pages)
    versions = client.list_versions_by_function(FunctionName="page0")["Versions"]
    assert [version["Version"] for version in versions] == ["$LATEST"]
    usage = client.get_account_settings()
    assert usage["AccountUsage"]["FunctionCount"] >= 5
    assert usage["AccountLimit"]["ConcurrentExecutions"] > 0
    for name in names:
        client.delete_function(FunctionName=name)


def test_tags_and_reserved_concurrency(client: Any, function: str, daemon: RunningDaemon) -> None:
    arn = client.get_function_configuration(FunctionName="f")["FunctionArn"]
    client.tag_resource(Resource=arn, Tags={"a": "1", "b": "2"})
    client.untag_resource(Resource=arn, TagKeys=["a"])
    assert client.list_tags(Resource=arn)["Tags"] == {"b": "2"}
    assert "ReservedConcurrentExecutions" not in client.get_function_concurrency(FunctionName="f")
    client.put_function_concurrency(FunctionName="f", ReservedConcurrentExecutions=3)
    client.update_function_code(FunctionName="f", ZipFile=zipped({"app.py": CODE + "\n"}))
    assert client.get_function_concurrency(FunctionName="f")["ReservedConcurrentExecutions"] == 3
    assert daemon.manage("GET", "/functions/f").json["concurrency"] == 3
    client.delete_function_concurrency(FunctionName="f")
    assert daemon.manage("GET", "/functions/f").json["concurrency"] == 10


def test_a_retry_of_what_still_runs_runs_nothing(
    session: boto3.Session, daemon: RunningDaemon, client: Any, gate: Gate
) -> None:
    create(client, "once", WAITING, Timeout=20)
    impatient = session.client(
        "lambda",
        endpoint_url=daemon.url,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        config=Config(read_timeout=0.4, retries={"total_max_attempts": 3}),
    )
    attempts: list[str] = []
    impatient.meta.events.register("before-send.lambda.*", lambda request, **_: attempts.append(request.url))
    with pytest.raises(ReadTimeoutError):
        invoke(impatient, "once", {"gate": gate.port})
    gate.arrived()
    assert len(attempts) == 3
    assert gate.nobody_comes()
    gate.open()
    impatient.close()
    client.delete_function(FunctionName="once")


def test_what_is_not_signed_with_a_key_of_ours_is_refused(
    session: boto3.Session, daemon: RunningDaemon, function: str
) -> None:
    unsigned = client_of(session, daemon, signature_version=UNSIGNED)
    with pytest.raises(ClientError, match="MissingAuthenticationTokenException"):
        invoke(unsigned, "f")
    unsigned.close()
    wrong = client_of(session, daemon, "another secret than ours")
    with pytest.raises(ClientError, match="InvalidSignatureException"):
        wrong.list_functions()
    wrong.close()


@pytest.mark.skipif(shutil.which("aws") is None, reason="the aws command line is not installed")
def test_the_aws_command_line(daemon: RunningDaemon, function: str, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "AWS_ENDPOINT_URL_LAMBDA": daemon.url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    out = tmp_path / "answer.json"
    command = ["aws", "lambda", "invoke", "--function-name", "f", "--log-type", "Tail", str(out)]
    run = subprocess.run(command, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["ExecutedVersion"] == "$LATEST"
    assert json.loads(out.read_text())["event"] == {}


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
def test_a_worker_that_others_reach_does_not_start_without_keys(tmp_path: Path, listen: str) -> None:
    command = [*COMMAND[:-1], listen]
    daemon = RunningDaemon.launch(tmp_path / "state", "", command=command)
    try:
        assert daemon.wait() != 0
        assert "lambda_api.keys" in " ".join(" ".join(daemon.lines).split())
    finally:
        daemon.close()


ATTACK = """
import http.client
def handler(event, context):
    answers = []
    for method, path in event["requests"]:
        connection = http.client.HTTPConnection("127.0.0.1", event["port"])
        connection.request(method, path, b"{}")
        answers.append(connection.getresponse().status)
        connection.close()
    return answers
"""


def test_a_function_reaches_the_port_and_may_do_nothing_there(client: Any, daemon: RunningDaemon) -> None:
    create(client, "attack", ATTACK)
    functions = "/2015-03-31/functions"
    requests = [
        ("GET", functions),
        ("GET", f"{functions}/attack"),
        ("POST", functions),
        ("PUT", f"{functions}/attack/code"),
        ("DELETE", f"{functions}/attack"),
        ("POST", f"{functions}/attack/invocations"),
    ]
    answer = invoke(client, "attack", {"port": daemon.port, "requests": [("GET", "/healthz"), *requests]})
    assert answer["Payload"] == [200] + [403] * len(requests)
    client.delete_function(FunctionName="attack")
