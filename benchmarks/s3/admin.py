"""The way to the faults and the request log: /-/, on the port of the S3, with a token. JSON in, JSON out.

    GET    /-/requests      the log, oldest first         DELETE /-/requests      forget it
    GET    /-/requests/N    the same, as soon as it has N
    GET    /-/faults        the rules                     DELETE /-/faults        remove them all
    POST   /-/faults        add a rule, as its fields     DELETE /-/faults/ID     remove one

(`-` alone is no name of a bucket.) Admin requests are not logged, and faults do not touch them.
"""

from __future__ import annotations

import hmac
import json
import re
from dataclasses import asdict
from typing import Any

from benchmarks.s3.answer import Answer
from benchmarks.s3.faults import BadRule, Faults
from benchmarks.s3.request_log import RequestLog
from benchmarks.s3.wire import Head

_NUMBER = re.compile("[0-9]{1,9}")
PREFIX = "/-/"
MAX_BODY_BYTES = 64 << 10


class Admin:
    """The endpoint.

    Args:
        token: what `Authorization: Bearer` must say. Empty: nobody is served."""

    def __init__(self, token: str, faults: Faults, log: RequestLog) -> None:
        self._token = token
        self._faults = faults
        self._log = log

    def answer(self, head: Head, body: bytes) -> Answer:
        """Serve one request."""
        expected = f"Bearer {self._token}".encode()
        if not self._token or not hmac.compare_digest(
            head.headers.get("authorization", "").encode("latin-1"), expected
        ):
            return _json({"error": "the admin token is needed"}, 403)
        name, _, rest = head.path.removeprefix(PREFIX).partition("/")
        match (head.method, name, rest):
            case ("GET", "requests", ""):
                return _json([asdict(record) for record in self._log.records()])
            case ("GET", "requests", number) if _NUMBER.fullmatch(number):
                return _json([asdict(record) for record in self._log.records(at_least=int(number))])
            case ("DELETE", "requests", ""):
                self._log.clear()
            case ("GET", "faults", ""):
                return _json(self._faults.snapshot())
            case ("POST", "faults", ""):
                return self._add(body)
            case ("DELETE", "faults", ""):
                self._faults.clear()
            case ("DELETE", "faults", number) if _NUMBER.fullmatch(number):
                if not self._faults.remove(int(number)):
                    return _json({"error": "there is no such rule"}, 404)
            case _:
                return _json({"error": "there is nothing here"}, 404)
        return Answer(204)

    def _add(self, body: bytes) -> Answer:
        try:
            values = json.loads(body)
            if not isinstance(values, dict):
                raise BadRule("a rule is an object")
            rule = self._faults.add(values)
        except (ValueError, BadRule) as error:
            return _json({"error": str(error)}, 400)
        return _json(asdict(rule), 201)


def _json(value: Any, status: int = 200) -> Answer:
    return Answer(status, [("Content-Type", "application/json")], json.dumps(value).encode())
