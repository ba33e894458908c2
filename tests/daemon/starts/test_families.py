"""Frameworks and clients as people use them, unmodified: web frameworks behind each of the usual adapters, AWS's libraries for
handlers, AWS's SDKs of other languages, bootstraps in Go and Rust. Each is installed from its public registry.

They take minutes, compilers included, so they are run by name: `pytest -m families`. Where each other family has its test:

| family | test |
|---|---|
| aws command line | test_aws_cli.py |
| boto3 | test_aws_lambda_api.py, versions/test_aws_versions.py |
| OpenLambda's examples, Flask and FastAPI as they are | test_openlambda_examples.py |
| the daemon's end in mid-deploy | tests/faults/daemon/test_killed.py |
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.daemon import aws_client
from tests.daemon.aws_client import KEY, KEYS, SECRET
from tests.daemon.running import DeployFailed, RunningDaemon

pytestmark = [pytest.mark.root, pytest.mark.families, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, ledger_of_module: None) -> Iterator[RunningDaemon]:
    """With uv's own index, and a key for AWS's API."""
    daemon = RunningDaemon.start(tmp_path_factory.mktemp("families") / "state", KEYS)
    try:
        yield daemon
        assert daemon.terminate() == 0, daemon.lines
    finally:
        daemon.close()


def rest_event(
    path: str, method: str = "GET", body: str | None = None, *, resource: str = "/{proxy+}", **parameters: str
) -> dict[str, Any]:
    """As API Gateway sends one to a REST API's function. Args: resource: of the API; parameters: what its path holds."""
    return {
        "resource": resource,
        "path": path,
        "httpMethod": method,
        "headers": {"Host": "api.example.com", "Content-Type": "application/json", "X-Forwarded-Proto": "https"},
        "multiValueHeaders": {"Host": ["api.example.com"], "Content-Type": ["application/json"]},
        "queryStringParameters": {"q": "ü 1"},
        "multiValueQueryStringParameters": {"q": ["ü 1"]},
        "pathParameters": parameters or {"proxy": path.strip("/")},
        "stageVariables": None,
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "api",
            "stage": "prod",
            "requestId": "id",
            "resourcePath": resource,
            "path": path,
            "httpMethod": method,
            "protocol": "HTTP/1.1",
            "identity": {"sourceIp": "192.0.2.1", "userAgent": "test"},
        },
        "body": body,
        "isBase64Encoded": False,
    }


FLASK = """
from flask import Flask, request
app = Flask(__name__)
@app.route("/hello/<name>", methods=["GET", "POST"])
def hello(name):
    return {"name": name, "q": request.args.get("q"), "sent": request.get_json(silent=True)}
"""
FASTAPI = """
from fastapi import FastAPI, Request
app = FastAPI()
@app.api_route("/hello/{name}", methods=["GET", "POST"])
async def hello(name: str, request: Request, q: str = ""):
    body = await request.body()
    import json
    return {"name": name, "q": q, "sent": json.loads(body) if body else None}
"""
DJANGO = """
import json
import django
from django.conf import settings
from django.core.handlers.{kind} import {handler}
from django.http import JsonResponse
from django.urls import path
if not settings.configured:
    settings.configure(SECRET_KEY="x", ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, DEBUG=False)
    django.setup(set_prefix=False)
def hello(request, name):
    sent = json.loads(request.body) if request.body else None
    return JsonResponse({{"name": name, "q": request.GET.get("q"), "sent": sent}})
urlpatterns = [path("hello/<name>", hello)]
app = {handler}()
"""
WSGI = DJANGO.format(kind="wsgi", handler="WSGIHandler")
ASGI = DJANGO.format(kind="asgi", handler="ASGIHandler")
CHALICE = """
from chalice import Chalice
app = Chalice(app_name="shop")
@app.route("/hello/{name}", methods=["GET", "POST"])
def hello(name):
    request = app.current_request
    return {"name": name, "q": (request.query_params or {}).get("q"), "sent": request.json_body if request.raw_body else None}
"""
POWERTOOLS = """
from aws_lambda_powertools import Logger, Metrics, Tracer
from aws_lambda_powertools.event_handler import APIGatewayRestResolver
from aws_lambda_powertools.metrics import MetricUnit
logger, metrics = Logger(service="shop"), Metrics(namespace="shop", service="shop")
app = APIGatewayRestResolver()
@app.get("/hello/<name>")
@app.post("/hello/<name>")
def hello(name):
    logger.info("saying hello", extra={"to": name})
    metrics.add_metric(name="hellos", unit=MetricUnit.Count, value=1)
    event = app.current_event
    sent = event.json_body if event.body else None
    return {"name": name, "q": event.query_string_parameters.get("q"), "sent": sent}
@logger.inject_lambda_context(log_event=True)
@metrics.log_metrics(capture_cold_start_metric=True)
def handler(event, context):
    return app.resolve(event, context)
"""
MANGUM = "from mangum import Mangum\nhandler = Mangum(app, lifespan='off')\n"
SERVERLESS_WSGI = """
import serverless_wsgi
def handler(event, context):
    return serverless_wsgi.handle_request(app, event, context)
"""
APIG_WSGI = "from apig_wsgi import make_lambda_handler\nhandler = make_lambda_handler(app)\n"


