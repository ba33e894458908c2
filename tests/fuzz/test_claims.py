"""What sandboxes and Zygotes say of themselves, beside user code: the daemon believes its shape and nothing else.

The bytes of both wires are tested in tests/zygote/test_protocol.py, their ends in tests/isolation/farm/test_control.py.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from sockd.base.errors import FunctionFailed, InitFailed, SockdError
from sockd.http.server.messages.answers import failure
from sockd.isolation.farm.control import ZygoteGone
from sockd.isolation.farm.imported import read_report
from sockd.isolation.sandbox.claims import LONGEST_TYPE, read_failure, read_imports
from sockd_zygote.protocol import MODULES_MAX, ProtocolError
from tests.fuzz.fuzzing import encoded, fuzz, integers, objects, texts, values

failures = objects(errorType=texts(400), errorMessage=texts(), stackTrace=st.lists(texts(), max_size=3))
triples = st.lists(st.tuples(texts(), texts(), st.floats() | integers() | texts()), max_size=5)


@fuzz(150)
@example(encoded({"errorType": "\ud800", "errorMessage": "\udfff", "stackTrace": ["\udcff"]}))
@example(encoded({"errorType": "E" * 1_000_000, "errorMessage": "", "stackTrace": []}))
@example(b'{"errorType":' + b"[" * 50_000)
@given((failures | values()).map(encoded) | st.binary(max_size=100))
def test_a_failure_is_an_error_that_can_be_answered_with(body: bytes) -> None:
    for kind in (FunctionFailed, InitFailed):
        error = read_failure(body, kind)
        assert isinstance(error, SockdError)
        assert len(error.error_type) <= LONGEST_TYPE
        error.error_type.encode()  # it is kept, and shown to others in lists of invocations
        answer = failure(error, "0")
        assert answer.status >= 400 and json.loads(answer.body)["errorType"] == error.error_type


@fuzz(150)
@example(b'[["k", "m", NaN]]')
@example(b'[["k", "m", Infinity]]')
@example(b'[["k", "m", -1]]')
@example(b'[["k", "m", 1e999]]')
@example(b'[["k", "m", "0x1p3"]]')
@example(b'["abc", "def"]')
@example(b'[["k", "m", %s]]' % (b"9" * 400))
@example(b"[" + b'["k","m",1],' * 100_000 + b'["k","m",1]]')
@example(b"[" * 50_000)
@given((triples | values()).map(encoded) | st.binary(max_size=100))
def test_imports_are_texts_and_a_time_that_can_be_added_up(body: bytes) -> None:
    try:
        found = read_imports(body)
    except ProtocolError:
        return
    assert len(found) <= MODULES_MAX
    for key, module, seconds in found:
        key.encode()
        module.encode()
        assert seconds >= 0 and math.isfinite(seconds)


imported = objects(
    seconds=st.floats() | integers(),
    threads=integers(),
    failed=st.dictionaries(texts(), texts(), max_size=3),
    seen=objects(missed=st.lists(texts(), max_size=3) | values(), every_variable=st.booleans() | values()),
)


@fuzz(150)
@example({"seconds": math.nan, "threads": 1, "failed": {}})
@example({"seconds": 1, "threads": math.inf, "failed": {}})
@example({"seconds": 1, "threads": 1, "failed": {"numpy": "no \ud800"}})
@given(imported)
def test_an_answer_to_import_adds_up_or_ends_the_zygote(message: dict[str, Any]) -> None:
    try:
        found = read_report(encoded(message))
    except ZygoteGone:
        return
    assert found.seconds >= 0 and math.isfinite(found.seconds)
    msgspec.json.encode(found.failed)  # shown to people as the reason why a package is not cached
    assert all(type(name) is str for name in found.seen.missed) and type(found.seen.every_variable) is bool
