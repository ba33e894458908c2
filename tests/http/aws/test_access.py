"""Who may call what: without a key, with a wrong one, with a signature that covers something else."""

from __future__ import annotations

import pytest

from sockd.base.config import HttpConfig, LambdaApiConfig
from sockd.base.errors import BadConfig
from sockd.http.aws.access import Access
from sockd.http.aws.routes import PERMISSIONS, Operation, Permission, route
from tests.http.aws.conftest import KEYS, request
from tests.http.aws.fake_lambda import FakeLambda
from tests.http.raw import Raw

pytestmark = pytest.mark.anyio
INVOKE = "/2015-03-31/functions/echo/invocations"
EVENT_CONFIG = "/2019-09-25/functions/slow/event-invoke-config"
PATHS = {
    "Invoke": ("POST", INVOKE),
    "InvokeWithResponseStream": ("POST", "/2021-11-15/functions/echo/response-streaming-invocations"),
    "InvokeAsync": ("POST", "/2014-11-13/functions/echo/invoke-async"),
    "CreateFunction": ("POST", "/2015-03-31/functions"),
    "ListFunctions": ("GET", "/2015-03-31/functions/?MaxItems=3"),
    "GetFunction": ("GET", "/2015-03-31/functions/slow"),
    "DeleteFunction": ("DELETE", "/2015-03-31/functions/slow"),
    "GetFunctionConfiguration": ("GET", "/2015-03-31/functions/slow/configuration"),
    "UpdateFunctionConfiguration": ("PUT", "/2015-03-31/functions/slow/configuration"),
    "UpdateFunctionCode": ("PUT", "/2015-03-31/functions/slow/code"),
    "PublishVersion": ("POST", "/2015-03-31/functions/slow/versions"),
    "ListVersionsByFunction": ("GET", "/2015-03-31/functions/slow/versions"),
    "CreateAlias": ("POST", "/2015-03-31/functions/slow/aliases"),
    "ListAliases": ("GET", "/2015-03-31/functions/slow/aliases?FunctionVersion=1"),
    "GetAlias": ("GET", "/2015-03-31/functions/slow/aliases/prod"),
    "UpdateAlias": ("PUT", "/2015-03-31/functions/slow/aliases/prod"),
    "DeleteAlias": ("DELETE", "/2015-03-31/functions/slow/aliases/prod"),
    "PutProvisionedConcurrencyConfig": (
        "PUT",
        "/2019-09-30/functions/slow/provisioned-concurrency?Qualifier=1",
    ),
    "GetProvisionedConcurrencyConfig": (
        "GET",
        "/2019-09-30/functions/slow/provisioned-concurrency?Qualifier=1",
    ),
    "DeleteProvisionedConcurrencyConfig": (
        "DELETE",
        "/2019-09-30/functions/slow/provisioned-concurrency?Qualifier=1",
    ),
    "ListProvisionedConcurrencyConfigs": (
        "GET",
        "/2019-09-30/functions/slow/provisioned-concurrency?List=ALL&MaxItems=3",
    ),
    "PutFunctionConcurrency": ("PUT", "/2017-10-31/functions/slow/concurrency"),
    "GetFunctionConcurrency": ("GET", "/2019-09-30/functions/slow/concurrency"),
    "DeleteFunctionConcurrency": ("DELETE", "/2017-10-31/functions/slow/concurrency"),
    "PutFunctionEventInvokeConfig": ("PUT", EVENT_CONFIG),
    "UpdateFunctionEventInvokeConfig": ("POST", EVENT_CONFIG),
    "GetFunctionEventInvokeConfig": ("GET", EVENT_CONFIG),
    "DeleteFunctionEventInvokeConfig": ("DELETE", EVENT_CONFIG),
    "ListFunctionEventInvokeConfigs": ("GET", EVENT_CONFIG + "/list"),
    "GetAccountSettings": ("GET", "/2016-08-19/account-settings/"),
    "ListTags": ("GET", "/2017-03-31/tags/slow"),
    "TagResource": ("POST", "/2017-03-31/tags/slow"),
    "UntagResource": ("DELETE", "/2017-03-31/tags/slow"),
    "CreateFunctionUrlConfig": ("POST", "/2021-10-31/functions/slow/url"),
    "GetFunctionUrlConfig": ("GET", "/2021-10-31/functions/slow/url"),
    "UpdateFunctionUrlConfig": ("PUT", "/2021-10-31/functions/slow/url"),
    "DeleteFunctionUrlConfig": ("DELETE", "/2021-10-31/functions/slow/url"),
    "ListFunctionUrlConfigs": ("GET", "/2021-10-31/functions/slow/urls"),
    "AddPermission": ("POST", "/2015-03-31/functions/slow/policy"),
    "RemovePermission": ("DELETE", "/2015-03-31/functions/slow/policy/s"),
    "GetPolicy": ("GET", "/2015-03-31/functions/slow/policy"),
    "GetFunctionCodeSigningConfig": ("GET", "/2020-06-30/functions/slow/code-signing-config"),
    "GetRuntimeManagementConfig": ("GET", "/2021-07-20/functions/slow/runtime-management-config"),
    "GetFunctionRecursionConfig": ("GET", "/2024-08-31/functions/slow/recursion-config"),
    "ListLayers": ("GET", "/2018-10-31/layers"),
    "ListEventSourceMappings": ("GET", "/2015-03-31/event-source-mappings/"),
}