@pytest.mark.parametrize(
    ("name", "code", "requirements", "handler"),
    [
        ("mangum-fastapi", FASTAPI + MANGUM, "fastapi mangum", "handler"),
        ("mangum-django", ASGI + MANGUM, "django mangum", "handler"),
        ("serverless-wsgi-flask", FLASK + SERVERLESS_WSGI, "flask serverless-wsgi", "handler"),
        ("apig-wsgi-django", WSGI + APIG_WSGI, "django apig-wsgi", "handler"),
        ("powertools", POWERTOOLS, "aws-lambda-powertools", "handler"),
    ],
)
def test_adapters_answer_events_of_api_gateway(
    worker: RunningDaemon, name: str, code: str, requirements: str, handler: str
) -> None:
    deploy(
        worker,
        name,
        {"main.py": code, "requirements.txt": requirements.replace(" ", "\n")},
        handler=f"main:{handler}",
        app=None,
    )
    for method, body in (("GET", None), ("POST", '{"a": 1}')):
        answer = worker.call(name, rest_event("/hello/you", method, body))
        assert answer["statusCode"] == 200, answer
        assert json.loads(answer["body"]) == {"name": "you", "q": "ü 1", "sent": body and json.loads(body)}
    assert worker.call(name, rest_event("/nowhere"))["statusCode"] in (403, 404)


def test_chalice_answers_events_of_its_own_api(worker: RunningDaemon) -> None:
    """`chalice deploy` makes a resource of each route, so that no event has another path."""
    files = {"main.py": CHALICE, "requirements.txt": "chalice"}
    deploy(worker, "chalice", files, handler="main:app", app=None)
    for method, body in (("GET", None), ("POST", '{"a": 1}')):
        answer = worker.call("chalice", rest_event("/hello/you", method, body, resource="/hello/{name}", name="you"))
        assert answer["statusCode"] == 200, answer
        assert json.loads(answer["body"]) == {"name": "you", "q": "ü 1", "sent": body and json.loads(body)}


@pytest.mark.parametrize(
    ("name", "code", "requirements"),
    [
        ("flask", FLASK, "flask"),
        ("fastapi", FASTAPI, "fastapi"),
        ("django-wsgi", WSGI, "django"),
        ("django-asgi", ASGI, "django"),
    ],
)
def test_web_frameworks_are_served_as_they_are(worker: RunningDaemon, name: str, code: str, requirements: str) -> None:
    deploy(worker, name, {"app.py": code, "requirements.txt": requirements})
    headers = {"content-type": "application/json"}
    answer = worker.request("POST", f"/run/{name}/hello/you?q=%C3%BC", '{"a": 1}', headers)
    assert (answer.status, answer.json) == (200, {"name": "you", "q": "ü", "sent": {"a": 1}})
    assert worker.request("GET", f"/run/{name}/nowhere").status == 404


def test_awslambdaric_runs_a_handler(worker: RunningDaemon) -> None:
    code = "def handler(event, context): return {'twice': event['n'] * 2, 'id': context.aws_request_id}\n"
    files = {"main.py": code, "requirements.txt": "awslambdaric"}
    deploy(worker, "ric", files, runtime="provided", handler="main:handler")
    assert [worker.call("ric", {"n": n})["twice"] for n in (1, 2)] == [2, 4]


