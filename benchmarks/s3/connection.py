"""One client's connection, served by one thread: request after request until either side has had enough.

Order of a request: head, signature, fault, operation (which reads the body), answer, log. Until the signature holds nothing
of the body is read, and nothing of the store is looked at.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from email.utils import formatdate

from benchmarks.s3.admin import MAX_BODY_BYTES, PREFIX, Admin
from benchmarks.s3.answer import Answer
from benchmarks.s3.errors import S3Error, error_document
from benchmarks.s3.faults import Faults, Rule
from benchmarks.s3.operations.call import Call, Target, parse_parameters, parse_target
from benchmarks.s3.operations.router import Router
from benchmarks.s3.request_log import Record, RequestLog
from benchmarks.s3.sending import Sender
from benchmarks.s3.store import Store
from benchmarks.s3.upload import Upload
from benchmarks.s3.wire import BadRequest, Head, NoBody, Source, Wire
from sockd.base.sigv4.verifier import SignatureRefused, Verifier

IDLE_S = 120
"""How long a client may be silent or not read."""
DRAIN_BYTES = 16 << 20
"""How much of a body that nobody wants is read, so that the client gets to reading the answer."""


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What all connections share."""

    store: Store
    router: Router
    verifier: Verifier
    faults: Faults
    log: RequestLog
    admin: Admin
    stopping: threading.Event


class Connection:
    """Serves one socket, which stays its caller's."""

    def __init__(self, context: ServerContext, connection: socket.socket, number: int) -> None:
        self._context = context
        self._socket = connection
        self._number = number
        self._requests = 0
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # By the kernel: a socket with a timeout of Python's does not block, and sendfile would have to be waited for.
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", IDLE_S, 0))
        self._wire = Wire(connection)
        self._sender = Sender(connection, context.log, context.stopping)

    def serve(self) -> None:
        """Until the connection ends."""
        try:
            while self._serve_one():
                pass
        except BadRequest:
            self._send_bad_request()
        except OSError:
            pass  # the client is gone, or was silent for too long

    def _serve_one(self) -> bool:
        """Whether there may be another request. Raises BadRequest, OSError."""
        head = self._wire.read_head()
        if head is None:
            return False
        body = self._wire.body(head)
        if head.path.startswith(PREFIX):
            return self._serve_admin(head, body)
        self._requests += 1
        record = Record(
            head.method, head.path, head.query, head.headers.get("range"), self._number, self._wire.arrived_ns
        )
        self._context.log.begin(record)
        try:
            return self._exchange(head, body, record)
        finally:
            record.end_ns = time.monotonic_ns()
            self._context.log.end(record)

    def _exchange(self, head: Head, body: Source, record: Record) -> bool:
        request_id = f"{self._number:08X}{self._requests:08X}"
        rule: Rule | None = None
        upload: Upload | None = None
        try:
            verified = self._context.verifier.verify(head.signed())
            target = parse_target(head.path)
            upload = Upload(head, body, verified, lambda: self._say_continue(head))
            rule = self._context.faults.take(head.method, target.subject)
            if rule and rule.status:
                answer = _injected(rule.status, head, request_id)
            else:
                answer = self._operate(head, target, upload)
        except SignatureRefused as refused:
            answer = _refusal(_as_s3_error(refused), head, request_id)
        except S3Error as error:
            answer = _refusal(error, head, request_id)
        except (BadRequest, OSError) as error:
            if isinstance(error, (BadRequest, ConnectionError)):
                raise
            answer = self._internal_error(head, request_id)
        except Exception:
            answer = self._internal_error(head, request_id)
        try:
            record.status, record.code, record.fault = answer.status, answer.code, rule.id if rule else None
            clean = self._settle(head, body, upload)
            record.received_bytes = upload.received if upload else 0
            more = [("x-amz-request-id", request_id), ("Date", formatdate(usegmt=True)), ("Server", "sockd-s3")]
            keep = clean and head.keep_alive and not (rule and rule.closes)
            if not keep:
                more.append(("Connection", "close"))
            answer.without_body = answer.without_body or head.method == "HEAD"
            return self._sender.send(answer, rule, record, more) and keep
        finally:
            answer.close()

    def _operate(self, head: Head, target: Target, upload: Upload) -> Answer:
        call = Call(head, target, parse_parameters(head.query), self._context.store, upload)
        return self._context.router.operation(call)(call)

    def _settle(self, head: Head, body: Source, upload: Upload | None) -> bool:
        """Take what is left of the body off the wire; whether the next request can be read. Raises BadRequest, OSError."""
        untouched = not isinstance(body, NoBody) if upload is None else upload.untouched
        if untouched and head.expects_continue():
            return False  # it may come or not: the client is free to choose, and we cannot tell
        left = DRAIN_BYTES
        while block := body.read(64 << 10):
            left -= len(block)
            if left < 0:
                return False
        return True

    def _say_continue(self, head: Head) -> None:
        if head.expects_continue():
            self._socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _serve_admin(self, head: Head, body: Source) -> bool:
        self._say_continue(head)
        data = b""
        while block := body.read(MAX_BODY_BYTES):
            data += block
            if len(data) > MAX_BODY_BYTES:
                raise BadRequest("the body is too long")
        answer = self._context.admin.answer(head, data)
        self._socket.sendall(answer.head(answer.length, []) + (answer.body if isinstance(answer.body, bytes) else b""))
        return head.keep_alive

    def _internal_error(self, head: Head, request_id: str) -> Answer:
        traceback.print_exc(file=sys.stderr)
        return _refusal(S3Error("InternalError", "We encountered an internal error."), head, request_id)

    def _send_bad_request(self) -> None:
        body = error_document("BadRequest", "This is not HTTP as it must be.", "", "")
        head = Answer(400, [("Content-Type", "application/xml"), ("Connection", "close")]).head(len(body), [])
        try:
            self._socket.sendall(head + body)
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it was not a client, or is one no more


def _refusal(error: S3Error, head: Head, request_id: str) -> Answer:
    headers = [("Content-Type", "application/xml"), *error.headers]
    return Answer(error.status, headers, error.body(head.path, request_id), code=error.code)


def _injected(status: int, head: Head, request_id: str) -> Answer:
    code = {500: "InternalError", 503: "SlowDown", 403: "AccessDenied", 404: "NoSuchKey"}.get(status, "Injected")
    body = error_document(code, "A rule wants it so.", head.path, request_id)
    return Answer(status, [("Content-Type", "application/xml")], body, code=code)


def _as_s3_error(refused: SignatureRefused) -> S3Error:
    return S3Error(refused.code, refused.message)
