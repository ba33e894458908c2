"""Trace context from strangers: what is exactly in order is understood, everything else is as if it were not there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.base.telemetry import TraceContext
from sockd.base.trace_context import (
    MAX_STATE_CHARS,
    amzn_of,
    kept,
    of_headers,
    of_kept,
    of_mapping,
    read,
    traceparent_of,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
CONTEXT = TraceContext(bytes.fromhex(TRACE), bytes.fromhex(SPAN), True)
ROOT = f"Root=1-{TRACE[:8]}-{TRACE[8:]}"

contexts = st.builds(
    TraceContext,
    st.binary(min_size=16, max_size=16).filter(any),
    st.binary(min_size=8, max_size=8).filter(any),
    st.booleans(),
)


@given(contexts)
def test_what_is_written_is_read_again(context: TraceContext) -> None:
    assert read(traceparent_of(context)) == context
    assert read("", "", amzn_of(context)) == context


@given(
    st.builds(
        TraceContext,
        st.binary(min_size=16, max_size=16).filter(any),
        st.just(b"") | st.binary(min_size=8, max_size=8).filter(any),
        st.none() | st.booleans(),
    )
)
def test_what_is_kept_of_a_context_is_all_of_it(context: TraceContext) -> None:
    assert of_kept(kept(context)) == context


def test_a_state_is_kept() -> None:
    context = read(PARENT, "a=1,b=2")
    assert context is not None and context.state and of_kept(kept(context)) == context


@pytest.mark.parametrize(
    ("text", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),  # flags of later levels
        (f"00-{TRACE}-{SPAN}-fe", False),
        (f"cc-{TRACE}-{SPAN}-01", True),  # a later version
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
        (f" \t00-{TRACE}-{SPAN}-01 ", True),
    ],
)
def test_what_w3c_calls_valid_is(text: str, sampled: bool) -> None:
    assert read(text) == TraceContext(CONTEXT.trace_id, CONTEXT.parent_id, sampled)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE}-{SPAN}-01-extra",
        f"cc-{TRACE}-{SPAN}-01.what",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0x",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{TRACE}-{SPAN}",
        f"{PARENT},{PARENT}",
        f"{PARENT}\n",
        f"{PARENT}\x00",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",  # an Arabic digit
    ],
)
def test_everything_else_is_not(text: str) -> None:
    assert read(text) is None


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("congo=t61rcWkgMzE", "congo=t61rcWkgMzE"),
        ("a=1,b=2, c=3 ,,", "a=1,b=2,c=3"),
        ("0tenant@vendor=x/y:z", "0tenant@vendor=x/y:z"),
        ("a=1,a=2", ""),  # twice
        ("A=1", ""),
        ("a=1=2", ""),
        ("a=\x1b[31m", ""),
        ("a=é", ""),
        (",".join(f"k{n}=v" for n in range(33)), ""),
        ("a=" + "v" * MAX_STATE_CHARS, ""),
    ],
)
def test_a_tracestate_that_is_not_in_order_is_dropped_and_its_parent_is_not(text: str, kept: str) -> None:
    context = read(PARENT, text)
    assert context is not None and context.trace_id == CONTEXT.trace_id and context.state == kept


@pytest.mark.parametrize(
    ("text", "sampled", "has_parent"),
    [
        (f"{ROOT};Parent={SPAN};Sampled=1", True, True),
        (f"{ROOT};Parent={SPAN};Sampled=0", False, True),
        (f"Self=1-67891234-12456789abcdef012345678;{ROOT};Lineage=a:0", None, False),
        (f"Sampled=?; {ROOT}", None, False),
    ],
)
def test_aws_s_header_counts_where_w3c_s_says_nothing(text: str, sampled: bool | None, has_parent: bool) -> None:
    expected = TraceContext(CONTEXT.trace_id, CONTEXT.parent_id if has_parent else b"", sampled)
    assert read("", "", text) == read("nonsense", "a=1", text) == expected
    assert read(PARENT, "", ROOT.replace("4", "5")) == CONTEXT


@pytest.mark.parametrize(
    "text",
    [
        "Root=",
        f"{ROOT};{ROOT}",
        f"{ROOT};Sampled=2",
        f"{ROOT};Parent=12",
        f"{ROOT};Parent={'0' * 16}",
        f"Root=1-{'0' * 8}-{'0' * 24}",
        ROOT.upper(),
        f"{ROOT};" + "x" * 1000,
    ],
)
def test_aws_s_header_is_judged_as_strictly(text: str) -> None:
    assert read("", "", text) is None


headers = st.sampled_from((b"traceparent", b"tracestate", b"x-amzn-trace-id", b"host"))
values = st.one_of(st.binary(max_size=80), st.sampled_from((PARENT.encode(), b"a=1", ROOT.encode())))


@given(st.lists(st.tuples(headers, values), max_size=6))
def test_no_header_is_an_error_and_nothing_hostile_is_passed_on(given_headers: list[tuple[bytes, bytes]]) -> None:
    context = of_headers(given_headers)
    if context is not None:
        assert len(context.trace_id) == 16 and any(context.trace_id) and len(context.parent_id) in (0, 8)
        assert context.state.isascii() and (context.state.isprintable() or not context.state)
        assert amzn_of(context).isprintable()


def test_both_kinds_of_headers_say_the_same() -> None:
    assert of_headers([(b"host", b"x"), (b"traceparent", PARENT.encode())]) == CONTEXT
    assert of_headers([(b"traceparent", PARENT.encode())] * 2) is None
    listed = of_headers([(b"tracestate", b"a=1"), (b"traceparent", PARENT.encode()), (b"tracestate", b"b=2")])
    assert listed is not None and listed.state == "a=1,b=2"
    assert of_mapping({"traceparent": PARENT}) == CONTEXT
    assert of_mapping({"tracestate": "a=1"}) is None and of_headers([(b"host", b"x")]) is None
