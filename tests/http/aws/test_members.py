"""Every member of AWS's model is obeyed or refused; none is accepted and dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from botocore.model import OperationModel, Shape, StructureShape

from sockd.http.aws import event_config, policies, shapes, urls
from tests.http.aws.aws_model import offered, on_the_wire, serialized
from tests.http.aws.conftest import request
from tests.http.aws.fake_lambda import FakeLambda
from tests.http.raw import Raw, Reply

pytestmark = pytest.mark.anyio
OBEYED = set(
    """
    Action AdditionalVersionWeights AllowCredentials AllowHeaders AllowMethods AllowOrigins ApplyOn
    ApplicationLogLevel Architectures AuthType ClientContext Code CodeSha256 Command CompatibleArchitecture
    CompatibleRuntime Cors Description Destination DestinationConfig DryRun EntryPoint Environment
    EphemeralStorage EventSourceArn EventSourceToken ExposeHeaders FunctionName FunctionUrlAuthType
    FunctionVersion Handler ImageConfig ImageUri InvocationType InvokeArgs InvokeMode InvokedViaFunctionUrl
    LogFormat LogType LoggingConfig Marker MaxAge MaxItems MaximumEventAgeInSeconds MaximumRetryAttempts
    MemorySize Name OnFailure OnSuccess PackageType Payload Principal PrincipalOrgID
    ProvisionedConcurrentExecutions Publish Qualifier ReservedConcurrentExecutions Resource RevisionId Role
    RoutingConfig Runtime Size SnapStart SourceAccount SourceArn StatementId SystemLogLevel TagKeys Tags Timeout
    Variables WorkingDirectory ZipFile
    """.split()
)
"""By name: members with one name mean the same in each operation."""
PROVIDER = {"LambdaManagedInstancesCapacityProviderConfig": {"CapacityProviderArn": "arn:aws:lambda:a:1:p"}}
REFUSED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "AcceleratorConfig": ({"AcceleratorMemorySize": 16}, ({},)),
    "CapacityProviderConfig": (PROVIDER, ({},)),
    "CodeSigningConfigArn": ("arn:aws:lambda:local:000000000000:code-signing-config:csc-0123456789abcdef0", ("",)),
    "DeadLetterConfig": ({"TargetArn": "arn:aws:sqs:local:000000000000:q"}, ({}, {"TargetArn": ""})),
    "DurableConfig": ({"ExecutionTimeout": 60}, ({},)),
    "DurableExecutionName": ("one", ()),
    "FileSystemConfigs": ([{"Arn": "arn", "LocalMountPath": "/mnt/a"}], ([],)),
    "KMSKeyArn": ("arn:aws:kms:local:000000000000:key/a", ("",)),
    "Layers": (["arn:aws:lambda:local:000000000000:layer:a:1"], ([],)),
    "LogGroup": ("/of/all", ("", "/aws/lambda/f")),
    "MasterRegion": ("ALL", ()),
    "PublishTo": ("LATEST_PUBLISHED", ()),
    "RuntimeConfig": ({"RuntimeArn": "arn", "RuntimeAlias": "a"}, ({},)),
    "S3Bucket": ("b", ("",)),
    "S3Key": ("k", ("",)),
    "S3ObjectStorageMode": ("REFERENCE", ("",)),
    "S3ObjectVersion": ("1", ("",)),
    "SourceKMSKeyArn": ("arn:aws:kms:local:000000000000:key/a", ("",)),
    "TenancyConfig": ({"TenantIsolationMode": "PER_TENANT"}, ({},)),
    "TenantId": ("one", ()),
    "TracingConfig": ({"Mode": "Active"}, ({}, {"Mode": "PassThrough"})),
    "VpcConfig": ({"SubnetIds": ["a"]}, ({}, {"SubnetIds": [], "SecurityGroupIds": []})),
}
"""By name: a value that asks for something, and values that do not."""
LEAST: dict[str, dict[str, Any]] = {
    "CreateFunction": {
        "FunctionName": "f",
        "Runtime": "python3.11",
        "Role": "r",
        "Handler": "a.b",
        "Code": {"ZipFile": b"PK..."},
    },
    "UpdateFunctionCode": {"FunctionName": "f", "ZipFile": b"PK..."},
    "AddPermission": {"StatementId": "s", "Action": "lambda:InvokeFunction", "Principal": "*"},
}
BODIES: dict[str, type[shapes.Shape]] = {
    "AddPermission": policies.AddedPermission,
    "CreateAlias": shapes.AliasShape,
    "CreateFunction": shapes.Create,
    "CreateFunctionUrlConfig": urls.UrlSettings,
    "PublishVersion": shapes.Publish,
    "PutFunctionConcurrency": shapes.Concurrency,
    "PutFunctionEventInvokeConfig": event_config.EventConfigRequest,
    "PutProvisionedConcurrencyConfig": shapes.Provisioned,
    "TagResource": shapes.Tags,
    "UpdateAlias": shapes.AliasShape,
    "UpdateFunctionCode": shapes.UpdateCode,
    "UpdateFunctionConfiguration": shapes.Update,
    "UpdateFunctionEventInvokeConfig": event_config.EventConfigRequest,
    "UpdateFunctionUrlConfig": urls.UrlSettings,
}
"""The shape that each operation with settings in its body is parsed as."""


def members(shape: Shape | None, *above: str) -> Iterator[tuple[tuple[str, ...], Shape]]:
    """Each member of a structure, but for what is within a refused one."""
    for name, member in shape.members.items() if isinstance(shape, StructureShape) else ():
        yield (*above, name), member
        if name not in REFUSED:
            yield from members(member, *above, name)


def placed(path: tuple[str, ...], value: object, least: dict[str, Any]) -> dict[str, Any]:
    """Parameters with one more member."""
    name, *rest = path
    return {**least, name: placed(tuple(rest), value, least.get(name, {})) if rest else value}


def sample(shape: Shape) -> object:
    """A value of the type."""
    match shape.type_name:
        case "list":
            return [sample(shape.member)]
        case "map":
            return {"1": sample(shape.value)}
        case "integer" | "double" | "float":
            return 1
        case "boolean":
            return True
        case "blob":
            return b"PK..."
    return (getattr(shape, "enum", None) or ["1"])[0]


ASKED = [(model, path) for model in offered() for path, _ in members(model.input_shape) if path[-1] in REFUSED]


async def asked(client: Raw, model: OperationModel, path: tuple[str, ...], value: object) -> Reply:
    parameters = placed(path, value, LEAST.get(model.name, {}))
    if model.name == "ListFunctions":
        parameters["FunctionVersion"] = "ALL"
    return await client.ask(on_the_wire(model, parameters))


def test_each_member_is_obeyed_or_refused() -> None:
    names = {path[-1] for model in offered() for path, _ in members(model.input_shape)}
    assert names == OBEYED | REFUSED.keys()


@pytest.mark.parametrize(("model", "path"), ASKED, ids=[f"{model.name}-{'.'.join(path)}" for model, path in ASKED])
async def test_what_sockd_does_not_do_is_refused(
    client: Raw, worker: FakeLambda, model: OperationModel, path: tuple[str, ...]
) -> None:
    if model.name != "CreateFunction":
        worker.names.add("f")
    worker.release.set()
    name = path[-1]
    asks, harmless = REFUSED[name]
    reply = await asked(client, model, path, asks)
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (400, "InvalidParameterValueException"), reply.body
    assert reply.json["message"].startswith(f"{name} is not offered by sockd: ")
    assert worker.functions.runs == 0 and worker.invoked == []
    for value in harmless:
        if model.name == "CreateFunction":
            await client.ask(request("DELETE", "/2015-03-31/functions/f"))
        if model.name == "PublishVersion":
            continue  # versions are a real worker's
        reply = await asked(client, model, path, value)
        assert reply.status in (200, 201), reply.body


@pytest.mark.parametrize("model", [model for model in offered() if model.name in BODIES], ids=lambda model: model.name)
def test_what_is_obeyed_is_in_the_body_s_shape(model: OperationModel) -> None:
    for path, member in members(model.input_shape):
        is_elsewhere = member.serialization.get("location") is not None
        if is_elsewhere or path[-1] not in OBEYED or member.type_name == "structure":
            continue
        sent = serialized(model, placed(path, sample(member), LEAST.get(model.name, {})))
        body = {"ProvisionedConcurrentExecutions": 1, "ReservedConcurrentExecutions": 1, "Tags": {}}
        required = {name: value for name, value in body.items() if name in model.input_shape.required_members}
        text = json.dumps(required | json.loads(sent["body"])).encode()
        parsed = msgspec.to_builtins(shapes.parse(text, BODIES[model.name]), builtin_types=[msgspec.Raw])
        for name in path:
            assert name in parsed, f"{'.'.join(path)} was dropped"
            parsed = parsed[name]


@pytest.mark.parametrize(
    "body", [{"Foo": 1}, {"Environment": {"Foo": {}}}, {"Publish": True}, {"LoggingConfig": {"loggroup": "a"}}]
)
async def test_a_member_that_aws_does_not_know_is_refused(client: Raw, worker: FakeLambda, body: object) -> None:
    reply = await client.ask(request("PUT", "/2015-03-31/functions/slow/configuration", body))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (400, "InvalidRequestContentException")
    assert "unknown field" in reply.json["message"]
