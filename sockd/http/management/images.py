"""The routes of the management API for container images.

    GET    /images                   those that the worker has
    POST   /images?reference=NAME    an archive: of an OCI layout, or what `docker save` writes
    POST   /images                   {"reference": "registry.example.com/app:1"}, with content-type application/json
    GET    /images/{image}           one of them; a digest, the beginning of one, or a reference
    DELETE /images/{image}
    GET    /images/du                what they take in the chunk store
    POST   /images/gc                ?clear_alarms=true, ?restore=true: after an alarm of the chunk store; ?forget_worker=NAME

A POST of an image streams lines of JSON, as a deploy does. Owns the temporary file of an upload.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sockd.base.notes import Progress
from sockd.http.management.typed_routes import respond, typed_routes
from sockd.http.server.messages.answers import json_answer
from sockd.http.streams import Work
from sockd.http.uploads import read_json, store

MAX_BODY_BYTES = 64 * 1024


class ImagesApi(Protocol):
    """What these routes ask of the worker (`sockd.functions.deploys.images`)."""

    def all(self) -> list[dict[str, Any]]: ...
    def show(self, text: str) -> dict[str, Any]: ...
    async def add(self, reference: str, progress: Progress) -> dict[str, Any]: ...
    def receiving(self) -> contextlib.AbstractAsyncContextManager[None]: ...
    async def add_archive(self, path: Path, reference: str, progress: Progress) -> dict[str, Any]: ...
    async def remove(self, text: str) -> dict[str, Any]: ...
    async def disk_use(self) -> dict[str, Any]: ...
    async def collect(self, *, clear_alarms: bool, restore: bool, forget_worker: str) -> dict[str, Any]: ...


class ImageBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST without an archive."""

    reference: str


def routes(images: ImagesApi, max_archive_bytes: int, tmp: Path) -> list[Route]:
    """The routes, for `Management`."""

    async def list_all(request: Request) -> Response:
        return respond(json_answer(images.all()))

    async def show(request: Request) -> Response:
        return respond(json_answer(images.show(request.path_params["image"])))

    async def add(request: Request) -> ASGIApp:
        if request.headers.get("content-type") == "application/json":
            wanted = await read_json(request, ImageBody, MAX_BODY_BYTES, 'send {{"reference": "NAME"}}: {error}')
            return Work(lambda progress: images.add(wanted.reference, progress), contextlib.ExitStack())
        reference = request.query_params.get("reference", "an upload")
        with contextlib.ExitStack() as stack:
            archive = stack.enter_context(tempfile.NamedTemporaryFile(dir=tmp, suffix=".tar"))
            async with images.receiving():
                await store(request, archive, max_archive_bytes)
            owned = stack.pop_all()
        return Work(lambda progress: images.add_archive(Path(archive.name), reference, progress), owned)

    async def remove(request: Request) -> Response:
        return respond(json_answer(await images.remove(request.path_params["image"])))

    async def disk_use(request: Request) -> Response:
        return respond(json_answer(await images.disk_use()))

    async def collect(request: Request) -> Response:
        wanted = {name: request.query_params.get(name) == "true" for name in ("clear_alarms", "restore")}
        forgotten = request.query_params.get("forget_worker", "")
        return respond(json_answer(await images.collect(**wanted, forget_worker=forgotten)))

    return typed_routes(
        [
            ("GET", "/images", list_all),
            ("POST", "/images", add),
            ("POST", "/images/gc", collect),
            ("GET", "/images/du", disk_use),
            ("GET", "/images/{image:path}", show),
            ("DELETE", "/images/{image:path}", remove),
        ]
    )
