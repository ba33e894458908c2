"""The operations on function URLs: one for each function, and one for each of its aliases.

Owns nothing. The URLs are `sockd.functions.registry.function_urls`'s; what a client gets of one stands here.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from sockd.base.config import Config
from sockd.base.function_arns import arn
from sockd.functions.registry.aliases import LATEST
from sockd.functions.registry.aliases import NAME as ALIAS
from sockd.functions.registry.function_url import Auth, Cors, FunctionUrl, Mode, NoSuchUrl
from sockd.http.aws import shapes
from sockd.http.aws.errors import InvalidParameterValue, ResourceNotFound
from sockd.http.aws.names import function_named
from sockd.http.aws.operations import Call, Changes, Result, Table, page
from sockd.http.aws.routes import Operation
from sockd.http.url_names import UrlNames
from sockd.http.worker import Worker


class UrlSettings(shapes.Shape):
    """CreateFunctionUrlConfig and UpdateFunctionUrlConfig."""

    auth_type: Auth | None = None
    invoke_mode: Mode | None = None
    cors: Cors | None = None


class UrlOperations:
    """Create, read, update, delete."""

    def __init__(self, worker: Worker, changes: Changes, config: Config) -> None:
        self._worker = worker
        self._changes = changes
        self._names = UrlNames(config.function_urls.domain)
        self._enabled = config.function_urls.enabled

    def table(self) -> Table:
        """As `Operations.table`."""
        return {
            Operation.CREATE_FUNCTION_URL_CONFIG: self._create,
            Operation.GET_FUNCTION_URL_CONFIG: self._get,
            Operation.UPDATE_FUNCTION_URL_CONFIG: self._update,
            Operation.DELETE_FUNCTION_URL_CONFIG: self._delete,
            Operation.LIST_FUNCTION_URL_CONFIGS: self._list,
        }

    async def _create(self, call: Call) -> Result:
        name, qualifier = self._named(call)
        wanted = shapes.parse(call.body, UrlSettings)
        if not self._enabled:
            raise InvalidParameterValue("this worker serves no function URLs (function_urls.enabled)")
        if wanted.auth_type is None:
            raise InvalidParameterValue("AuthType must be NONE or AWS_IAM")
        with self._changes.of(name):
            self._worker.functions.details(name, qualifier)
            url = await self._worker.urls.create(
                name, qualifier, auth=wanted.auth_type, mode=wanted.invoke_mode or "BUFFERED", cors=wanted.cors
            )
        answer = self._config(url)
        del answer["LastModifiedTime"]
        return 201, answer

    async def _get(self, call: Call) -> Result:
        return 200, self._config(self._url(call))

    async def _update(self, call: Call) -> Result:
        wanted = shapes.parse(call.body, UrlSettings)
        with self._changes.of(self._named(call)[0]):
            old = self._url(call)
            cors = old.cors if wanted.cors is None else wanted.cors
            if cors == Cors():
                cors = None  # what clients send to be rid of it
            url = await self._worker.urls.update(
                old, auth=wanted.auth_type or old.auth, mode=wanted.invoke_mode or old.mode, cors=cors
            )
        return 200, self._config(url)

    async def _delete(self, call: Call) -> Result:
        name, qualifier = self._named(call)
        with self._changes.of(name):
            self._url(call)
            await self._worker.urls.delete(name, qualifier)
        return 204, None

    async def _list(self, call: Call) -> Result:
        name, _ = self._named(call)
        self._worker.functions.details(name)
        shown, more = page(call, self._worker.urls.all_of(name), lambda url: url.qualifier or LATEST)
        return 200, {"FunctionUrlConfigs": [self._config(url) for url in shown], **more}

    def _named(self, call: Call) -> tuple[str, str]:
        """A function, and an alias of it or nothing. Raises: ResourceNotFound, InvalidParameterValue."""
        name, qualifier = function_named(call.segment, call.parameter("Qualifier"))
        if qualifier is not None and not ALIAS.fullmatch(qualifier):
            raise InvalidParameterValue(
                "Qualifier: a URL is of a function or of an alias; leave out $LATEST and numbers"
            )
        return name, qualifier or ""

    def _url(self, call: Call) -> FunctionUrl:
        try:
            return self._worker.urls.of(*self._named(call))
        except NoSuchUrl:
            raise ResourceNotFound("The resource you requested does not exist.") from None

    def _config(self, url: FunctionUrl) -> dict[str, Any]:
        """A FunctionUrlConfig."""
        answer: dict[str, Any] = {
            "FunctionUrl": self._names.url(url.id, self._worker.url),
            "FunctionArn": arn(url.name) + (f":{url.qualifier}" if url.qualifier else ""),
            "AuthType": url.auth,
            "InvokeMode": url.mode,
            "CreationTime": _iso(url.created_at),
            "LastModifiedTime": _iso(url.updated_at),
        }
        if url.cors is not None:
            answer["Cors"] = msgspec.to_builtins(url.cors)
        return answer


def _iso(time_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time_s)) + f".{int(time_s * 1000) % 1000:03}Z"
