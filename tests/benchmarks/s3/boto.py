"""boto3 clients of a test's server."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config

from benchmarks.s3.process import S3Process


def boto_client(session: boto3.Session, s3: S3Process, secret_key: str = "", **config: Any) -> Any:
    """A client that tries once. The caller closes it."""
    return session.client(
        "s3",
        endpoint_url=s3.url,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=secret_key or s3.secret_key,
        config=Config(retries={"total_max_attempts": 1}, **config),
    )
