"""Published versions in front of a real worker, driven by boto3 as it is and from the command line."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import sys
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.daemon.aws_client import create, invoke
from tests.daemon.gate import Gate
from tests.daemon.running import REPO, RunningDaemon
from tests.daemon.versions.numbered import code, files, publish, until
from tests.support import sockd_template
from tests.support.threads import at_once, in_background

pytestmark = pytest.mark.root


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
    reported = {qualifier: invoke(client, function, Qualifier=qualifier) for qualifier in ("$LATEST", "1", "2")}
    assert {qualifier: each["ExecutedVersion"] for qualifier, each in reported.items()} == {
        "$LATEST": "$LATEST",
        "1": "1",
        "2": "2",
    }
    payloads = {qualifier: each["Payload"] for qualifier, each in reported.items()}
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


def test_versions_run_next_to_each_other_within_the_functions_concurrency(
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


def test_versions_from_the_command_line(daemon: RunningDaemon) -> None:
    def typed(*arguments: str) -> str:
        done = sockd_template.run(
            [sys.executable, "-m", "sockd", *arguments],
            cwd=REPO,
            env={**os.environ, "SOCKD_STATE_DIR": str(daemon.state), "SOCKD_URL": daemon.url},
            timeout=15,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sockd(*arguments: str) -> Any:
        return json.loads(typed(*arguments, "--json"))

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
    assert len(re.findall(r" \d+ s ago(?! ago)", typed("versions", "shell"))) == 5
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
