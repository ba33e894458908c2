"""Trace context: which trace a request belongs to, as its headers say it and as it is passed on.

Reads W3C's `traceparent` and `tracestate` (Trace Context, level 1) and, where that says nothing, AWS X-Ray's
`X-Amzn-Trace-Id`. Strict: what is not exactly in order is as if it were not there, and nothing of it is kept. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sockd.base.telemetry import TraceContext

HEADERS = frozenset((b"traceparent", b"tracestate", b"x-amzn-trace-id"))
MAX_STATE_CHARS = 512
"""The most characters of a `tracestate`; what is longer is dropped, which the specification allows."""
MAX_STATE_MEMBERS = 32
MAX_AMZN_CHARS = 512

_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]*)?")
_KEY = r"(?:[a-z][_0-9a-z*/-]{0,255}|[a-z0-9][_0-9a-z*/-]{0,240}@[a-z][_0-9a-z*/-]{0,13})"
_VALUE = r"[ -+\--<>-~]{0,255}[!-+\--<>-~]"
_MEMBER = re.compile(rf"[ \t]*({_KEY})={_VALUE}[ \t]*")
_ROOT = re.compile(r"1-([0-9a-f]{8})-([0-9a-f]{24})")
_PARENT = re.compile(r"[0-9a-f]{16}")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


def of_headers(headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
    """What a request's headers say (names in lower case); None, if that is nothing."""
    found: dict[bytes, bytes] | None = None
    for name, value in headers:
        if name in HEADERS:
            if found is None:
                found = {}
            # A second traceparent is an error by that (the comma is in no valid one); tracestate is a list.
            found[name] = found[name] + b"," + value if name in found else value
    if found is None:
        return None
    return read(
        found.get(b"traceparent", b"").decode("latin-1"),
        found.get(b"tracestate", b"").decode("latin-1"),
        found.get(b"x-amzn-trace-id", b"").decode("latin-1"),
    )


def of_mapping(headers: Mapping[str, str]) -> TraceContext | None:
    """As `of_headers`, of headers by name."""
    traceparent, amzn = headers.get("traceparent", ""), headers.get("x-amzn-trace-id", "")
    if not traceparent and not amzn:
        return None
    return read(traceparent, headers.get("tracestate", ""), amzn)


def read(traceparent: str, tracestate: str = "", amzn: str = "") -> TraceContext | None:
    """The context that these headers' values give, empty where there was no such header."""
    found = _TRACEPARENT.fullmatch(traceparent.strip(" \t"))
    if found is None or found[2] == _NO_TRACE or found[3] == _NO_SPAN or (found[1] == "00" and found[5]):
        return _of_amzn(amzn) if amzn else None
    sampled = bool(int(found[4], 16) & 1)
    return TraceContext(bytes.fromhex(found[2]), bytes.fromhex(found[3]), sampled, _valid_state(tracestate))


def of_kept(text: str) -> TraceContext | None:
    """What `kept` has written."""
    first, _, state = text.partition(" ")
    return read("", "", first) if first.startswith("Root=") else read(first, state)


def _valid_state(text: str) -> str:
    """A `tracestate`, or nothing if any of it is not in order."""
    if not text or len(text) > MAX_STATE_CHARS:
        return ""
    members = [member for member in text.split(",") if member.strip(" \t")]
    matches = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in matches if match is not None}
    if len(members) > MAX_STATE_MEMBERS or len(keys) < len(members):
        return ""
    return ",".join(member.strip(" \t") for member in members)


def _of_amzn(text: str) -> TraceContext | None:
    """`Root=1-<8 hex>-<24 hex>;Parent=<16 hex>;Sampled=0|1|?`; fields of other names are skipped."""
    if len(text) > MAX_AMZN_CHARS:
        return None
    fields: dict[str, str] = {}
    for part in text.split(";"):
        name, _, value = part.strip(" \t").partition("=")
        if name in fields:
            return None
        fields[name] = value
    root, parent, sampled = (
        _ROOT.fullmatch(fields.get("Root", "")),
        fields.get("Parent", ""),
        fields.get("Sampled", "?"),
    )
    if root is None or not root[1].strip("0") + root[2].strip("0") or sampled not in ("0", "1", "?"):
        return None
    if parent and (not _PARENT.fullmatch(parent) or parent == _NO_SPAN):
        return None
    return TraceContext(
        bytes.fromhex(root[1] + root[2]), bytes.fromhex(parent), {"0": False, "1": True}.get(sampled), ""
    )


def traceparent_of(context: TraceContext) -> str:
    """Return the header `traceparent` for a call to another service; only with a parent."""
    return f"00-{context.trace_id.hex()}-{context.parent_id.hex()}-{'01' if context.sampled else '00'}"


def kept(context: TraceContext) -> str:
    """As a text, with all that `of_kept` needs: `traceparent` and `tracestate`, or AWS's header, which may lack a parent and a
    decision about sampling."""
    if context.parent_id and context.sampled is not None:
        return f"{traceparent_of(context)} {context.state}".rstrip()
    return amzn_of(context) if context.sampled is not None else amzn_of(context).rpartition(";")[0]


def for_function(context: TraceContext) -> dict[str, str]:
    """Return the part of the trace context that a sandbox gets, as `InvokeRequest.details`; traceparent and tracestate only
    with a parent."""
    if not context.parent_id:
        return {"trace": amzn_of(context)}
    return {"trace": amzn_of(context), "traceparent": traceparent_of(context), "tracestate": context.state}


def amzn_of(context: TraceContext) -> str:
    """The same in AWS's words: the header, and the function's `_X_AMZN_TRACE_ID`."""
    trace_id = context.trace_id.hex()
    parent = f";Parent={context.parent_id.hex()}" if context.parent_id else ""
    return f"Root=1-{trace_id[:8]}-{trace_id[8:]}{parent};Sampled={'1' if context.sampled else '0'}"