# ---- AWS's SDKs of other languages ----------------------------------------------------------------------------------------

CALLED = """
def handler(event, context):
    if event.get("bad"): raise KeyError("missing")
    return {"twice": event["n"] * 2}
"""
JAVASCRIPT = """
import { LambdaClient, InvokeCommand, ListFunctionsCommand, GetFunctionCommand } from "@aws-sdk/client-lambda";
const client = new LambdaClient({});
const call = async (event) => {
  const request = { FunctionName: "called", Payload: JSON.stringify(event), LogType: "Tail" };
  const answer = await client.send(new InvokeCommand(request));
  return [answer.StatusCode, answer.FunctionError ?? "", JSON.parse(Buffer.from(answer.Payload).toString())];
};
const names = (await client.send(new ListFunctionsCommand({}))).Functions.map((each) => each.FunctionName);
let missing = "";
try { await client.send(new GetFunctionCommand({ FunctionName: "nobody" })); } catch (error) { missing = error.name; }
console.log(JSON.stringify([await call({ n: 21 }), await call({ bad: 1 }), names.includes("called"), missing]));
"""
GO_CLIENT = """
package main
import ("context"; "encoding/json"; "errors"; "os"
 "github.com/aws/aws-sdk-go-v2/aws"
 "github.com/aws/aws-sdk-go-v2/config"
 "github.com/aws/aws-sdk-go-v2/service/lambda"
 "github.com/aws/aws-sdk-go-v2/service/lambda/types")
func call(c *lambda.Client, event string) []any {
 a, err := c.Invoke(context.Background(), &lambda.InvokeInput{FunctionName: aws.String("called"), Payload: []byte(event)})
 if err != nil { panic(err) }
 return []any{a.StatusCode, aws.ToString(a.FunctionError), json.RawMessage(a.Payload)}
}
func main() {
 cfg, err := config.LoadDefaultConfig(context.Background())
 if err != nil { panic(err) }
 c := lambda.NewFromConfig(cfg)
 list, err := c.ListFunctions(context.Background(), &lambda.ListFunctionsInput{})
 if err != nil { panic(err) }
 found := false
 for _, f := range list.Functions { found = found || aws.ToString(f.FunctionName) == "called" }
 _, err = c.GetFunction(context.Background(), &lambda.GetFunctionInput{FunctionName: aws.String("nobody")})
 var missing *types.ResourceNotFoundException
 name := ""
 if errors.As(err, &missing) { name = "ResourceNotFoundException" }
 json.NewEncoder(os.Stdout).Encode([]any{call(c, `{"n": 21}`), call(c, `{"bad": 1}`), found, name})
}
"""
GO_SDK = (
    "github.com/aws/aws-sdk-go-v2/config@v1.33.15",
    "github.com/aws/aws-sdk-go-v2/service/lambda@v1.113.1",
)
"""Not the newest: a mirror may not have it yet."""


def judge(said: str) -> None:
    """What both programs print."""
    good, bad, is_listed, missing = json.loads(said)
    assert good == [200, "", {"twice": 42}]
    assert bad[:2] == [200, "Unhandled"] and bad[2]["errorType"] == "KeyError"
    assert is_listed and missing == "ResourceNotFoundException"


def test_the_javascript_sdk(worker: RunningDaemon, tmp_path: Path) -> None:
    needs("npm", "node")
    called(worker)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    build(tmp_path, "npm", "install", "--no-audit", "--no-fund", "@aws-sdk/client-lambda@3")
    (tmp_path / "main.js").write_text(JAVASCRIPT)
    judge(build(tmp_path, "node", "main.js", **aws_variables(worker)))


def test_the_go_sdk(worker: RunningDaemon, tmp_path: Path) -> None:
    needs("go")
    called(worker)
    go_module(tmp_path, GO_CLIENT, *GO_SDK)
    build(tmp_path, "go", "build", "-o", "client", ".")
    judge(build(tmp_path, "./client", **aws_variables(worker)))


# ---- bootstraps in other languages ----------------------------------------------------------------------------------------

