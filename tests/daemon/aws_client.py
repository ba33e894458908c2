"""AWS's client as people use it, unmodified boto3, in front of a running daemon."""

from __future__ import annotations

import json
from typing import Any

import boto3
from botocore.config import Config

from tests.daemon.gate import Gate
from tests.daemon.running import RunningDaemon, zipped

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
KEYS = f'[lambda_api.keys]\n{KEY} = "{SECRET}"\n'
"""TOML of a daemon that takes what these sign."""
ROLE = "arn:aws:iam::123456789012:role/any"


def client_of(session: boto3.Session, daemon: RunningDaemon, secret: str = SECRET, **config: Any) -> Any:
    return session.client(
        "lambda",
        endpoint_url=daemon.url,
        aws_access_key_id=KEY,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, **config),
    )


def create(client: Any, name: str, code: str, **settings: Any) -> dict[str, Any]:
    created: dict[str, Any] = client.create_function(
        FunctionName=name,
        Runtime="python3.12",
        Role=ROLE,
        Code={"ZipFile": zipped({"app.py": code, "gate.py": Gate.CODE})},
        **{"Handler": "app.handler", **settings},
    )
    return created


def invoke(client: Any, name: str, event: object = None, **options: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.invoke(FunctionName=name, Payload=json.dumps(event or {}), **options)
    answer["Payload"] = json.loads(answer["Payload"].read() or b"null")
    return answer
