"""ASGI 3: a request as a scope and messages, on one event loop that lives as long as the sandbox, as does the app's lifespan.

The body comes whole. WebSockets never arrive: the APIs refuse them.
"""

from __future__ import annotations

import asyncio

from sockd_zygote.handlers.apps import App, PromisedLength, Request
from sockd_zygote.messages.errors import StartupFailed
from sockd_zygote.messages.outlet import Outlet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSIONS = {"version": "3.0", "spec_version": "2.3"}
SHUTDOWN_S = 1.0
"""How long an app's shutdown may take."""


class Asgi(App):
    """An ASGI app, started."""

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._runner = asyncio.Runner()
        self._lifespan = Lifespan(app)
        try:
            self._runner.run(self._lifespan.start())
        except BaseException:
            self._runner.close()
            raise

    def answer(self, request: Request, outlet: Outlet) -> None:
        self._runner.run(self._answer(request, outlet))

    def close(self) -> None:
        with self._runner:
            self._runner.run(self._lifespan.stop())

    async def _answer(self, request: Request, outlet: Outlet) -> None:
        exchange = Messages(request, outlet)
        loop = asyncio.get_running_loop()
        loop.add_reader(outlet.channel, exchange.look)
        try:
            await self.app(scope(request, self._lifespan.state), exchange.receive, exchange.send)
        finally:
            loop.remove_reader(outlet.channel)
        exchange.finish()


class Messages:
    """The two callables of one request."""

    def __init__(self, request: Request, outlet: Outlet) -> None:
        self._body: bytes | None = request.body
        self._length = PromisedLength(request)
        self._outlet = outlet
        self._over = asyncio.Event()
        """The answer is complete, or its client has gone."""
        self._started = False

    def look(self) -> None:
        """Something has come on the channel."""
        self._outlet.look()
        if self._outlet.gone:
            asyncio.get_running_loop().remove_reader(self._outlet.channel)
            self._over.set()

    async def receive(self) -> dict[str, Any]:
        if self._body is not None and not self._over.is_set():
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Raises: ClientGone; RuntimeError, if it is not this message's turn, or the body is too short; ValueError: HTTP has
        no such head."""
        kind = message["type"]
        if kind == "http.response.start" and not self._started:
            status, headers = int(message["status"]), [(text(n), text(v)) for n, v in message.get("headers", ())]
            self._outlet.head(status, headers)
            self._length.promise(status, headers)
            self._started = True
        elif kind == "http.response.body" and self._started and not self._outlet.is_complete:
            body, is_last = bytes(message.get("body", b"")), not message.get("more_body", False)
            self._length.give(len(body))
            if is_last:
                self._length.check()
            self._outlet.chunk(body, is_last=is_last)
            if is_last:
                self._over.set()
            elif self._outlet.begun:
                await asyncio.sleep(0)  # let others of the app's tasks go on, as a server that waits would
            else:
                self._outlet.flush()
        elif not self._outlet.is_complete:
            raise RuntimeError(f"unexpected ASGI message {kind!r:.80}")

    def finish(self) -> None:
        """The app has returned. Raises: RuntimeError, if its answer is not complete."""
        if not self._outlet.is_complete and not self._outlet.gone:
            raise RuntimeError("the ASGI app returned without completing its answer")


class Lifespan:
    """The app's own startup and shutdown. An app that has none raises at the word, or returns."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.state: dict[str, Any] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises: StartupFailed."""
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        task = asyncio.ensure_future(self._run())
        message = await self._ask("lifespan.startup", task)
        if message is None:
            return
        if message["type"] != "lifespan.startup.complete":
            raise StartupFailed(str(message.get("message", "")) or "the ASGI app's startup failed")
        self._task = task

    async def stop(self) -> None:
        """Let a started app shut down."""
        if self._task is not None and not self._task.done():
            await asyncio.wait_for(self._ask("lifespan.shutdown", self._task), SHUTDOWN_S)

    async def _ask(self, kind: str, task: asyncio.Future[None]) -> dict[str, Any] | None:
        """What the app says to a message; None: it has ended instead."""
        self._messages.put_nowait({"type": kind})
        said = asyncio.ensure_future(self._said.get())
        await asyncio.wait((said, task), return_when=asyncio.FIRST_COMPLETED)
        if not said.done():
            said.cancel()
            task.exception()  # it was looked at: an app without a lifespan raises whatever it likes
            return None
        return said.result()

    async def _run(self) -> None:
        await self._app({"type": "lifespan", "asgi": VERSIONS, "state": self.state}, self._messages.get, self._say)

    async def _say(self, message: dict[str, Any]) -> None:
        """The app's answer. Raises: RuntimeError: it takes its lifespan for a request, so it has none."""
        if not message["type"].startswith("lifespan."):
            raise RuntimeError(f"{message['type']} in a lifespan")
        await self._said.put(message)


def scope(request: Request, state: dict[str, Any]) -> dict[str, Any]:
    """The connection scope; paths include `root_path`, as servers have agreed on."""
    path = request.path_bytes().decode(errors="replace")
    root_path = request.root_path.encode("latin-1").decode(errors="replace")
    return {
        "type": "http",
        "asgi": VERSIONS,
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": root_path + path,
        "raw_path": (request.root_path + request.raw_path).encode("latin-1"),
        "query_string": request.query.encode("latin-1"),
        "root_path": root_path,
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers],
        "client": tuple(request.client),
        "server": tuple(request.server),
        "state": state.copy(),
    }


def text(value: bytes | str) -> str:
    return value if isinstance(value, str) else bytes(value).decode("latin-1")
