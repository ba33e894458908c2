"""A request that is refused by its head: the answer does not wait for its body, which is dropped."""

from __future__ import annotations

from sockd.base.errors import SockdError
from sockd.base.request_ids import new_request_id, request_id_text
from sockd.http.server.connection import Connection
from sockd.http.server.exchange import Exchange
from sockd.http.server.messages.answers import failure
from sockd.http.server.messages.head import Head
from sockd.http.server.states import Payload


class Refused(Exchange):
    """One such request."""

    payload = Payload.DROPPED

    def __init__(self, connection: Connection, head: Head, error: SockdError) -> None:
        super().__init__(connection, head)
        self._error = error

    def on_body(self, data: bytes) -> None:
        """Nothing of it is kept."""

    def refuse(self, error: SockdError) -> None:
        """Do nothing: the request is refused already."""

    async def run(self) -> None:
        self.answer(failure(self._error, request_id_text(new_request_id())))
