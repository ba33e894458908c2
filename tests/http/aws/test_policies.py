"""Resource policies and constants, which tools read and write in their first apply, in front of a fake worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from sockd.http.aws.routes import Operation
from tests.http.aws.aws_model import MODEL, on_the_wire
from tests.http.aws.conftest import request
from tests.http.aws.fake_lambda import FakeLambda
from tests.http.raw import Raw, Reply

pytestmark = pytest.mark.anyio
PUBLIC = {
    "StatementId": "FunctionURLAllowPublicAccess",
    "Action": "lambda:InvokeFunctionUrl",
    "Principal": "*",
    "FunctionUrlAuthType": "NONE",
}
ARN = "arn:aws:lambda:local:000000000000:function:slow"


async def asked(client: Raw, operation: str, parameters: Mapping[str, Any]) -> Reply:
    named = {} if operation == "ListLayers" else {"FunctionName": "slow"}
    return await client.ask(on_the_wire(MODEL.operation_model(operation), {**named, **parameters}))


def kind(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.headers["x-amzn-errortype"]


async def test_a_policy_from_its_first_statement_to_its_last(client: Raw, worker: FakeLambda) -> None:
    assert kind(await asked(client, "GetPolicy", {})) == (404, "ResourceNotFoundException")
    added = await asked(client, "AddPermission", PUBLIC)
    assert added.status == 201
    statement = {
        "Sid": "FunctionURLAllowPublicAccess",
        "Effect": "Allow",
        "Principal": "*",
        "Action": "lambda:InvokeFunctionUrl",
        "Resource": ARN,
        "Condition": {"StringEquals": {"lambda:FunctionUrlAuthType": "NONE"}},
    }
    assert json.loads(added.json["Statement"]) == statement
    assert kind(await asked(client, "AddPermission", PUBLIC)) == (409, "ResourceConflictException")
    got = (await asked(client, "GetPolicy", {})).json
    assert json.loads(got["Policy"]) == {"Version": "2012-10-17", "Id": "default", "Statement": [statement]}

    bucket = {
        "StatementId": "bucket",
        "Action": "lambda:InvokeFunction",
        "Principal": "s3.amazonaws.com",
        "SourceArn": "arn:aws:s3:::b",
        "SourceAccount": "123456789012",
        "RevisionId": "of another time",
    }
    assert kind(await asked(client, "AddPermission", bucket)) == (412, "PreconditionFailedException")
    added = await asked(client, "AddPermission", bucket | {"RevisionId": got["RevisionId"]})
    reported = json.loads(added.json["Statement"])
    assert reported["Principal"] == {"Service": "s3.amazonaws.com"}
    assert reported["Condition"] == {
        "StringEquals": {"AWS:SourceAccount": "123456789012"},
        "ArnLike": {"AWS:SourceArn": "arn:aws:s3:::b"},
    }
    for statement_id in ("bucket", "FunctionURLAllowPublicAccess"):
        assert (await asked(client, "RemovePermission", {"StatementId": statement_id})).status == 204
    gone = await asked(client, "RemovePermission", {"StatementId": "bucket"})
    assert kind(gone) == (404, "ResourceNotFoundException")
    assert kind(await asked(client, "GetPolicy", {})) == (404, "ResourceNotFoundException")


async def test_the_principal_of_an_account_is_its_root(client: Raw) -> None:
    wanted = {"StatementId": "a", "Action": "lambda:InvokeFunction", "Principal": "123456789012"}
    reported = json.loads((await asked(client, "AddPermission", wanted)).json["Statement"])
    assert reported["Principal"] == {"AWS": "arn:aws:iam::123456789012:root"}
    assert "Condition" not in reported


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"StatementId": "a b"}, "ValidationException"),
        ({"Action": "s3:GetObject"}, "ValidationException"),
        ({"Principal": ""}, "ValidationException"),
        ({"FunctionUrlAuthType": "JWT"}, "InvalidRequestContentException"),
        ({"SourceArn": "a" * 21_000}, "PolicyLengthExceededException"),
        ({"FunctionName": "none"}, "ResourceNotFoundException"),
    ],
)
async def test_a_permission_that_cannot_be_added(
    client: Raw, worker: FakeLambda, changes: Mapping[str, str], error: str
) -> None:
    assert (await asked(client, "AddPermission", {**PUBLIC, **changes})).headers["x-amzn-errortype"] == error
    assert worker.urls.policies.of("slow").statements == ()


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        ("GetFunctionCodeSigningConfig", {}),
        ("GetRuntimeManagementConfig", {"UpdateRuntimeOn": "Auto", "FunctionArn": ARN}),
        ("GetFunctionRecursionConfig", {"RecursiveLoop": "Terminate"}),
        ("ListLayers", {"Layers": []}),
        ("ListEventSourceMappings", {"EventSourceMappings": []}),
    ],
)
async def test_what_tools_read_of_features_that_are_not_there(client: Raw, operation: str, answer: object) -> None:
    reply = await asked(client, operation, {})
    assert (reply.status, reply.json) == (200, answer)
    if operation != "ListLayers":
        unknown = await asked(client, operation, {"FunctionName": "none"})
        assert kind(unknown) == (404, "ResourceNotFoundException")


OTHERS = [name for name in MODEL.operation_names if name not in {operation.value for operation in Operation}]


@pytest.mark.parametrize("operation", OTHERS)
async def test_the_error_names_an_operation_that_is_not_offered(client: Raw, operation: str) -> None:
    model = MODEL.operation_model(operation)
    path = model.http["requestUri"].replace("{", "").replace("}", "")
    reply = await client.ask(request(model.http["method"], path, {}))
    assert kind(reply) == (404, "UnknownOperationException")
    assert reply.json["message"].startswith(f"sockd does not offer {operation} (")
