"""A queue service as SQS speaks (AWS JSON 1.0) that verifies every signature, with the verifier of our S3.

Queues, sending, receiving with a long poll and a visibility timeout, deleting. Anything else is refused by name.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from sockd.base.sigv4.canonical import Credentials, SignedRequest
from sockd.base.sigv4.verifier import SignatureRefused, Verifier
from tests.support.servers.closing_server import ClosingServer

Json = dict[str, Any]
MAX_WAIT_S = 20.0
_REFUSALS = {
    "AccessDenied": "MissingAuthenticationToken",
    "InvalidAccessKeyId": "InvalidClientTokenId",
    "InvalidToken": "InvalidClientTokenId",
    "RequestTimeTooSkewed": "RequestExpired",
    "SignatureDoesNotMatch": "InvalidSignatureException",
}


class Refused(Exception):
    """The request is refused with this error type."""


@dataclass(slots=True)
class Message:
    """One in a queue."""

    id: str
    body: str
    visible_at_s: float = 0.0
    """time.monotonic()"""
    receipt: str = ""
    """The receipt of the last time that the message was received."""
    received: int = 0


@dataclass(slots=True)
class Queue:
    """Messages in the order in which they were sent."""

    url: str
    messages: list[Message] = field(default_factory=list)


class Sqs(ClosingServer):
    """The service, in this process. A context manager; `url` is its endpoint."""

    def __init__(self, credentials: Credentials, port: int = 0) -> None:
        super().__init__(_Handler, port)
        self.verifier = Verifier(credentials, service="sqs")
        self.queues: dict[str, Queue] = {}
        self.calls: list[str] = []
        """Actions that were asked for with a good signature, oldest first."""
        self.changed = threading.Condition()
        self._closing = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away in the middle are nothing to talk about."""

    def shutdown(self) -> None:
        """Called at the context's end; those who wait for a message get none."""
        with self.changed:
            self._closing = True
            self.changed.notify_all()
        super().shutdown()

    def send(self, queue: str, body: str) -> str:
        """Make the queue if need be and put a message into it; the queue's URL."""
        with self.changed:
            found = self.queues.setdefault(queue, Queue(f"{self.url}/000000000000/{queue}"))
            found.messages.append(Message(uuid.uuid4().hex, body))
            self.changed.notify_all()
            return found.url

    def perform(self, action: str, request: Json) -> Json:
        """Raises Refused, KeyError when a member is missing."""
        with self.changed:
            self.calls.append(action)
            return self._actions()[action](request)

    def _actions(self) -> dict[str, Callable[[Json], Json]]:
        return {
            "CreateQueue": self._create_queue,
            "GetQueueUrl": lambda request: {"QueueUrl": self._queue(request["QueueName"]).url},
            "SendMessage": self._send_message,
            "ReceiveMessage": self._receive_message,
            "DeleteMessage": self._delete_message,
        }

    def _create_queue(self, request: Json) -> Json:
        name = request["QueueName"]
        return {"QueueUrl": self.queues.setdefault(name, Queue(f"{self.url}/000000000000/{name}")).url}

    def _send_message(self, request: Json) -> Json:
        queue, body = self._queue(request["QueueUrl"]), request["MessageBody"]
        self.send(queue.url.rpartition("/")[2], body)
        return {"MessageId": queue.messages[-1].id, "MD5OfMessageBody": _md5(body)}

    def _receive_message(self, request: Json) -> Json:
        queue = self._queue(request["QueueUrl"])
        limit = int(request.get("MaxNumberOfMessages", 1))
        deadline_s = time.monotonic() + min(float(request.get("WaitTimeSeconds", 0)), MAX_WAIT_S)
        while not (found := _visible(queue, limit)) and not self._closing:
            if (left_s := deadline_s - time.monotonic()) <= 0:
                break
            self.changed.wait(min([left_s, *_until_visible(queue)]))
        for message in found:
            message.visible_at_s = time.monotonic() + float(request.get("VisibilityTimeout", 30))
            message.receipt = uuid.uuid4().hex
            message.received += 1
        reported = [
            {
                "MessageId": message.id,
                "ReceiptHandle": message.receipt,
                "MD5OfBody": _md5(message.body),
                "Body": message.body,
            }
            for message in found
        ]
        return {"Messages": reported} if reported else {}

    def _delete_message(self, request: Json) -> Json:
        queue = self._queue(request["QueueUrl"])
        queue.messages = [each for each in queue.messages if each.receipt != request["ReceiptHandle"]]
        return {}

    def _queue(self, url_or_name: str) -> Queue:
        try:
            return self.queues[url_or_name.rpartition("/")[2]]
        except KeyError:
            raise Refused("QueueDoesNotExist") from None


def _visible(queue: Queue, limit: int) -> list[Message]:
    now_s = time.monotonic()
    return [message for message in queue.messages if message.visible_at_s <= now_s][:limit]


def _until_visible(queue: Queue) -> list[float]:
    return [max(message.visible_at_s - time.monotonic(), 0.001) for message in queue.messages]


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Sqs

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            status, answer = 200, self._perform(body)
        except SignatureRefused as refused:
            kind = _REFUSALS.get(refused.code, "IncompleteSignature")
            status, answer = 403, {"__type": f"com.amazon.coral.service#{kind}", "message": refused.message}
        except Refused as refused:
            status, answer = 400, {"__type": f"com.amazonaws.sqs#{refused}", "message": str(refused)}
        except (KeyError, ValueError) as error:
            status, answer = 400, {"__type": "com.amazon.coral.service#InvalidAction", "message": repr(error)}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("x-amzn-RequestId", uuid.uuid4().hex)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def _perform(self, body: bytes) -> Json:
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.verifier.verify(SignedRequest("POST", path, query, headers), hashlib.sha256(body).hexdigest())
        service, _, action = headers.get("x-amz-target", "").partition(".")
        if service != "AmazonSQS":
            raise Refused("InvalidAddress")
        return self.server.perform(action, json.loads(body))
