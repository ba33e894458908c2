"""Published versions, aliases and provisioned concurrency in front of a real worker, driven by boto3 as it is."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.daemon.aws_client import KEYS, client_of, create, invoke
from tests.daemon.gate import Gate
from tests.daemon.running import DEADLINE_S, REPO, RunningDaemon, zipped
from tests.support.threads import at_once, in_background

pytestmark = pytest.mark.root
numbers = itertools.count(1)

CODE = """
import os, sys
from gate import wait
print("imported", NUMBER)
imported = []
def handler(event, context):
    imported.append(1)
    if "gate" in event:
        wait(event["gate"])
    if event.get("raise"):
        raise KeyError("no")
    if event.get("exit"):
        os._exit(1)
    return {
        "number": NUMBER,
        "version": context.function_version,
        "variable": os.environ["AWS_LAMBDA_FUNCTION_VERSION"],
        "arn": context.invoked_function_arn,
        "type": os.environ["AWS_LAMBDA_INITIALIZATION_TYPE"],
        "pid": os.getpid(),
        "calls": len(imported),
    }
"""


@pytest.fixture(scope="module")
def config() -> str:
    return f"{KEYS}[sandbox]\nmemory_mb = 2048\n"


@pytest.fixture
def function(client: Any) -> Iterator[str]:
    """A function of its own for each test, as numbers are not used twice; deployed once and not published."""
    name = f"f{next(numbers)}"
    create(client, name, code(1), Timeout=10)
    yield name
    client.delete_function(FunctionName=name)


@pytest.fixture
def versions(client: Any, function: str) -> list[str]:
    """Two published versions of it, 1 and 2."""
    return [publish(client, function, number) for number in (1, 2)]


def code(number: int) -> str:
    return f"NUMBER = {number}\n{CODE}"


def files(number: int) -> bytes:
    return zipped({"app.py": code(number), "gate.py": Gate.CODE})


def publish(client: Any, name: str, number: int) -> str:
    """Deploy and publish; its version."""
    version: str = client.update_function_code(FunctionName=name, ZipFile=files(number), Publish=True)["Version"]
    return version


def until(holds: Callable[[], Any], deadline_s: float = DEADLINE_S) -> None:
    """Wait for what nobody tells: it is asked for again and again."""
    expired = threading.Event()
    timer = threading.Timer(deadline_s, expired.set)
    timer.start()
    try:
        while not holds():
            assert not expired.wait(0.02), "it did not come true"
    finally:
        timer.cancel()


def test_what_is_published_stays_as_it_was(client: Any, function: str) -> None:
    before = client.get_function_configuration(FunctionName=function)
    first = client.publish_version(
        FunctionName=function,
        Description="the first",
        CodeSha256=before["CodeSha256"],
        RevisionId=before["RevisionId"],
    )
    assert (first["Version"], first["Description"]) == ("1", "the first")
    assert first["FunctionArn"] == before["FunctionArn"] + ":1"
    assert first["CodeSha256"] == base64.b64encode(hashlib.sha256(files(1)).digest()).decode()
    client.get_waiter("published_version_active").wait(FunctionName=function, Qualifier="1")
    client.get_waiter("function_active_v2").wait(FunctionName=f"{function}:1")
    client.tag_resource(Resource=before["FunctionArn"], Tags={"a": "b"})
    client.put_function_concurrency(FunctionName=function, ReservedConcurrentExecutions=5)
    assert client.publish_version(FunctionName=function)["Version"] == "1", "tags and concurrency are no version's"
    client.update_function_configuration(FunctionName=function, MemorySize=160, Description="changed")
    second = client.publish_version(FunctionName=function)
    assert (second["Version"], second["Description"], second["MemorySize"]) == ("2", "changed", 160)
    for number in range(3, 9):  # more than the registry remembers of unpublished deploys
        client.update_function_code(FunctionName=function, ZipFile=files(number))
    client.get_waiter("function_updated_v2").wait(FunctionName=function)
    kept = client.get_function(FunctionName=function, Qualifier="1")
    assert kept["Configuration"] == {key: value for key, value in first.items() if key != "ResponseMetadata"}
    assert (kept["Tags"], kept["Concurrency"]) == ({"a": "b"}, {"ReservedConcurrentExecutions": 5})
    told = {qualifier: invoke(client, function, Qualifier=qualifier) for qualifier in ("$LATEST", "1", "2")}
    assert {qualifier: each["ExecutedVersion"] for qualifier, each in told.items()} == {
        "$LATEST": "$LATEST",
        "1": "1",
        "2": "2",
    }
    payloads = {qualifier: each["Payload"] for qualifier, each in told.items()}
    assert {each["number"] for each in payloads.values()} == {8, 1}
    for qualifier, payload in payloads.items():
        assert (payload["version"], payload["variable"]) == (qualifier, qualifier)
        assert payload["arn"] == f"{before['FunctionArn']}:{qualifier}"
        assert payload["type"] == "on-demand"
    assert invoke(client, function)["Payload"]["arn"] == before["FunctionArn"]


def test_conditions_and_qualifiers_that_do_not_hold(client: Any, function: str) -> None:
    errors = client.exceptions
    arn = client.get_function_configuration(FunctionName=function)["FunctionArn"]
    with pytest.raises(errors.InvalidParameterValueException, match="is different from current CodeSHA256 in"):
        client.publish_version(FunctionName=function, CodeSha256="wrong")
    with pytest.raises(errors.PreconditionFailedException):
        client.publish_version(FunctionName=function, RevisionId="wrong")
    for call in (client.get_function, client.get_function_configuration, client.invoke):
        for qualifier in ("7", "prod"):
            with pytest.raises(errors.ResourceNotFoundException, match=f"Function not found: {arn}:{qualifier}"):
                call(FunctionName=function, Qualifier=qualifier)
    with pytest.raises(errors.ResourceNotFoundException, match=r"function:none:3"):
        client.get_function(FunctionName="none:3")
    with pytest.raises(errors.InvalidParameterValueException, match="The derived qualifier from the function name"):
        client.get_function(FunctionName=f"{arn}:1", Qualifier="2")
    with pytest.raises(errors.InvalidParameterValueException, match="cannot be deleted without deleting the function"):
        client.delete_function(FunctionName=function, Qualifier="$LATEST")
    with pytest.raises(errors.InvalidParameterValueException, match="permitted on Lambda functions only"):
        client.update_function_configuration(FunctionName=f"{function}:1", Timeout=3)
    with pytest.raises(ClientError, match=r"Tags on function aliases and versions are not supported"):
        client.list_tags(Resource=f"{arn}:1")


def test_versions_are_listed_page_by_page_and_deleted_one_by_one(client: Any, function: str) -> None:
    published = [publish(client, function, number) for number in range(1, 13)]
    assert published == [str(number) for number in range(1, 13)]
    pages = list(
        client.get_paginator("list_versions_by_function").paginate(
            FunctionName=function, PaginationConfig={"PageSize": 5}
        )
    )
    assert [len(page["Versions"]) for page in pages] == [5, 5, 3]
    assert [each["Version"] for page in pages for each in page["Versions"]] == ["$LATEST", *published]
    everything = client.get_paginator("list_functions").paginate(
        FunctionVersion="ALL", PaginationConfig={"PageSize": 4}
    )
    assert [each["Version"] for page in everything for each in page["Functions"]] == ["$LATEST", *published]
    client.create_alias(FunctionName=function, Name="prod", FunctionVersion="3")
    with pytest.raises(client.exceptions.ResourceConflictException, match="prod"):
        client.delete_function(FunctionName=function, Qualifier="3")
    assert invoke(client, f"{function}:4")["Payload"]["number"] == 4
    client.delete_function(FunctionName=function, Qualifier="4")
    client.delete_function(FunctionName=function, Qualifier="4")
    with pytest.raises(client.exceptions.ResourceNotFoundException):
        invoke(client, f"{function}:4")
    assert publish(client, function, 13) == "13"
    client.delete_function(FunctionName=function, Qualifier="13")
    client.update_function_code(FunctionName=function, ZipFile=files(14))
    assert client.publish_version(FunctionName=function)["Version"] == "14", "no number is used twice"


def test_a_number_is_not_used_again_for_a_function_that_was_made_anew(client: Any) -> None:
    assert create(client, "anew", code(1), Publish=True)["Version"] == "1"
    client.delete_function(FunctionName="anew")
    assert create(client, "anew", code(1), Publish=True)["Version"] == "2"
    assert invoke(client, "anew:2")["ExecutedVersion"] == "2"
    client.delete_function(FunctionName="anew")


def test_the_code_of_a_deleted_version_goes_when_its_last_request_has_ended(
    client: Any, daemon: RunningDaemon, function: str, versions: list[str], gate: Gate
) -> None:
    def stored() -> int:
        return len(os.listdir(daemon.state / "code"))

    before = stored()
    publish(client, function, 3)
    for number in range(4, 10):  # so that 3 is kept for its publication alone
        client.update_function_code(FunctionName=function, ZipFile=files(number))
    with in_background(lambda: invoke(client, f"{function}:3", {"gate": gate.port})) as answer:
        gate.arrived()
        with in_background(lambda: client.delete_function(FunctionName=function, Qualifier="3")):
            with pytest.raises(client.exceptions.ResourceNotFoundException):
                until(lambda: invoke(client, f"{function}:3", InvocationType="DryRun") is None)
            held = stored()
            gate.open()
            assert answer()["Payload"]["number"] == 3
    assert stored() == held - 1 > before


def test_versions_run_beside_each_other_within_the_functions_concurrency(
    client: Any, daemon: RunningDaemon, function: str, versions: list[str], gate: Gate
) -> None:
    client.put_function_concurrency(FunctionName=function, ReservedConcurrentExecutions=2)
    names = [function, f"{function}:1", f"{function}:2"]
    with in_background(lambda: at_once(3, lambda n: invoke(client, names[n], {"gate": gate.port}))) as answers:
        gate.arrived()
        gate.arrived()
        assert gate.nobody_comes()
        gate.open()
        gate.arrived()
        gate.open()
        assert [each["ExecutedVersion"] for each in answers()] == ["$LATEST", "1", "2"]
    client.put_function_concurrency(FunctionName=function, ReservedConcurrentExecutions=0)
    for name in names:
        with pytest.raises(client.exceptions.TooManyRequestsException):
            invoke(client, name)
    assert client.get_function_concurrency(FunctionName=function)["ReservedConcurrentExecutions"] == 0
    client.delete_function_concurrency(FunctionName=function)
    assert invoke(client, f"{function}:1")["StatusCode"] == 200


def test_an_alias_from_its_creation_to_its_end(client: Any, function: str, versions: list[str]) -> None:
    errors = client.exceptions
    created = client.create_alias(
        FunctionName=function, Name="prod", FunctionVersion="1", Description="what people use"
    )
    assert created["AliasArn"].endswith(f":function:{function}:prod")
    assert (created["FunctionVersion"], created["Description"]) == ("1", "what people use")
    with pytest.raises(errors.ResourceConflictException, match="Alias already exists: arn:"):
        client.create_alias(FunctionName=function, Name="prod", FunctionVersion="1")
    with pytest.raises(errors.ResourceNotFoundException, match=rf"Function not found: arn:.*:{function}:9"):
        client.create_alias(FunctionName=function, Name="other", FunctionVersion="9")
    with pytest.raises(errors.ResourceNotFoundException, match=rf"Cannot find alias arn: arn:.*:{function}:other"):
        client.get_alias(FunctionName=function, Name="other")
    assert invoke(client, created["AliasArn"])["ExecutedVersion"] == "1"
    seen = client.get_function(FunctionName=function, Qualifier="prod")["Configuration"]
    assert (seen["Version"], seen["FunctionArn"]) == ("1", created["AliasArn"])
    with pytest.raises(errors.PreconditionFailedException):
        client.update_alias(FunctionName=function, Name="prod", FunctionVersion="2", RevisionId="wrong")
    updated = client.update_alias(
        FunctionName=function, Name="prod", FunctionVersion="2", RevisionId=created["RevisionId"]
    )
    assert updated["RevisionId"] != created["RevisionId"] and updated["Description"] == "what people use"
    assert invoke(client, function, Qualifier="prod")["Payload"]["version"] == "2"
    for name in ("a", "b", "c"):
        client.create_alias(FunctionName=function, Name=name, FunctionVersion="$LATEST" if name == "c" else "1")
    pages = client.get_paginator("list_aliases").paginate(FunctionName=function, PaginationConfig={"PageSize": 3})
    assert [each["Name"] for page in pages for each in page["Aliases"]] == ["a", "b", "c", "prod"]
    ones = client.list_aliases(FunctionName=function, FunctionVersion="1")["Aliases"]
    assert [each["Name"] for each in ones] == ["a", "b"]
    assert invoke(client, f"{function}:c")["ExecutedVersion"] == "$LATEST"
    client.create_function_url_config(FunctionName=function, Qualifier="prod", AuthType="NONE")
    client.put_function_event_invoke_config(FunctionName=function, Qualifier="prod", MaximumRetryAttempts=1)
    client.delete_alias(FunctionName=function, Name="prod")
    client.delete_alias(FunctionName=function, Name="prod")
    assert client.list_function_url_configs(FunctionName=function)["FunctionUrlConfigs"] == []
    assert client.list_function_event_invoke_configs(FunctionName=function)["FunctionEventInvokeConfigs"] == []
    with pytest.raises(errors.ResourceNotFoundException):
        invoke(client, f"{function}:prod")


@pytest.mark.parametrize(
    ("version", "weights", "words"),
    [
        ("1", {"2": 0.1, "3": 0.1}, "cannot be greater than 1"),
        ("1", {"1": 0.1}, "already included in routing configuration"),
        ("$LATEST", {"1": 0.1}, "not supported for an alias pointing to more than 1 version"),
        ("1", {"2": 1.0}, "failed to satisfy constraint"),
        ("1", {"$LATEST": 0.1}, "failed to satisfy constraint"),
        ("1", {"9": 0.1}, "Function not found"),
    ],
)
def test_weights_that_no_alias_can_have(
    client: Any, function: str, versions: list[str], version: str, weights: dict[str, float], words: str
) -> None:
    with pytest.raises(ClientError, match=words):
        client.create_alias(
            FunctionName=function,
            Name="prod",
            FunctionVersion=version,
            RoutingConfig={"AdditionalVersionWeights": weights},
        )


def test_a_share_of_the_requests_goes_to_another_version_and_retries_stay_where_they_were(
    client: Any, daemon: RunningDaemon, function: str, versions: list[str]
) -> None:
    routing = {"AdditionalVersionWeights": {"2": 0.5}}
    created = client.create_alias(FunctionName=function, Name="canary", FunctionVersion="1", RoutingConfig=routing)
    assert created["RoutingConfig"] == routing
    ran = Counter(invoke(client, f"{function}:canary")["ExecutedVersion"] for _ in range(60))
    assert set(ran) == {"1", "2"} and min(ran.values()) >= 10  # 1 in 10^7 that it is not
    ran = Counter(daemon.call(f"{function}:canary", {})["version"] for _ in range(60))
    assert set(ran) == {"1", "2"}

    def tries(call_id: str) -> set[str]:
        def stamp(request: Any, **kwargs: Any) -> None:
            request.headers["amz-sdk-invocation-id"] = call_id

        client.meta.events.register("before-send.lambda.Invoke", stamp, unique_id=call_id)
        try:
            return {invoke(client, f"{function}:canary")["ExecutedVersion"] for _ in range(4)}
        finally:
            client.meta.events.unregister("before-send.lambda.Invoke", stamp, unique_id=call_id)

    assert [len(tries(str(uuid.UUID(int=number)))) for number in range(6)] == [1] * 6
    client.update_alias(FunctionName=function, Name="canary", RoutingConfig={})
    assert "RoutingConfig" not in client.get_alias(FunctionName=function, Name="canary")
    assert {invoke(client, f"{function}:canary")["ExecutedVersion"] for _ in range(10)} == {"1"}


def test_a_version_over_http_and_in_logs_errors_and_traces(
    client: Any, daemon: RunningDaemon, function: str, versions: list[str]
) -> None:
    client.create_alias(FunctionName=function, Name="prod", FunctionVersion="1")
    assert daemon.call(f"{function}:1", {})["number"] == 1
    assert daemon.call(f"{function}:prod", {})["arn"].endswith(f":function:{function}:prod")
    assert daemon.call(function, {})["version"] == "$LATEST"
    unknown = daemon.run(f"{function}:none", {})
    assert unknown.status == 404 and f"sockd versions {function}".encode() in unknown.body
    failed = invoke(client, f"{function}:1", {"raise": 1}, LogType="Tail")
    assert (failed["FunctionError"], failed["ExecutedVersion"]) == ("Unhandled", "1")
    assert b"Version: 1\n" in base64.b64decode(failed["LogResult"])
    assert invoke(client, f"{function}:2", {"exit": 1})["ExecutedVersion"] == "2"
    assert invoke(client, f"{function}:prod", InvocationType="DryRun")["StatusCode"] == 204
    assert {trace["version"] for trace in daemon.manage("GET", "/traces?limit=4").json} == {"$LATEST", "1", "2"}


def ready(client: Any, name: str, qualifier: str) -> bool:
    """Whether all that was provisioned is there; it must not have failed."""
    status = client.get_provisioned_concurrency_config(FunctionName=name, Qualifier=qualifier)
    assert status["Status"] in ("READY", "IN_PROGRESS"), status
    return bool(status["Status"] == "READY")


def test_provisioned_sandboxes_are_initialized_before_anybody_asks_and_stay(
    client: Any, daemon: RunningDaemon, function: str, versions: list[str], gate: Gate
) -> None:
    put = client.put_provisioned_concurrency_config(
        FunctionName=function, Qualifier="1", ProvisionedConcurrentExecutions=2
    )
    assert put["RequestedProvisionedConcurrentExecutions"] == 2
    until(lambda: ready(client, function, "1"))
    assert daemon.status()["sandboxes"]["provisioned"] == 2
    status = client.get_provisioned_concurrency_config(FunctionName=function, Qualifier="1")
    assert (status["AvailableProvisionedConcurrentExecutions"], "StatusReason" in status) == (2, False)
    with in_background(lambda: at_once(2, lambda n: daemon.run(f"{function}:1", {"gate": gate.port}))) as answers:
        gate.arrived()
        gate.arrived()
        assert daemon.call(f"{function}:1", {})["type"] == "on-demand", "those that were provisioned are busy"
        gate.open()
        told = [(answer.json["type"], answer.headers["x-sockd-cold"]) for answer in answers()]
    assert told == [("provisioned-concurrency", "0")] * 2
    assert daemon.run(f"{function}:1", {"exit": 1}).status == 502
    until(lambda: ready(client, function, "1"))
    again = daemon.run(f"{function}:1", {})
    assert (again.headers["x-sockd-cold"], again.json["type"]) == ("0", "provisioned-concurrency")
    client.delete_provisioned_concurrency_config(FunctionName=function, Qualifier="1")
    client.delete_provisioned_concurrency_config(FunctionName=function, Qualifier="1")
    with pytest.raises(client.exceptions.ProvisionedConcurrencyConfigNotFoundException):
        client.get_provisioned_concurrency_config(FunctionName=function, Qualifier="1")


def test_what_is_provisioned_for_an_alias_goes_where_it_leads(
    client: Any, daemon: RunningDaemon, function: str, versions: list[str]
) -> None:
    client.create_alias(FunctionName=function, Name="prod", FunctionVersion="1")
    client.put_provisioned_concurrency_config(
        FunctionName=function, Qualifier="prod", ProvisionedConcurrentExecutions=2
    )
    until(lambda: ready(client, function, "prod"))
    assert daemon.call(f"{function}:prod", {})["type"] == "provisioned-concurrency"
    client.update_alias(
        FunctionName=function,
        Name="prod",
        FunctionVersion="2",
        RoutingConfig={"AdditionalVersionWeights": {"1": 0.1}},
    )
    until(lambda: daemon.call(f"{function}:2", {})["type"] == "provisioned-concurrency")
    assert daemon.call(f"{function}:1", {})["type"] == "provisioned-concurrency"
    listed = client.get_paginator("list_provisioned_concurrency_configs").paginate(FunctionName=function)
    (config,) = [each for page in listed for each in page["ProvisionedConcurrencyConfigs"]]
    assert config["FunctionArn"].endswith(f":{function}:prod")
    with pytest.raises(client.exceptions.ResourceConflictException, match="pointed by a Provisioned"):
        client.put_provisioned_concurrency_config(
            FunctionName=function, Qualifier="2", ProvisionedConcurrentExecutions=1
        )
    with pytest.raises(client.exceptions.InvalidParameterValueException, match="unpublished"):
        client.update_alias(FunctionName=function, Name="prod", FunctionVersion="$LATEST", RoutingConfig={})
    client.delete_alias(FunctionName=function, Name="prod")
    assert client.list_provisioned_concurrency_configs(FunctionName=function)["ProvisionedConcurrencyConfigs"] == []


def test_what_cannot_be_provisioned_is_refused_and_takes_nothing(
    client: Any, daemon: RunningDaemon, function: str, versions: list[str]
) -> None:
    def refused(words: str, qualifier: str, count: int) -> None:
        with pytest.raises(ClientError, match=words) as caught:
            client.put_provisioned_concurrency_config(
                FunctionName=function, Qualifier=qualifier, ProvisionedConcurrentExecutions=count
            )
        assert 400 <= caught.value.response["ResponseMetadata"]["HTTPStatusCode"] < 500

    refused("unpublished function versions", "$LATEST", 1)
    refused("Cannot find alias arn", "prod", 1)
    refused("Function not found", "9", 1)
    refused("should not be greater than the reservedConcurrentExecution", "1", 11)
    client.put_function_concurrency(FunctionName=function, ReservedConcurrentExecutions=100)
    refused("greater than account's unreserved concurrency: the function needs", "1", 99)
    with pytest.raises(client.exceptions.ProvisionedConcurrencyConfigNotFoundException):
        client.get_provisioned_concurrency_config(FunctionName=function, Qualifier="1")
    assert daemon.status()["sandboxes"]["provisioned"] == 0


def test_a_version_that_cannot_be_initialized_says_so_and_is_tried_again(client: Any, function: str) -> None:
    broken = zipped({"app.py": "import os\nraise RuntimeError('not today')\ndef handler(event, context): pass"})
    client.update_function_code(FunctionName=function, ZipFile=broken, Publish=True)
    client.put_provisioned_concurrency_config(FunctionName=function, Qualifier="1", ProvisionedConcurrentExecutions=1)

    def failed() -> bool:
        status = client.get_provisioned_concurrency_config(FunctionName=function, Qualifier="1")
        return bool(status["Status"] == "FAILED" and "not today" in status["StatusReason"])

    until(failed)
    with pytest.raises(client.exceptions.InvalidParameterValueException, match="total provisioned concurrency"):
        client.put_function_concurrency(FunctionName=function, ReservedConcurrentExecutions=0)


def test_a_killed_daemon_leaves_versions_aliases_and_what_is_provisioned_to_the_next(
    session: Any, daemon: RunningDaemon, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    life = RunningDaemon.start(state, KEYS)
    try:
        client = client_of(session, life)
        create(client, "f", code(1), Publish=True)
        client.update_function_code(FunctionName="f", ZipFile=files(2), Publish=True)
        client.update_function_code(FunctionName="f", ZipFile=files(3))
        routing = {"AdditionalVersionWeights": {"2": 0.5}}
        client.create_alias(FunctionName="f", Name="prod", FunctionVersion="1", RoutingConfig=routing)
        client.put_provisioned_concurrency_config(FunctionName="f", Qualifier="1", ProvisionedConcurrentExecutions=1)
        seen = [client.get_function_configuration(FunctionName="f", Qualifier=each) for each in ("1", "2", "prod")]
        life.kill()
        life.close()
        life = RunningDaemon.start(state, KEYS)
        client = client_of(session, life)
        again = [client.get_function_configuration(FunctionName="f", Qualifier=each) for each in ("1", "2", "prod")]
        assert [each["RevisionId"] for each in again] == [each["RevisionId"] for each in seen]
        until(lambda: ready(client, "f", "1"))
        assert life.call("f:1", {})["type"] == "provisioned-concurrency"
        assert [life.call(name, {})["number"] for name in ("f", "f:1", "f:2")] == [3, 1, 2]
        assert client.get_alias(FunctionName="f", Name="prod")["RoutingConfig"] == routing
        assert client.publish_version(FunctionName="f")["Version"] == "3"
    finally:
        life.close()


def test_versions_from_the_command_line(daemon: RunningDaemon) -> None:
    def sockd(*arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "sockd", *arguments, "--json"],
            cwd=REPO,
            env={**os.environ, "SOCKD_STATE_DIR": str(daemon.state), "SOCKD_URL": daemon.url},
            capture_output=True,
            text=True,
            timeout=15,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def ran(name: str) -> int:
        return int(sockd("invoke", name)["body"])

    for number in (1, 2, 3):
        daemon.deploy("shell", f"def f(event): return {number}")
        if number < 3:
            assert sockd("publish", "shell", "--description", f"no. {number}")["version"] == number
    assert sockd("alias", "shell", "prod", "1", "--canary", "2=25%")["canary"] == {"2": 0.25}
    found = sockd("versions", "shell")
    assert [each["description"] for each in found["versions"]] == ["no. 1", "no. 2"]
    assert [each["deploy"] for each in found["deploys"]] == [3, 2, 1]
    assert ran("shell:prod") in (1, 2)
    assert sockd("provision", "shell", "2", "1")["wanted"] == 1
    assert ran("shell") == 3
    assert sockd("rollback", "shell")["deploy"] == 4
    assert ran("shell") == 2
    assert sockd("rollback", "shell", "--to", "1")["deploy"] == 5
    assert ran("shell") == 1
    assert sockd("alias", "shell", "prod", "--rm") == {"deleted": "prod"}
    assert [each["version"] for each in sockd("versions", "shell", "--rm", "1")["versions"]] == [2]
    assert daemon.manage("POST", "/functions/shell:2/invoke", b"{}").json == 2
    daemon.remove("shell")
