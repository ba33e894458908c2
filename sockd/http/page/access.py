"""Access to the page.

The page shows output of functions, which is private to their owner. Functions on the host's network reach this port, and so do
web pages in local browsers. Pages that functions serve have the same origin as this page. So:

    POLICY: on loopback the page is open to this machine, but not to the uids that functions, Zygotes and initscripts run as,
    not under a name that is not loopback's (`Host`, which the front checks), and not through a proxy, whose clients nothing
    knows. Everywhere else, and on loopback if `page.ask_for_key` says so, it wants a key as HTTP Basic credentials
    (`basic_keys`) that may read all functions, and off loopback it is closed unless `page.enabled` says otherwise.

    POLICY: a test event invokes a function, so it wants more: a token for this one function that stands in its page alone, and a
    request that a browser sends from a page of this origin, or of none (the page in its sandbox). It is not offered where it
    would open what is closed: where `/run` is closed, only a key that may invoke has it.

    POLICY: a change (a retry, a rollback, disabling and enabling) wants what the management API wants. Without a key that is a
    process of root or of a member of `management.group`, by the uid of its connection; otherwise a key that may deploy. Besides,
    a change wants a token for what it changes and the state that it was made for, and a request as a test event's. Who may not
    make it gets neither form nor token.

    POLICY: a browser gets a page to show and not to read: it says which it is (Fetch Metadata), and no script can say so for
    it. Streams of events, for which browsers say no such thing, want a token that stands in the page alone. The page itself
    is out of reach of who opens it (Cross-Origin-Opener-Policy, or a sandbox where browsers do not know that value).

Owns the tokens.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from urllib.parse import urlsplit

from starlette.requests import Request

from sockd.base import uids
from sockd.base.config import Config
from sockd.base.errors import KeyNotEnough, SockdError
from sockd.http.access.basic_keys import BasicKeys
from sockd.http.access.host_check import is_loopback
from sockd.http.access.keys import Key, Keys, Right
from sockd.http.access.managers import Managers
from sockd.http.server.listening.sockets import parse_listen
from sockd.linux.network.socket_owners import owner

PROXIED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")


class KeyNeeded(SockdError):
    """There are no credentials, or wrong ones."""

    status = 401
    error_type = "AccessDeniedException"


class PageForbidden(SockdError):
    """The caller is not permitted to see the page."""

    status = 403
    error_type = "AccessDeniedException"


class PageAccess:
    """The rules of one worker."""

    def __init__(
        self,
        keys: BasicKeys | None,
        *,
        base_uid: int,
        engine_uid: int | None = None,
        managers: Managers | None = None,
    ) -> None:
        """Args: keys: one of them is asked for; None: none is, which is for loopback only. managers: who may make changes without
        a key."""
        self.keys = keys
        self._managers = managers or Managers()
        self._secret = secrets.token_bytes(32)
        self.token = secrets.token_urlsafe(16)
        """What pages give the streams that they open, until the worker ends."""
        self._confined = uids.confined(base_uid, engine_uid)

    @classmethod
    def of(cls, config: Config, keys: Keys) -> PageAccess | None:
        """Return what a configuration says; None: there is no page. Args: keys: those of `sockd keys`."""
        host, _ = parse_listen(config.http.listen)
        here = is_loopback(host)
        if not (here if config.page.enabled is None else config.page.enabled):
            return None
        asks = config.page.ask_for_key or not here
        aws = config.lambda_api
        return cls(
            BasicKeys(aws.keys, keys, aws_deploys=aws.enabled) if asks else None,
            base_uid=config.sandbox.base_uid,
            engine_uid=config.initscripts.uid,
            managers=Managers.of(config.management),
        )

    def check(self, request: Request) -> None:
        """Whether a page may be had. Raises: KeyNeeded, PageForbidden."""
        self._check_who(request)
        wanted_for = request.headers.get("sec-fetch-dest")
        if wanted_for is None and self.keys is not None:
            raise PageForbidden(
                "beyond this machine a browser shows this page over TLS only: put a proxy with it in front. Others send "
                "the header Sec-Fetch-Dest: document"
            )
        if wanted_for not in (None, "document"):
            raise PageForbidden("open this page directly: pages of functions have the same origin and may not read it")

    def check_stream(self, request: Request) -> None:
        """Whether a stream of events may be had. Raises: KeyNeeded, PageForbidden."""
        self._check_who(request)
        if not hmac.compare_digest(request.query_params.get("token", "").encode(), self.token.encode()):
            raise PageForbidden("the worker was restarted: reload this page")

    def test_event_token(self, function: str) -> str:
        """What a function's page gives the form of its test events, until the worker ends."""
        return hmac.digest(self._secret, function.encode(), "sha256").hex()

    def takes_test_events(self, request: Request, *, is_open: bool) -> bool:
        """Return whether a client who may read the page may invoke from it. Args: is_open: everybody may call at /run."""
        return is_open or self._key_may(request, "invoke")

    def check_test_event(self, request: Request, function: str, token: str, *, is_open: bool) -> None:
        """Whether this request may invoke a function; `is_open` as above. Raises: KeyNeeded, PageForbidden."""
        self.check(request)
        if not self.takes_test_events(request, is_open=is_open):
            raise PageForbidden(
                "/run is closed for this function (http.run or its own run), so a test event takes a key that may invoke, on a "
                "page that asks for one: set page.ask_for_key = true, or use `sockd invoke`"
            )
        if not is_of_our_page(request):
            raise PageForbidden("test events must be sent from the page of their function")
        if not hmac.compare_digest(token.encode(), self.test_event_token(function).encode()):
            raise PageForbidden("the worker was restarted: reload this page")

    async def may_change(self, request: Request) -> bool:
        """Return whether the client of a request, who may read the page, may also make changes."""
        if self.keys is not None:
            return self._key_may(request, "deploy")
        uid = uid_of(request)
        return uid == 0 or (uid is not None and await asyncio.to_thread(self._managers.include_uid, uid))

    def change_token(self, action: str, target: str) -> str:
        """What the form of a change has, until the worker ends. Args: target: what is changed, and the state that this is for."""
        # The blank tells it from the token of a test event, which has a function's name alone.
        return hmac.digest(self._secret, f"{action} {target}".encode(), "sha256").hex()

    async def check_change(self, request: Request, action: str, target: str, token: str) -> None:
        """Whether this request may make a change; arguments as above. Raises: KeyNeeded, PageForbidden."""
        self.check(request)
        if not await self.may_change(request):
            raise PageForbidden(
                "changes are for root, for members of management.group, and for keys that may deploy (of lambda_api.keys where "
                "lambda_api.enabled is true): use sockd on the worker's host"
            )
        if not is_of_our_page(request):
            raise PageForbidden("changes must be sent from this worker's page")
        if not hmac.compare_digest(token.encode(), self.change_token(action, target).encode()):
            raise PageForbidden(
                "the worker was restarted, or this was changed meanwhile: reload the page with the button"
            )

    def _check_who(self, request: Request) -> None:
        if self.keys is not None:
            self._check_key(request)
            return
        if any(name in request.headers for name in PROXIED):
            raise PageForbidden(
                "this page is available on this machine only; behind a proxy, set page.ask_for_key = true"
            )
        uid = uid_of(request)
        if uid is None:
            raise PageForbidden(
                "this page is available on this machine only, and the kernel does not know the uid of this connection"
            )
        if any(uid in block for block in self._confined):
            raise PageForbidden("functions may not read the page")

    def _check_key(self, request: Request) -> None:
        """Raises: KeyNeeded, so that a browser asks for another key, where the one that it knows is not enough."""
        key = self._key_of(request)
        if key is None:
            raise KeyNeeded(
                "sign in with a key: any name, and as the password one of `sockd keys add NAME --may read`; or the name and "
                "the secret of one of lambda_api.keys"
            )
        try:
            key.check("read", None)
        except KeyNotEnough as error:
            raise KeyNeeded(f"{error.message}; the page shows all functions: sign in with another key") from None

    def _key_of(self, request: Request) -> Key | None:
        header = request.headers.get("authorization", "").encode("latin-1")
        return self.keys.find(header) if self.keys is not None else None

    def _key_may(self, request: Request, right: Right) -> bool:
        key = self._key_of(request)
        return key is not None and right in key.rights


def uid_of(request: Request) -> int | None:
    """The uid of a client on this machine; None: the kernel does not know it."""
    theirs, ours = request.scope["client"], request.scope["server"]
    return owner(theirs, ours) if theirs and ours else None


def is_of_our_page(request: Request) -> bool:
    """Whether a browser sends this from a page of ours, by what it says of where it comes from; no script can say so for it.

    A page in a sandbox has an origin of its own, "null", as pages in other sandboxes do: the token tells them apart."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    if origin == "null":
        return site in (None, "cross-site")
    if site is not None:
        return site == "same-origin"
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")
