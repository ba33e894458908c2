"""Which URLs there are, also after a restart and after their function has gone."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sockd.base.errors import BadRequest, NoSuchFunction
from sockd.functions.registry.aliases import Alias
from sockd.functions.registry.function_url import Cors, NoSuchUrl, UrlExists
from sockd.functions.registry.function_urls import FunctionUrls
from sockd.functions.registry.registry import Registry

pytestmark = pytest.mark.anyio
CORS = Cors(allow_origins=["https://example.com"], allow_methods=["GET"], max_age=60)


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    registry = await Registry.open(tmp_path / "registry.sqlite")
    for name in ("f", "g"):
        await registry.put(name, digest="d", code_bytes=1, handler="f:f", config="{}", closure="[]")
    yield registry
    await registry.aclose()


@pytest.fixture
def urls(registry: Registry) -> FunctionUrls:
    return FunctionUrls(registry)


async def test_a_url_is_found_by_its_id_and_by_its_function(urls: FunctionUrls) -> None:
    plain = await urls.create("f")
    alias = await urls.create("f", "prod", auth="AWS_IAM", mode="RESPONSE_STREAM", cors=CORS)
    assert plain.id != alias.id
    assert all(re.fullmatch("[a-z2-7]{32}", url.id) for url in (plain, alias))
    assert (urls.find(plain.id), urls.find(alias.id)) == (plain, alias)
    assert (urls.of("f"), urls.of("f", "prod")) == (plain, alias)
    assert urls.all_of("f") == [plain, alias]
    assert urls.all_of("g") == []


async def test_a_function_has_one_for_each_qualifier(urls: FunctionUrls) -> None:
    await urls.create("f")
    with pytest.raises(UrlExists):
        await urls.create("f")
    await urls.create("g")
    with pytest.raises(NoSuchFunction):
        await urls.create("none")


async def test_a_change_keeps_the_id(urls: FunctionUrls) -> None:
    old = await urls.create("f")
    new = await urls.update(old, auth="AWS_IAM", mode="RESPONSE_STREAM", cors=CORS)
    assert urls.find(old.id) == new
    assert (new.id, new.auth, new.mode, new.cors) == (old.id, "AWS_IAM", "RESPONSE_STREAM", CORS)
    assert new.updated_at >= old.updated_at


async def test_what_was_taken_back_is_not_found(urls: FunctionUrls) -> None:
    url = await urls.create("f")
    await urls.delete("f")
    with pytest.raises(NoSuchUrl):
        urls.find(url.id)
    with pytest.raises(NoSuchUrl):
        urls.of("f")
    with pytest.raises(NoSuchUrl):
        await urls.delete("f")


async def test_urls_outlive_the_daemon_and_go_with_their_function(
    urls: FunctionUrls, registry: Registry, tmp_path: Path
) -> None:
    ids = [(await urls.create("f")).id, (await urls.create("f", "prod")).id]
    kept = await urls.create("g")
    await registry.put("f", digest="d2", code_bytes=1, handler="f:f", config="{}", closure="[]")
    await registry.aclose()
    registry = await Registry.open(tmp_path / "registry.sqlite")
    again = FunctionUrls(registry)
    assert [url.id for url in again.all_of("f")] == ids
    await registry.delete("f")
    await registry.put("f", digest="d", code_bytes=1, handler="f:f", config="{}", closure="[]")
    assert again.all_of("f") == []
    assert again.all_of("g") == [kept] and again.find(kept.id) == kept
    with pytest.raises(NoSuchUrl):
        again.find(ids[0])
    await registry.aclose()


async def test_the_url_of_an_alias_goes_with_it(urls: FunctionUrls, registry: Registry) -> None:
    plain, other = await urls.create("f"), await urls.create("g", "prod")
    await registry.change("f", lambda function: function.with_alias(Alias("f", "prod", "$LATEST")))
    await urls.create("f", "prod")
    changed = Alias("f", "prod", "$LATEST", description="changed")
    await registry.change("f", lambda function: function.with_alias(changed))
    assert len(urls.all_of("f")) == 2
    await registry.change("f", lambda function: function.without_alias("prod"))
    assert urls.all_of("f") == [plain]
    assert urls.all_of("g") == [other]


@pytest.mark.parametrize(
    "cors",
    [
        {"allow_origins": ["https://a\r\nx: y"]},
        {"allow_origins": ["example.com"]},
        {"allow_origins": ["https://a.example"] * 101},
        {"allow_methods": ["GET, PUT"]},
        {"allow_headers": ["a\nb"]},
        {"expose_headers": [""]},
        {"max_age": 86401},
        {"max_age": -1},
    ],
)
async def test_what_would_break_a_header_is_refused(urls: FunctionUrls, cors: Any) -> None:
    with pytest.raises(BadRequest, match="Cors"):
        await urls.create("f", cors=Cors(**cors))
    url = await urls.create("f")
    with pytest.raises(BadRequest, match="Cors"):
        await urls.update(url, auth="NONE", mode="BUFFERED", cors=Cors(**cors))
    assert urls.of("f") == url


async def test_words_that_are_none_of_awss(urls: FunctionUrls) -> None:
    with pytest.raises(BadRequest, match="AuthType"):
        await urls.create("f", auth="JWT")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="InvokeMode"):
        await urls.create("f", mode="LATER")  # type: ignore[arg-type]