GO_BOOTSTRAP = """
package main
import ("context"; "errors"; "github.com/aws/aws-lambda-go/lambda"; "github.com/aws/aws-lambda-go/lambdacontext")
type Event struct { N int `json:"n"`; Bad bool `json:"bad"` }
func handle(ctx context.Context, e Event) (map[string]any, error) {
 if e.Bad { return nil, errors.New("missing") }
 lc, _ := lambdacontext.FromContext(ctx)
 return map[string]any{"twice": e.N * 2, "id": lc.AwsRequestID}, nil
}
func main() { lambda.Start(handle) }
"""
CARGO = """
[package]
name = "bootstrap"
version = "0.1.0"
edition = "2021"
[dependencies]
lambda_runtime = "0.13"
serde_json = "1"
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
"""
RUST_BOOTSTRAP = """
use lambda_runtime::{run, service_fn, Error, LambdaEvent};
use serde_json::{json, Value};
async fn handle(event: LambdaEvent<Value>) -> Result<Value, Error> {
    let (event, context) = event.into_parts();
    if event["bad"].as_bool().unwrap_or(false) { return Err("missing".into()); }
    Ok(json!({"twice": event["n"].as_i64().unwrap_or(0) * 2, "id": context.request_id}))
}
#[tokio::main]
async fn main() -> Result<(), Error> { run(service_fn(handle)).await }
"""


def judge_bootstrap(worker: RunningDaemon, name: str, program: Path) -> None:
    """Through AWS's API, as such programs are deployed."""
    client = aws_client.client_of(boto3.Session(region_name="us-east-1"), worker)
    code = {"ZipFile": executable_zip(program.read_bytes())}
    client.create_function(FunctionName=name, Runtime="provided.al2023", Role=aws_client.ROLE, Handler="any", Code=code)
    for n in (1, 2):
        answer = aws_client.invoke(client, name, {"n": n})
        assert answer["Payload"]["twice"] == 2 * n and len(answer["Payload"]["id"]) == 36
    bad = aws_client.invoke(client, name, {"n": 1, "bad": True})
    assert bad["FunctionError"] and bad["Payload"]["errorMessage"] == "missing"


def test_a_bootstrap_in_go(worker: RunningDaemon, tmp_path: Path) -> None:
    needs("go")
    go_module(tmp_path, GO_BOOTSTRAP, "github.com/aws/aws-lambda-go/lambda")
    build(tmp_path, "go", "build", "-tags", "lambda.norpc", "-o", "bootstrap", ".", CGO_ENABLED="0")
    judge_bootstrap(worker, "in-go", tmp_path / "bootstrap")


def test_a_bootstrap_in_rust(worker: RunningDaemon, tmp_path: Path) -> None:
    needs("cargo")
    (tmp_path / "src").mkdir()
    (tmp_path / "Cargo.toml").write_text(CARGO)
    (tmp_path / "src/main.rs").write_text(RUST_BOOTSTRAP)
    build(tmp_path, "cargo", "build", "--quiet")
    judge_bootstrap(worker, "in-rust", tmp_path / "target/debug/bootstrap")


# ---- what the tests share -------------------------------------------------------------------------------------------------


def deploy(worker: RunningDaemon, name: str, files: dict[str, str], **settings: Any) -> None:
    try:
        worker.deploy(name, files, memory_mb=256, timeout_s=30, **settings)
    except DeployFailed as error:
        if error.type == "Packages.Failed":
            pytest.skip(f"no package index can be reached: {error.message}")
        raise


def called(worker: RunningDaemon) -> None:
    worker.deploy("called", {"main.py": CALLED}, handler="main:handler")


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def build(directory: Path, *command: str, **variables: str) -> str:
    """What it printed. A registry that does not have the package is a reason to skip."""
    done = subprocess.run(
        command, cwd=directory, env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode and any(words in done.stderr for words in ("not available", "404", "Could not resolve host")):
        pytest.skip(f"{command[0]}: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def go_module(directory: Path, source: str, *packages: str) -> None:
    (directory / "main.go").write_text(source)
    build(directory, "go", "mod", "init", "example")
    build(directory, "go", "get", *packages)


def aws_variables(worker: RunningDaemon) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL_LAMBDA": worker.url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


def executable_zip(program: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        entry = zipfile.ZipInfo("bootstrap")
        entry.external_attr = 0o100755 << 16
        archive.writestr(entry, program, zipfile.ZIP_DEFLATED)
    return packed.getvalue()
