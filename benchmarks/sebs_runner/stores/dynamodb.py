"""The key-value store of 130: moto's DynamoDB in a process on loopback, and the two calls that setting it up takes.

moto looks at no signature, so plain HTTP is enough here; the function itself uses boto3, or our nosql shim.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

from benchmarks.sebs_runner.errors import NotPossible
from benchmarks.sebs_runner.inputs import Input
from sockd.linux.readiness import is_readable

START_DEADLINE_S = 30.0
CALL_DEADLINE_S = 30.0
SERVE = """\
import logging
import sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would write a line per request
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # ends with whoever started it
"""
CREDENTIAL = "AWS4-HMAC-SHA256 Credential=x/20200101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=x"


class DynamoDb:
    """A running server."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def put(self, inputs: Input) -> dict[str, str]:
        """Make the bench's tables, anew, and fill them; the variables with which a function finds them."""
        env = {"AWS_ENDPOINT_URL_DYNAMODB": self.endpoint}
        for table, keys in inputs.tables.items():
            schema = [
                {"AttributeName": key, "KeyType": kind} for key, kind in zip(keys, ("HASH", "RANGE"), strict=True)
            ]
            types = [{"AttributeName": key, "AttributeType": "S"} for key in keys]
            self._call(
                "CreateTable",
                TableName=table,
                KeySchema=schema,
                AttributeDefinitions=types,
                BillingMode="PAY_PER_REQUEST",
            )
            env[f"NOSQL_STORAGE_TABLE_{table}"] = table
        for table, row in inputs.items:
            self._call("PutItem", TableName=table, Item={name: _typed(value) for name, value in row.items()})
        return env

    def _call(self, action: str, **arguments: Any) -> None:
        headers = {
            "X-Amz-Target": f"DynamoDB_20120810.{action}",
            "Content-Type": "application/x-amz-json-1.0",
            "Authorization": CREDENTIAL,
        }
        request = urllib.request.Request(self.endpoint, json.dumps(arguments).encode(), headers)
        with urllib.request.urlopen(request, timeout=CALL_DEADLINE_S) as answer:
            answer.read()


@contextlib.contextmanager
def embedded() -> Iterator[DynamoDb]:
    """A server that ends with the context. Raises: NotPossible when moto is not installed or does not start."""
    if importlib.util.find_spec("moto") is None:
        raise NotPossible("this bench needs DynamoDB, and moto is not installed", fix="pip install 'moto[server]'")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"},
    )
    assert process.stdin and process.stdout
    try:
        ready = is_readable(process.stdout, START_DEADLINE_S)
        port = process.stdout.readline().strip() if ready else ""
        if not port:
            raise NotPossible("moto's server did not start", fix="pip install 'moto[server]'")
        yield DynamoDb(f"http://127.0.0.1:{port}")
    finally:
        process.kill()  # it keeps everything in memory, and would wait for its clients' connections otherwise
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _typed(value: Any) -> dict[str, str]:
    return {"S": value} if isinstance(value, str) else {"N": str(value)}
