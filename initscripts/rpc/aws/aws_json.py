"""`sqs:` and `dynamodb:`: AWS JSON 1.0, where the method is an action's name and the body its JSON.

Owns which actions may be sent twice. Knows nothing of what is in a body.
"""

from __future__ import annotations

import re
import socket
from typing import Literal

from sockd_initscripts.region import Region
from sockd_initscripts.rpc.aws.endpoints import AwsService
from sockd_initscripts.rpc.base import Body, Connection, Reply, RpcTiming, malformed
from sockd_initscripts.rpc.http1.http import BodySink
from sockd_initscripts.rpc.http1.http_client import HttpClient

_ACTION = re.compile(r"[A-Za-z]{1,64}")
_TARGETS = {"sqs": "AmazonSQS", "dynamodb": "DynamoDB_20120810"}
# Not ReceiveMessage: what a lost reply held stays hidden from everybody for the queue's visibility timeout.
_REPEATABLE = frozenset("GetItem BatchGetItem Query Scan GetQueueUrl GetQueueAttributes".split())


class AwsJsonConnection(Connection):
    """A function's SQS or DynamoDB."""

    def __init__(self, address: str, service: AwsService, client: HttpClient) -> None:
        super().__init__(address)
        self._service = service
        self._client = client

    @property
    def is_reserved(self) -> bool:
        return self._client.is_reserved

    async def call(self, method: str, body: Body, region: Region, timing: RpcTiming) -> Reply:
        if not _ACTION.fullmatch(method):
            raise malformed(f"{method[:80]!r} is not an action")
        payload = bytes(body) or b"{}"
        fields = {
            "content-type": "application/x-amz-json-1.0",
            "x-amz-target": f"{_TARGETS[self._service.name]}.{method}",
            "content-length": str(len(payload)),
        }
        request = self._service.head("POST", "/", fields, payload) + payload
        sink = BodySink(region)
        with sink.reply_buffer:
            head = await self._client.fetch(request, sink, timing, repeatable=method in _REPEATABLE)
        return Reply(head.status, sink.reply_buffer.buffer)

    def descriptor(self, method: str, body: Body) -> list[str]:
        if self._service.name == "dynamodb":
            try:
                return [f"dynamodb.{method}", bytes(body).decode()]
            except UnicodeDecodeError as error:
                raise malformed(f"the body of {method} is not UTF-8") from error
        return super().descriptor(method, body)

    async def detach(self) -> tuple[socket.socket, Literal["tcp", "relay"]]:
        return await self._client.detach()

    def close(self) -> None:
        self._client.close()
