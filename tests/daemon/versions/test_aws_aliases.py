"""Aliases, and which version they lead to, in front of a real worker, driven by boto3 as it is."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.daemon.aws_client import invoke
from tests.daemon.running import RunningDaemon

pytestmark = pytest.mark.root


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


def test_a_share_of_the_requests_goes_to_another_version_and_retries_keep_theirs(
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
