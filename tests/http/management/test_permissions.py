"""What each route of the management API requires of a key: the table, and the keyed API that obeys it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response
from starlette.routing import Route

from sockd.base.config import Config
from sockd.events.schedules.schedule_table import Schedule
from sockd.events.schedules.schedules import missing_schedule
from sockd.http.access.keys import RIGHTS, Keys, Right
from sockd.http.management import events as management_events
from sockd.http.management import live
from sockd.http.management import schedules as management_schedules
from sockd.http.management.api import Management
from sockd.http.management.keyed import KeyedManagement
from sockd.http.management.permissions import PERMISSIONS, Permission, Scope
from sockd.http.server.apps.asgi import AsgiApplication
from sockd.http.server.listening.sockets import bind_tcp
from sockd.http.server.server import HttpServer
from sockd.worker.listeners import management_routes
from tests.http.fake_events import FakeEvents
from tests.http.fake_worker import FakeWorker
from tests.http.raw import Raw, Reply, get, raw

pytestmark = pytest.mark.anyio


class Anything:
    """What routes are made of and never ask here."""

    def __getattr__(self, name: str) -> Any:
        return Anything()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys.open(tmp_path / "keys.json")


@asynccontextmanager
async def served(app: AsgiApplication, keys: Keys) -> AsyncIterator[Raw]:
    server = HttpServer(KeyedManagement(app, keys), bind_tcp("127.0.0.1:0"))
    await server.start()
    try:
        async with raw(server.port) as client:
            yield client
    finally:
        await server.aclose(0)


@pytest.fixture
async def api(keys: Keys) -> AsyncIterator[Raw]:
    """In front of an application that would answer everything."""
    async with served(AsgiApplication(Response()), keys) as client:
        yield client


class FakeSchedules:
    """One schedule of `mine` and one of `other`."""

    def __init__(self) -> None:
        self._functions = {"of-mine": "mine", "of-other": "other"}

    def find(self, name: str) -> Schedule | None:
        return self.get(name) if name in self._functions else None

    def get(self, name: str) -> Schedule:
        if name not in self._functions:
            raise missing_schedule(name)
        function = self._functions[name]
        return Schedule(name=name, function=function, expression="rate(5 minutes)", created_at=0.0, next_at=0.0)

    def all(self) -> list[Schedule]:
        return [self.get(name) for name in self._functions]

    async def put(self, name: str, function: str, expression: str, **more: Any) -> Schedule:
        self._functions[name] = function
        return self.get(name)

    async def enable(self, name: str, *, enabled: bool) -> Schedule:
        return self.get(name)

    async def remove(self, name: str) -> None:
        del self._functions[name]


@pytest.fixture
def events() -> FakeEvents:
    """The dead letters 1 and 3 are of `mine`, 2 of `other`, 4 of `next`."""
    events = FakeEvents(lambda name: None)
    events.dead |= {"1": "mine", "2": "other", "3": "mine", "4": "next"}
    return events


@pytest.fixture
async def client(keys: Keys, tmp_path: Path, events: FakeEvents) -> AsyncIterator[Raw]:
    """In front of a worker with the functions `mine`, `next` and `other`."""
    worker = FakeWorker()
    worker.names = {"mine", "next", "other"}
    some_events: Any = events
    schedules: Any = FakeSchedules()
    more = [*management_events.routes(some_events), *management_schedules.routes(schedules, 1000), *live.routes(worker)]
    async with served(Management(worker, Config(), tmp_path, more).app, keys) as client:
        yield client


def ask(method: str, path: str, key: str, body: bytes = b"") -> bytes:
    head, _, _ = get(path, f"Authorization: Bearer {key}", f"Content-Length: {len(body)}", method=method).partition(
        b"\r\n\r\n"
    )
    return head + b"\r\n\r\n" + body


def path_of(template: str) -> str:
    """A path of a route, about the function `mine`."""
    return re.sub(r"{.*?}", "x", template.replace("/functions/{name}", "/functions/mine"))


def test_each_route_has_its_permission(tmp_path: Path) -> None:
    anything: Any = Anything()
    more = management_routes(anything, Config(), Keys(), tmp_path)
    routes = [route for route in Management(FakeWorker(), Config(), tmp_path, more).routes if isinstance(route, Route)]
    found = {(method, route.path) for route in routes for method in (route.methods or ()) if method != "HEAD"}
    assert found == PERMISSIONS.keys()


@pytest.mark.parametrize(("route", "permission"), PERMISSIONS.items(), ids=[" ".join(route) for route in PERMISSIONS])
async def test_a_key_needs_what_the_table_says(
    keys: Keys, api: Raw, route: tuple[str, str], permission: Permission
) -> None:
    method, path = route[0], path_of(route[1])

    async def status(rights: list[Right], *functions: str, query: str = "") -> int:
        text = await keys.add("k", rights, functions)
        reply = await api.ask(ask(method, path + query, text))
        await keys.remove("k")
        return reply.status

    every = list(RIGHTS)
    is_local = permission.scope is Scope.LOCAL
    assert await status(every) == (403 if is_local else 200)
    needed: list[Right] = list(permission.rights) or ["read"]
    for_some = permission.scope is not Scope.WORKER and not is_local
    assert await status(needed, "mine", "also") == (200 if for_some else 403)
    is_open_to_others = permission.scope in (Scope.NARROWED, Scope.ANY_KEY, Scope.ASKED)
    assert await status(every, "other") == (200 if is_open_to_others else 403)
    for right in permission.rights:
        others: list[Right] = [other for other in RIGHTS if other != right]
        assert await status(others) == 403
    if permission.rights_with_query:
        assert await status(needed, query="?values=1") == 403


@pytest.mark.parametrize(
    ("method", "path", "right", "is_enough"),
    [
        ("HEAD", "/functions/mine", "read", True),
        ("POST", "/functions/mine:live/invoke", "invoke", True),
        ("POST", "/functions/mine%3Alive/invoke", "invoke", True),
        ("GET", "/functions%2Fother", "read", False),
        ("PUT", "/functions/keys/aliases/debug", "deploy", False),
        ("OPTIONS", "/functions", "deploy", False),
        ("GET", "/nothing", "read", False),
        ("GET", "/functions/mine/env?%76alues=1", "read", False),
    ],
)
async def test_paths_as_clients_write_them(
    keys: Keys, api: Raw, method: str, path: str, right: Right, is_enough: bool
) -> None:
    text = await keys.add("k", [right], ["mine"])
    assert (await api.ask(ask(method, path, text))).status == (200 if is_enough else 403)


async def test_a_key_for_some_functions_is_shown_no_others(keys: Keys, client: Raw) -> None:
    some, all_of_them = await keys.add("some", ["read"], ["mine", "gone"]), await keys.add("all", ["read"])
    listed = (await client.ask(ask("GET", "/functions", some))).json
    assert [function["name"] for function in listed] == ["mine"]
    assert len((await client.ask(ask("GET", "/functions", all_of_them))).json) == 3
    status = (await client.ask(ask("GET", "/status", some))).json
    assert status.keys() <= {"version", "limits"}
    assert "url" in (await client.ask(ask("GET", "/status", all_of_them))).json


async def test_a_key_for_some_functions_has_their_events(keys: Keys, client: Raw, events: FakeEvents) -> None:
    mine = await keys.add("ci", list(RIGHTS), ["mine"])
    two = await keys.add("two", list(RIGHTS), ["mine", "next"])

    async def reply(method: str, path: str, key: str = mine) -> Reply:
        return await client.ask(ask(method, path, key))

    async def ids(path: str, key: str = mine) -> list[str]:
        return [each["id"] for each in (await reply("GET", path, key)).json]

    assert await ids("/events") == await ids("/events?function=mine") == ["3", "1"]
    assert await ids("/events", two) == ["4", "3", "1"] and await ids("/events?limit=1", two) == ["4"]
    for method, path in (("GET", "/events"), ("DELETE", "/events"), ("POST", "/events/retry")):
        refused = await reply(method, path + "?function=other")
        assert (
            refused.status == 403 and "'ci' is for mine only, and this takes one for 'other'" in refused.body.decode()
        )
    for method, path in (("GET", "/events/%s"), ("DELETE", "/events/%s"), ("POST", "/events/%s/retry")):
        other, unknown = await reply(method, path % 2), await reply(method, path % 99)
        assert (other.status, unknown.status) == (404, 404)
        assert other.json["errorMessage"].replace("2", "99") == unknown.json["errorMessage"]
    assert (await reply("GET", "/events/1")).json["function"] == "mine"
    assert (await reply("POST", "/events/1/retry")).json == {"retried": 1}
    assert (await reply("DELETE", "/events")).json == {"deleted": 1} and events.dead == {"2": "other", "4": "next"}


async def test_a_key_for_some_functions_has_their_schedules(keys: Keys, client: Raw) -> None:
    mine = await keys.add("ci", list(RIGHTS), ["mine"])

    async def reply(method: str, name: str, body: bytes = b"") -> Reply:
        return await client.ask(ask(method, f"/schedules{name}", mine, body))

    def put(function: str) -> bytes:
        return b'{"function": "%b", "expression": "rate(1 hour)"}' % function.encode()

    assert [each["name"] for each in (await reply("GET", "")).json] == ["of-mine"]
    assert (await reply("PUT", "/new", put("mine"))).status == 200
    assert (await reply("PUT", "/new", put("other"))).status == 403
    assert (await reply("PUT", "/of-other", put("mine"))).status == 409
    for method, body in (("PATCH", b'{"enabled": false}'), ("DELETE", b"")):
        assert [(await reply(method, name, body)).status for name in ("/of-other", "/no")] == [404, 404]
        assert (await reply(method, "/of-mine", body)).status == 200
    no_invoke = await keys.add("no-invoke", ["read", "deploy"], ["mine"])
    assert (await client.ask(ask("PUT", "/schedules/x", no_invoke, put("mine")))).status == 403


async def test_a_key_for_some_functions_has_their_traces(keys: Keys, client: Raw) -> None:
    mine = await keys.add("ci", ["read"], ["mine"])
    assert (await client.ask(ask("GET", "/traces?function=mine", mine))).status == 200
    assert (await client.ask(ask("GET", "/traces", mine))).status == 200
    assert (await client.ask(ask("GET", "/traces?function=other", mine))).status == 403
    refused = await client.ask(ask("GET", "/packages", mine))
    assert "for all functions (`sockd keys add` without --function)" in refused.json["errorMessage"]


PATH = "/functions/mine/event-invoke-config"


@pytest.mark.parametrize("side", ["on_success", "on_failure"])
@pytest.mark.parametrize("destination", ["other", "other:1", "arn:aws:lambda:local:000000000000:function:other"])
async def test_a_destination_is_a_function_that_the_key_may_invoke(
    keys: Keys, client: Raw, side: str, destination: str
) -> None:
    body = b'{"%b": "%b"}' % (side.encode(), destination.encode())
    for name, rights, functions in (
        ("of-mine", ["deploy", "invoke", "read"], ["mine"]),
        ("deployer", ["deploy", "read"], []),
    ):
        reply = await client.ask(ask("PUT", PATH, await keys.add(name, rights, functions), body))  # type: ignore[arg-type]
        assert (reply.status, reply.json["errorType"]) == (403, "AccessDeniedException")
        assert f"the destination '{destination}': the key '{name}'" in reply.json["errorMessage"]
    both = await keys.add("both", ["deploy", "invoke", "read"], ["mine", "other"])
    assert (await client.ask(ask("GET", PATH, both))).json == []
    assert (await client.ask(ask("PUT", PATH, both, body))).status == 200


async def test_a_destination_that_another_client_has_set_may_stay(keys: Keys, client: Raw) -> None:
    whole = await keys.add("whole", ["deploy", "invoke"])
    mine = await keys.add("of-mine", ["deploy", "invoke"], ["mine"])
    assert (await client.ask(ask("PUT", PATH, whole, b'{"on_failure": "other"}'))).status == 200
    assert (await client.ask(ask("PUT", PATH, mine, b'{"on_failure": "other", "max_retries": 1}'))).status == 200
    assert (await client.ask(ask("PUT", PATH, mine, b'{"on_success": "other"}'))).status == 403
    directory = b'{"on_success": "directory:done", "on_failure": "other"}'
    assert (await client.ask(ask("PUT", PATH, mine, directory))).status == 200
