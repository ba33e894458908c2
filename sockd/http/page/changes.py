"""Changes from the page: retry of a dead letter, rollback, disabling and enabling of a function; their buttons and outcomes.

`access` checks permission. A token holds for one change of one thing in one state: a rollback's for the last deploy, so that a
page that was loaded before another deploy does not undo that one. Owns nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from sockd.http.page import words
from sockd.http.page.access import PageAccess
from sockd.http.page.forms import read_fields
from sockd.http.page.sources import PageSources
from sockd.http.page.views import Values
from sockd.http.worker import Worker

FUNCTION_ACTIONS = ("rollback", "disable", "enable")
MAX_FORM_BYTES = 4 << 10
_log = logging.getLogger("sockd.http")


class Changes:
    """The changes of one worker."""

    def __init__(self, worker: Worker, sources: PageSources, access: PageAccess) -> None:
        self._worker = worker
        self._sources = sources
        self._access = access

    async def buttons(self, request: Request, name: str) -> Values:
        """What the buttons of a function's page need. Raises: NoSuchFunction."""
        is_disabled = self._worker.functions.info(name).concurrency == 0
        action, target = "enable" if is_disabled else "disable", self._sources.rollback_target(name)
        if not await self._access.may_change(request):
            return {"may_change": False, "switch": None, "rollback": None, "is_disabled": is_disabled}
        rollback = None
        if target is not None:
            token = self._access.change_token("rollback", self._state("rollback", name))
            rollback = {**shown_deploy(target), "token": token}
        switch = {"action": action, "token": self._access.change_token(action, name)}
        return {"may_change": True, "switch": switch, "rollback": rollback, "is_disabled": is_disabled}

    async def with_retry(self, request: Request, rows: list[Values]) -> list[Values]:
        """Rows of events with the tokens of their buttons; empty: it has no button."""
        may = any(row["is_dead"] for row in rows) and await self._access.may_change(request)
        tokens = (self._access.change_token("retry", row["id"]) if may and row["is_dead"] else "" for row in rows)
        return [{**row, "retry_token": token} for row, token in zip(rows, tokens, strict=True)]

    async def change_function(self, request: Request, action: str, name: str) -> Values:
        """Change a function. Raises: KeyNeeded, PageForbidden; what the change raises. Returns: the values of `changed.html`."""
        self._worker.functions.info(name)
        await self._check(request, action, name, self._state(action, name))
        if action == "rollback":
            before = self._sources.rollback_target(name)
            made = shown_deploy(await self._sources.rollback(name))
            said = f"Deploy {made['deploy']} has the code {made['code']}"
            text = f"{said} of deploy {before['deploy']}." if before is not None else f"{said}."
            return {"title": "Rolled back", "text": text, "function": name, "event": ""}
        if action == "disable":
            await self._worker.functions.disable(name)
            text = "It refuses every request with status 429 until it is enabled; those that were running end as usual."
            return {"title": "Disabled", "text": text, "function": name, "event": ""}
        await self._worker.functions.enable(name)
        text = f"It serves {words.many(self._worker.functions.info(name).concurrency, 'request')} at once."
        return {"title": "Enabled", "text": text, "function": name, "event": ""}

    async def retry(self, request: Request, event_id: str) -> Values:
        """Have a dead letter run again. Raises: KeyNeeded, PageForbidden, NoSuchEvent. Returns: as `change_function`."""
        await self._check(request, "retry", event_id, event_id)
        event = await self._sources.event(event_id)
        await self._sources.retry(event_id)
        text = "It waits for its turn, as if it had been accepted now."
        return {"title": "To run again", "text": text, "function": event["function"], "event": event_id}

    async def _check(self, request: Request, action: str, target: str, state: str) -> None:
        (token,) = await read_fields(request, ("token",), MAX_FORM_BYTES)
        await self._access.check_change(request, action, state, token)
        _log.info("from the page: %s %s", action, target)

    def _state(self, action: str, name: str) -> str:
        """What a token of a change of a function is for."""
        return f"{name} {self._sources.versions(name)['latest']}" if action == "rollback" else name


def shown_deploy(deploy: Mapping[str, Any]) -> Values:
    """A deploy as the page names it."""
    return {
        "deploy": str(deploy["deploy"]),
        "code": deploy["digest"][:12],
        "deployed": words.day(deploy["deployed_at"]),
    }
