"""Which requests are for a function URL, and what of their path is the function's."""

from __future__ import annotations

import pytest

from sockd.base.errors import BadConfig
from sockd.http.server.messages.head import Head
from sockd.http.url_names import UrlNames
from sockd.http.urls.addressed import Addressed, addressed

ID = "abcdefghijklmnopqrstuvwxyz234567"
NAMES = UrlNames("fn.example.com")


def head(host: str, target: str = "/") -> Head:
    return Head(b"GET", target.encode(), "1.1", [(b"accept", b"*/*"), (b"host", host.encode())])


@pytest.mark.parametrize(
    "host",
    [
        f"{ID}.lambda-url.localhost",
        f"{ID}.lambda-url.localhost:5000",
        f"{ID}.lambda-url.eu-central-1.localhost:5000",
        f"{ID}.LAMBDA-URL.us-east-1.LocalHost",
        f"{ID.upper()}.lambda-url.localhost",
        f"{ID}.lambda-url.fn.example.com",
        f"{ID}.lambda-url.local.fn.example.com:80",
    ],
)
def test_a_name_of_its_own(host: str) -> None:
    assert addressed(NAMES, head(host, "/a/b?c=d")) == Addressed(ID, b"/a/b", b"c=d", by_path=False)
    assert addressed(NAMES, head(host, "/url/x/")) == Addressed(ID, b"/url/x/", b"", by_path=False)
    assert addressed(NAMES, head(host, f"http://{host}/run/f")) == Addressed(ID, b"/run/f", b"", by_path=False)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1:5000",
        f"{ID}.localhost",
        f"x.{ID}.lambda-url.localhost",
        f"{ID}.lambda-url.a.b.localhost",
        f"{ID}.lambda-url.localhost.evil.example",
        f"{ID}.lambda-url.evil.example",
        f"{ID}.lambda-url.fn-example.com",
        f"{ID}.lambda-url.localhost:5000@evil.example",
        f"{ID}.lambda-url.localhost, localhost",
        f"evil.example/{ID}.lambda-url.localhost",
    ],
)
def test_other_names_are_of_the_rest_of_the_port(host: str) -> None:
    assert addressed(NAMES, head(host, "/run/f")) is None


@pytest.mark.parametrize(
    ("target", "id_", "path", "query"),
    [
        (f"/url/{ID}", ID, b"/", b""),
        (f"/url/{ID}?x", ID, b"/", b"x"),
        (f"/url/{ID}/", ID, b"/", b""),
        (f"/url/{ID}/a%2Fb/../c?x=1&y", ID, b"/a%2Fb/../c", b"x=1&y"),
        ("/url/", "", b"/", b""),
        ("/url//x", "", b"/x", b""),
        ("/url/a%2Fb/c", "", b"/url/a%2Fb/c", b""),
        (f"/url/{'a' * 64}/", "", f"/url/{'a' * 64}/".encode(), b""),
    ],
)
def test_by_path(target: str, id_: str, path: bytes, query: bytes) -> None:
    assert addressed(NAMES, head("localhost", target)) == Addressed(id_, path, query, by_path=True)


def test_the_url_that_is_reported_leads_here() -> None:
    assert NAMES.url(ID, "http://0.0.0.0:5000") == f"http://{ID}.lambda-url.fn.example.com:5000/"
    url = UrlNames("localhost").url(ID, "http://[::1]:80")
    assert url == f"http://{ID}.lambda-url.localhost/"
    found = addressed(UrlNames("localhost"), head(url.split("/")[2]))
    assert found is not None
    assert found.id == ID


@pytest.mark.parametrize("worker_url", ["http://192.0.2.1:5000", "http://127.0.0.2:5000"])
def test_a_worker_that_is_not_where_localhost_leads_tells_no_name_below_it(worker_url: str) -> None:
    """A server that listens there would get the requests."""
    assert UrlNames("localhost").url(ID, worker_url) == f"{worker_url}/url/{ID}/"


@pytest.mark.parametrize("domain", ["", "a b", "-a", "a\r\nb", "a/b", "a.", "x" * 300])
def test_a_domain_that_is_none(domain: str) -> None:
    with pytest.raises(BadConfig, match="function_urls"):
        UrlNames(domain)
