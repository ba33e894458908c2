"""Routes of the management API for function URLs.

    GET    /functions/{name}/urls                  all of a function's
    PUT    /functions/{name}/url?qualifier=        {"auth"?, "mode"?, "cors"?}: makes one, or changes the one that is there
    DELETE /functions/{name}/url?qualifier=

Owns nothing.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sockd.base.config import Config
from sockd.base.errors import BadRequest
from sockd.functions.registry.aliases import NAME as ALIAS
from sockd.functions.registry.function_url import Auth, Cors, FunctionUrl, Mode, NoSuchUrl
from sockd.http.management.typed_routes import function_name, respond, typed_routes
from sockd.http.server.messages.answers import json_answer
from sockd.http.uploads import read_json
from sockd.http.url_names import UrlNames
from sockd.http.worker import Worker

_MAX_BODY_BYTES = 64 * 1024


class UrlSettings(msgspec.Struct, forbid_unknown_fields=True):
    """What a PUT says; None leaves as it is."""

    auth: Auth | None = None
    mode: Mode | None = None
    cors: Cors | None = None


def routes(worker: Worker, config: Config) -> list[Route]:
    """The routes, for `Management`."""
    urls = _Urls(worker, config)
    return typed_routes(
        [
            ("GET", "/functions/{name}/urls", urls.list),
            ("PUT", "/functions/{name}/url", urls.put),
            ("DELETE", "/functions/{name}/url", urls.delete),
        ]
    )


class _Urls:
    def __init__(self, worker: Worker, config: Config) -> None:
        self._worker = worker
        self._names = UrlNames(config.function_urls.domain)
        self._enabled = config.function_urls.enabled
        self._keys = bool(config.lambda_api.keys)

    async def list(self, request: Request) -> Response:
        name = function_name(request)
        self._worker.functions.info(name)
        return respond(json_answer([self._described(url) for url in self._worker.urls.all_of(name)]))

    async def put(self, request: Request) -> Response:
        name, qualifier = function_name(request), request.query_params.get("qualifier", "")
        wanted = await read_json(request, UrlSettings, _MAX_BODY_BYTES, "the settings of a URL: {error}")
        if not self._enabled:
            raise BadRequest("this worker serves no function URLs: function_urls.enabled = false")
        if wanted.auth == "AWS_IAM" and not self._keys:
            raise BadRequest(
                'no client could sign for this URL: add a key to the worker\'s configuration, [lambda_api.keys] NAME = "SECRET"'
            )
        if qualifier and not ALIAS.fullmatch(qualifier):
            raise BadRequest("a URL is of a function, or of an alias: a version has none of its own")
        self._worker.functions.details(name, qualifier)
        urls = self._worker.urls
        with contextlib.suppress(NoSuchUrl):
            old = urls.of(name, qualifier)
            auth, mode, cors = wanted.auth or old.auth, wanted.mode or old.mode, wanted.cors or old.cors
            return respond(json_answer(self._described(await urls.update(old, auth=auth, mode=mode, cors=cors))))
        auth, mode = wanted.auth or "NONE", wanted.mode or "BUFFERED"
        return respond(
            json_answer(self._described(await urls.create(name, qualifier, auth=auth, mode=mode, cors=wanted.cors)))
        )

    async def delete(self, request: Request) -> Response:
        name, qualifier = function_name(request), request.query_params.get("qualifier", "")
        self._worker.functions.info(name)
        await self._worker.urls.delete(name, qualifier)
        return respond(json_answer({"removed": name}))

    def _described(self, url: FunctionUrl) -> dict[str, Any]:
        return {
            **msgspec.to_builtins(url),
            "url": self._names.url(url.id, self._worker.url),
            "path_url": f"{self._worker.url}/url/{url.id}/",
        }
