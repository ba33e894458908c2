"""The user's handler: found by name, called as its signature asks, its answer as JSON. Without a sandbox."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sockd_zygote.handlers import entry
from sockd_zygote.handlers import handler as handlers
from sockd_zygote.messages import errors, event_json

_modules = itertools.count()
Load = Callable[..., handlers.Handler]


@pytest.fixture
def load(directory: Path) -> Load:
    """Load a handler from source."""

    def load(source: str, attribute: str = "handler", *, entry_file: bool = False) -> handlers.Handler:
        name = f"sockd_test_module_{next(_modules)}"
        (directory / f"{name}.py").write_text(source)
        function = {
            "name": "f",
            "version": "7",
            "memory_mb": 128,
            "handler": f"{name}:{attribute}",
            "code": str(directory),
        }
        return entry.open_handler({**function, "entry_file": f"{name}.py" if entry_file else ""})

    return load


def call(handler: handlers.Handler, event: bytes = b'{"a": 1}') -> Any:
    return json.loads(handler.call(event, bytes(range(16)), time.monotonic_ns() + 900 * 10**9))


async def asynchronous(event: Any) -> Any:
    return event


class Plain:
    def __call__(self, event: Any) -> Any:
        return event

    def method(self, event: Any, context: Any) -> Any:
        return event

    async def async_method(self, event: Any) -> Any:
        return event


@functools.wraps(asynchronous)
def wrapping(*args: Any, **kwargs: Any) -> Any:
    return asynchronous(*args, **kwargs)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda event: event, (1, False)),
        (lambda event, context: event, (2, False)),
        (lambda event, context=None: event, (2, False)),
        (lambda event, context, extra=1: event, (2, False)),
        (lambda event=None: event, (1, False)),
        (lambda *args: args, (2, False)),
        (lambda event, *rest: event, (2, False)),
        (lambda event, **options: event, (1, False)),
        (asynchronous, (1, True)),
        (wrapping, (1, True)),
        (Plain(), (1, False)),
        (Plain().method, (2, False)),
        (Plain().async_method, (1, True)),
        (functools.partial(Plain().method, context=1), (1, False)),
        (functools.partial(asynchronous), (1, True)),
        (len, (1, False)),
        (max, (2, False)),
    ],
)
def test_a_signature_is_read(function: Any, expected: tuple[int, bool]) -> None:
    assert handlers.signature(function, "m:f") == expected


@pytest.mark.parametrize("function", [lambda: 1, lambda a, b, c: a, lambda *, event: event, 5, None, "text"])
def test_what_takes_no_event_is_no_handler(function: Any) -> None:
    with pytest.raises(errors.HandlerNotFound, match=r"^m:f "):
        handlers.signature(function, "m:f")


def test_an_event_goes_in_and_an_answer_comes_out(load: Load) -> None:
    assert call(load("def handler(event): return [event, None, True, 1.5, 'é\\udc80']")) == [
        *({"a": 1}, None, True, 1.5, "é\udc80"),
    ]


def test_the_context_is_awss(load: Load) -> None:
    handler = load(
        "def handler(event, context):\n"
        "    return {n: getattr(context, n) for n in dir(context) if n[0] != '_' and not callable(getattr(context, n))}\n"
    )
    assert call(handler) == {
        "aws_request_id": "00010203-0405-0607-0809-0a0b0c0d0e0f",
        "client_context": None,
        "function_name": "f",
        "function_version": "7",
        "identity": None,
        "invoked_function_arn": "arn:aws:lambda:local:000000000000:function:f",
        "log_group_name": "/aws/lambda/f",
        "log_stream_name": "7",
        "memory_limit_in_mb": "128",
    }
    remaining = call(load("def handler(event, context): return context.get_remaining_time_in_millis()"))
    assert 800_000 < remaining <= 900_000


def test_time_left_is_never_negative() -> None:
    context = handlers.Context({}, bytes(16), time.monotonic_ns() - 10**9)
    assert context.get_remaining_time_in_millis() == 0


def test_async_handlers_share_one_loop(load: Load) -> None:
    handler = load(
        "import asyncio\n"
        "lock = []\n"
        "async def handler(event):\n"
        "    lock.append(asyncio.get_running_loop())\n"
        "    await asyncio.sleep(0)\n"
        "    return [len(lock), lock[0] is lock[-1]]\n"
    )
    try:
        assert [call(handler), call(handler)] == [[1, True], [2, True]]
    finally:
        handler._run.__self__.close()  # type: ignore[union-attr]


@pytest.mark.parametrize("value", ["bytearray(b'x')", "[b'\\xff']", "{1}", "object()", "{(1,): 1}", "[]"])
def test_what_json_cannot_hold_is_a_marshal_error(load: Load, value: str) -> None:
    handler = load(f"def handler(event):\n    v = {value}\n    if v == []: v.append(v)\n    return v\n")
    with pytest.raises(errors.MarshalError, match=r"^Unable to marshal response: "):
        call(handler)


def test_what_nests_too_deep_is_a_marshal_error(load: Load) -> None:
    handler = load("def handler(event):\n    v = []\n    for _ in range(100000): v = [v]\n    return v\n")
    with pytest.raises(errors.MarshalError):
        call(handler)


@pytest.mark.parametrize("event", [b"", b"{", b"nope", b"\xff", b"[" * 100_000, b'"' + b"9" * 10])
def test_what_is_not_json_is_an_invalid_event(event: bytes) -> None:
    with pytest.raises(errors.InvalidEvent, match=r"^Could not parse request body into json: "):
        event_json.parse_event(event)


def test_a_module_that_is_missing_is_reported_from_a_missing_import_inside_it(directory: Path) -> None:
    (directory / "broken.py").write_text("import nowhere_at_all\n")
    (directory / "package").mkdir()
    (directory / "package" / "__init__.py").write_text("")
    (directory / "package" / "inner.py").write_text("def handler(event): return event\n")
    for name in ("missing:handler", "missing.inner:handler", "package.missing:handler", "broken_not.x:handler"):
        with pytest.raises(errors.HandlerNotFound, match="no module"):
            entry.load(name)
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        entry.load("broken:handler")
    with pytest.raises(errors.HandlerNotFound, match="has no 'nothing'"):
        entry.load("package.inner:nothing")
    assert entry.load("package.inner:handler")(5) == 5


def test_an_error_is_described_as_aws_does(load: Load) -> None:
    handler = load("def handler(event):\n    raise LookupError('gone')\n")
    with pytest.raises(LookupError) as caught:
        call(handler)
    described = json.loads(errors.describe(caught.value))
    assert (described["errorType"], described["errorMessage"]) == ("LookupError", "gone")
    assert "raise LookupError('gone')" in described["stackTrace"][-1]
    assert not any(entry.__file__ in line for line in described["stackTrace"])


@pytest.mark.parametrize("event", [b"NaN", b'{"a": -Infinity}', b"[Infinity]"])
def test_an_event_has_no_number_that_json_has_not(event: bytes) -> None:
    with pytest.raises(errors.InvalidEvent, match="is not JSON"):
        event_json.parse_event(event)


def test_an_event_may_begin_with_a_byte_order_mark() -> None:
    assert event_json.parse_event(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    with pytest.raises(errors.InvalidEvent):
        event_json.parse_event(b"\xef\xbb\xbf" * 2 + b"1")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (float("nan"), b"NaN"),
        ({"a": [float("inf"), -float("inf")]}, b'{"a":[Infinity,-Infinity]}'),
        ({"a": b"raw", "b": ["\u00e9".encode()]}, b'{"a":"raw","b":["\\u00e9"]}'),
        ({b"k": {b"\xc3\xa9": 1}, 2: (b"x",)}, b'{"k":{"\\u00e9":1},"2":["x"]}'),
        ({b"k": Decimal("1.10"), "n": Decimal("NaN")}, b'{"k":1.10,"n":NaN}'),
    ],
)
def test_an_answer_is_written_as_aws_s_runtime_writes_it(answer: object, text: bytes) -> None:
    assert event_json.encode_answer(answer) == text


@pytest.mark.parametrize("answer", [{"a": b"\xff"}, {b"\xff": 1}, bytearray(b"x"), {(1,): b""}, {1}])
def test_an_answer_that_no_text_can_say(answer: object) -> None:
    with pytest.raises(errors.MarshalError, match="Unable to marshal response"):
        event_json.encode_answer(answer)
