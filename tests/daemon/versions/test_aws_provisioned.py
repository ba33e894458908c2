"""Provisioned concurrency in front of a real worker, driven by boto3 as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.daemon.aws_client import KEYS, client_of, create
from tests.daemon.gate import Gate
from tests.daemon.running import RunningDaemon, zipped
from tests.daemon.versions.numbered import code, files, ready, until
from tests.support.threads import at_once, in_background

pytestmark = pytest.mark.root


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
        reported = [(answer.json["type"], answer.headers["x-sockd-cold"]) for answer in answers()]
    assert reported == [("provisioned-concurrency", "0")] * 2
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
    # Only there: a version that does not start at all would not be deployed.
    text = (
        "import os\nif os.environ['AWS_LAMBDA_INITIALIZATION_TYPE'] == 'provisioned-concurrency':\n"
        "    raise RuntimeError('not today')\ndef handler(event, context): pass"
    )
    broken = zipped({"app.py": text})
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
