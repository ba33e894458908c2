"""Requests as no library sends them: names that are paths, two requests in one, anything at all."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.http.aws.routes import TABLE
from tests.faults.api.asking import Signer, answer, message, statuses
from tests.fuzz.fuzzing import encoded, fuzz, values
from tests.support.cases import Happened, case
from tests.support.private_worker import PrivateWorker

pytestmark = pytest.mark.root

EXAMPLES = 1500
INVOCATIONS = "/2015-03-31/functions/{}/invocations"
OTHERS = ("/run/{}", "/run/{}/a?b=c", "/url/{}/", "/{}", "/page/{}", "/status", "/metrics", "/healthz", "/")
ROUTES = [(method, path) for method, path, *_ in TABLE] + [
    (method, path) for path in OTHERS for method in ("GET", "POST", "OPTIONS", "DELETE")
]
ODD = (
    "echo",
    "echo:1",
    "nothing",
    "..",
    ".",
    "%00",
    "é",
    "a b",
    "a" * 300,
    "arn:aws:lambda:local:000000000000:function:echo",
)
names = st.sampled_from(ODD) | st.text(max_size=12)
queries = st.sampled_from(["", "Qualifier=1", "Qualifier=%24LATEST", "Marker=x&MaxItems=-1", "List=ALL", "tagKeys=a"])
ASKING = ("X-Amz-Invocation-Type", "X-Amz-Log-Type", "X-Amz-Client-Context", "amz-sdk-invocation-id", "Idempotency-Key")
header_values = st.sampled_from(["Event", "DryRun", "Tail", "a", "e30=", "null", "9" * 99, "\xff"])


@case(
    "H1", f"{EXAMPLES} requests drawn at random, to every route there is, half of them signed",
    expect="none is answered 5xx, none raises in the daemon; it serves on", default=False,
)  # fmt: skip
@pytest.mark.timeout(300)
def test_no_request_is_too_odd_for_an_answer(
    worker: PrivateWorker, echo: str, signer: Signer, happened: Happened
) -> None:
    seen: dict[int, int] = {}

    @fuzz(EXAMPLES)
    @given(
        st.sampled_from(ROUTES),
        st.lists(names, min_size=2, max_size=2),
        queries,
        st.binary(max_size=40) | values().map(encoded),
        st.dictionaries(st.sampled_from(ASKING), header_values, max_size=2),
        st.booleans(),
    )
    def ask(
        route: tuple[str, str], parts: list[str], query: str, body: bytes, headers: dict[str, str], signed: bool
    ) -> None:
        method, path = route
        segments = [quote(part.encode("utf-8", "surrogatepass"), safe="%:.$") for part in parts]
        target = path.format(*segments) + (f"?{query}" if query and "?" not in path else "")
        more = signer.headers(method, target, body) if signed else {}
        status = answer(worker.daemon.port, message(method, target, body, {**headers, **more})).status
        seen[status] = seen.get(status, 0) + 1
        assert 200 <= status < 500, (status, method, target, body, headers)

    ask()
    happened(", ".join(f"{count} of {status}" for status, count in sorted(seen.items())))


TRICKS = (
    "%2e%2e", "..", "%2e%2e%2fecho", "echo%2f..%2fecho", "..%2f..%2fetc%2fpasswd", "echo%00", "%00", "echo%20", "ech%6f%0d%0a",
    "a" * 8192, "%C3%A9cho", "\udcc3\udca9cho", "%ff", "%", "%zz", "echo;a=b", "echo%3f", "-" * 65, "echo:no", "arn:aws:s3:::e",
)  # fmt: skip
DOUBLED = ("//run/echo", "/run//echo", "/run/./echo", "/run/../run/echo", "/RUN/echo", "run/echo", "*")


@case("H2", "names with %2e%2e, slashes, NUL, other alphabets, 8 kB", expect="400, 403 or 404; the function never runs")
def test_a_path_is_a_name_or_nothing(worker: PrivateWorker, echo: str, signer: Signer, happened: Happened) -> None:
    came: set[int] = set()
    for trick in TRICKS:
        for target in (f"/run/{trick}", INVOCATIONS.format(trick)):
            headers = (
                {}
                if target.startswith("/run/")
                else signer.headers("POST", quote(target.encode("utf-8", "surrogateescape"), safe="/%:;"), b"{}")
            )
            status = answer(worker.daemon.port, message("POST", target, b"{}", headers)).status
            assert status in (400, 403, 404, 414, 431), (target[:80], status)
            came.add(status)
    for target in DOUBLED:
        status = answer(worker.daemon.port, message("POST", target, b"{}")).status
        assert status in (400, 404, 405), (target, status)
        came.add(status)
    happened(f"{2 * len(TRICKS) + len(DOUBLED)} paths: {sorted(came)}")
    assert worker.call(echo, "only this") == ["only this"]


HIDDEN = message("POST", "/run/echo", b'"hidden"')
TWOFOLD = (
    b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
    b"Content-Length: 0, 0\r\n\r\n",
    b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"X: y\r\n Content-Length: 3\r\n\r\n",
    b"Content-Length: 0\nX: y\r\n\r\n",
    b"Content-Length: +0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
    b"X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
)


@case(
    "H3",
    f"{len(TWOFOLD)} requests with two lengths, folded lines and bare line feeds, a second request hidden behind each",
    expect="one 4xx each and the end of the connection; the hidden request never runs",
)
@pytest.mark.parametrize("size", [1 << 20, 1], ids=["at once", "byte by byte"])
def test_a_request_with_two_meanings_has_none(worker: PrivateWorker, echo: str, size: int, happened: Happened) -> None:
    came = []
    for twofold in TWOFOLD:
        sent = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\n" + twofold + HIDDEN
        came.append(statuses(worker.daemon.port, [sent[at : at + size] for at in range(0, len(sent), size)]))
        assert len(came[-1]) == 1 and 400 <= came[-1][0] < 500, (twofold, came[-1])
    happened(f"answered {sorted({status for each in came for status in each})}")
    assert worker.call(echo, "only this") == ["only this"]


@case(
    "H3",
    "50 requests in one write, and one whose body comes in 1 000 chunks of a byte",
    expect="51 right answers in order",
)
def test_what_has_one_meaning_is_answered_however_it_comes(
    worker: PrivateWorker, echo: str, happened: Happened
) -> None:
    pipelined = [message("POST", "/run/echo", json.dumps(number).encode()) for number in range(50)]
    assert statuses(worker.daemon.port, [b"".join(pipelined)]) == [200] * 50
    text = json.dumps("x" * 998).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in text) + b"0\r\n\r\n"
    head = b"POST /run/echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    seen = answer(worker.daemon.port, head + chunks).json
    happened(f"{len(seen)} answers")
    assert seen == [*range(50), "x" * 998]


ZEROS = "0" * 5000
"""With a digit behind them more than `int` takes, and a number to a parser of HTTP."""
LENGTHS = (f"{ZEROS}2", ZEROS, "9" * 19, str((1 << 64) - 1))
DATES = ("20241301T000000Z", "00000101T000000Z", "20240230T999999Z", "2024\u0660101T000000Z")


@case(
    "K11",
    "numbers and dates of a head at their edges: a Content-Length with 5000 zeros, a day of the 13th month",
    expect="an answer or a typed refusal at every API; no 500, no traceback",
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_numbers_of_any_length_have_a_meaning_or_are_refused(
    worker: PrivateWorker, echo: str, signer: Signer, happened: Happened, method: str
) -> None:
    targets = [pattern.format(echo) for pattern in (INVOCATIONS, *OTHERS, "/2015-03-31/functions/{}/code")]
    seen = set()
    for target in targets:
        signed = signer.headers(method, target, b"{}")
        for length in LENGTHS:
            request = message(method, target, b"{}", {**signed, "Content-Length": length})
            seen.update(statuses(worker.daemon.port, [request]))
        today = signed["X-Amz-Date"]
        for date in DATES:
            authorization = signed["Authorization"].replace(today[:8], date[:8])
            request = message(method, target, b"{}", {**signed, "X-Amz-Date": date, "Authorization": authorization})
            seen.update(statuses(worker.daemon.port, [request]))
    for path in ("/functions/odd", f"/functions/{echo}/invoke", "/packages", "/schedules/odd", "/url/odd"):
        seen.add(worker.daemon.manage(method, path, b"{}", {"Content-Length": f"{ZEROS}2"}).status)
    happened(f"{method}: {sorted(seen)}")
    assert seen and all(status < 500 or status == 501 for status in seen)