def test_every_operation_is_asked_for_below() -> None:
    assert PATHS.keys() == {operation.value for operation in Operation}
    for name, (method, path) in PATHS.items():
        target, _, query = path.partition("?")
        assert route(method, target, query)[0].value == name


@pytest.mark.parametrize("name", PATHS)
async def test_without_keys_only_invoking_is_open(keyless: Raw, worker: FakeLambda, name: str) -> None:
    worker.names.add("echo")
    before = worker.functions.all_details()
    method, path = PATHS[name]
    for key in (None, "test"):  # SDKs sign with whatever they were given
        reply = await keyless.ask(request(method, path, {}, key=key))
        assert (PERMISSIONS[Operation(name)] is Permission.INVOKE) == name.startswith("Invoke")
        if name == "Invoke":
            assert (reply.status, reply.body) == (200, b"{}")
        elif name == "InvokeWithResponseStream":
            assert (reply.status, b"{}" in reply.body) == (200, True)
        elif name == "InvokeAsync":
            assert reply.status == 202
        else:
            assert (reply.status, reply.headers["x-amzn-errortype"]) == (403, "AccessDeniedException")
            assert "lambda_api.keys" in reply.json["message"]
    assert worker.functions.all_details() == before


@pytest.mark.parametrize("name", PATHS)
async def test_with_keys_everything_must_be_signed(client: Raw, worker: FakeLambda, name: str) -> None:
    method, path = PATHS[name]
    before = worker.functions.all_details()
    reply = await client.ask(request(method, path, {}, key=None))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (403, "MissingAuthenticationTokenException")
    reply = await client.ask(request(method, path, {}, secret="not the secret of ours"))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (403, "InvalidSignatureException")
    reply = await client.ask(request(method, path, {}, key="AKIDTHREE"))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (403, "UnrecognizedClientException")
    assert worker.functions.all_details() == before
    assert worker.invoked == []


@pytest.mark.parametrize("key", KEYS)
async def test_any_key_signs(client: Raw, key: str) -> None:
    assert (await client.ask(request("GET", "/2015-03-31/functions/slow?Qualifier=%24LATEST", key=key))).status == 200


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"x": 1', b'"x": 2'),
        (b"/slow/", b"/busy/"),
        (b"X-Amz-Invocation-Type: DryRun", b"X-Amz-Invocation-Type: RequestResponse"),
        (b"Host: localhost", b"Host: 127.0.0.1"),
        (b"invocations?a=1", b"invocations?a=2"),
        (b"/lambda/aws4_request", b"/s3/aws4_request"),
    ],
)
async def test_a_signature_covers_the_whole_request(client: Raw, worker: FakeLambda, old: bytes, new: bytes) -> None:
    path = "/2015-03-31/functions/slow/invocations?a=1"
    good = request("POST", path, {"x": 1}, X_Amz_Invocation_Type="DryRun")
    assert (await client.ask(good)).status == 204
    assert old in good
    reply = await client.ask(good.replace(old, new))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (403, "InvalidSignatureException")
    assert worker.invoked == []


@pytest.mark.parametrize("listen", ["0.0.0.0:5000", "[::]:5000", "192.0.2.7:5000", "worker.example:5000"])
def test_a_worker_that_others_reach_needs_keys(listen: str) -> None:
    http = HttpConfig(listen=listen)
    with pytest.raises(BadConfig, match=r"lambda_api\.keys"):
        Access.of(LambdaApiConfig(), http)
    Access.of(LambdaApiConfig(keys=KEYS), http)
    Access.of(LambdaApiConfig(enabled=False), http)


@pytest.mark.parametrize("keys", [{"A": "short"}, {"A/B": "0123456789abcdef0123"}, {"": "0123456789abcdef0123"}])
def test_keys_that_are_none(keys: dict[str, str]) -> None:
    with pytest.raises(BadConfig, match="openssl"):
        Access.of(LambdaApiConfig(keys=keys), HttpConfig())


async def test_a_name_that_is_not_loopbacks_is_refused(keyless: Raw, worker: FakeLambda) -> None:
    reply = await keyless.ask(request("POST", INVOKE, {}, key=None).replace(b"localhost", b"evil.example"))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (403, "AccessDeniedException")
    assert worker.invoked == []


async def test_a_target_with_scheme_and_host_is_that_operation(keyless: Raw, worker: FakeLambda) -> None:
    worker.names.add("echo")
    asked = request("POST", INVOKE, {}, key=None).replace(b"POST /", b"POST http://localhost/")
    assert (await keyless.ask(asked)).body == b"{}"
    reply = await keyless.ask(asked.replace(b"POST http://localhost", b"POST http://evil.example"))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (403, "AccessDeniedException")


async def test_a_page_of_another_site_invokes_nothing(keyless: Raw, worker: FakeLambda) -> None:
    page = b"Host: localhost\r\nSec-Fetch-Site: cross-site"
    reply = await keyless.ask(request("POST", INVOKE, {}, key=None).replace(b"Host: localhost", page))
    assert (reply.status, reply.headers["x-amzn-errortype"]) == (403, "AccessDeniedException")
    assert worker.invoked == []
