"""One run: a guest, its region, its RPCs and the link to the app, from `start` to the report.

Owns all of them; each is given back by the time that `done` has a result. It may be made and begun in the thread that then
is its guest's; apart from that everything here is the loop's, but for `live` and the two methods of `Ending`.

    started ─ guest runs ──────────── guest ended ─ messages flushed ─ region unmapped ─┐
       │         │ app gone, cancel,                                                    ├─ app gone or cancelled ─ done
       │         ╰ deadline: stopped, then as above                                     │
       ╰ record-only: no guest, the link only ─────────────────────────────────────────╯

A guest's end does not end the run: the app reports what it reads until it hangs up, and those reads are in the report.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from sockd_initscripts.engine.alarm import Alarm
from sockd_initscripts.engine.app_link import AppLink
from sockd_initscripts.engine.calls import Calls, Input, socket_of
from sockd_initscripts.engine.checks import Checks
from sockd_initscripts.engine.connections import Connections, Connector
from sockd_initscripts.engine.guest import Guest, GuestTemplate, Verdict
from sockd_initscripts.engine.guest_cpu import SLOW_NS, GuestCpu, until_tick_s
from sockd_initscripts.engine.messages import Inbox, Outbox
from sockd_initscripts.engine.rpcs import Rpcs
from sockd_initscripts.engine.signals import LoopCalls, Waiting
from sockd_initscripts.limits import Budget
from sockd_initscripts.region import Region
from sockd_initscripts.report import AppRead, Outcome, RpcRecord, RunReport
from sockd_storage_lib.sockd_initscript.wire import WireError

READS_LIMIT = 10_000
READS_LIMIT_BYTES = 1 << 20
"""The most bytes of what the reads name: the engine keeps them until the app hangs up, and a report has room for less."""


class RunRequest(msgspec.Struct, kw_only=True):
    """What starts a run."""

    id: int
    function: int
    """The id of its Definition."""
    input: bytes | int
    """The event; an fd of a memfd that is the run's to close."""
    app: socket.socket
    """The engine's end of the app link; the run's to close."""
    arrived_ns: int = 0
    request: str = ""
    """The invocation's id, for people."""
    known: tuple[tuple[str, ...], ...] = ()
    """Descriptors of RPCs whose replies the function has."""


class Run:
    """One run; made by `Engine.start`."""

    def __init__(self, request: RunRequest, budget: Budget, calls: LoopCalls, static_args: bytes | None = None) -> None:
        self.id = request.id
        self.done: asyncio.Future[RunReport] = calls.loop.create_future()
        self.region = Region(budget.region_bytes)
        self.verdict = Verdict()
        self._request = request
        self._budget = budget
        self._calls = calls
        self._waiting = Waiting()
        self._link = AppLink(request.app, calls, self)
        self._inbox = Inbox(self._waiting)
        self._outbox = Outbox(budget, self._link)
        self._checks = Checks(self._link, self._outbox)
        self._dialer: Connector | None = None
        self._input = Input(request.input)
        self._given = self._input if static_args is None else Input(static_args)
        self._connections: Connections | None = None
        self._rpcs: Rpcs | None = None
        self._host: Calls | None = None
        self._guest: Guest | None = None
        self._template: GuestTemplate | None = None
        self._on_abort: Callable[[Run], None] | None = None
        self._on_guest_end: Callable[[Sequence[str]], None] | None = None
        self._reads: list[AppRead] = []
        self._reads_room = READS_LIMIT_BYTES
        self._reads_are_cut = False
        self._is_released = False
        self._tidying: asyncio.Task[None] | None = None
        self._rpc_records: list[RpcRecord] = []
        self._started_ns = 0
        self._ended_ns = 0
        self._deadline_s = math.inf

    @property
    def is_lingering(self) -> bool:
        """Whether all that it waits for is the app's last word."""
        return self._guest is None and self._is_released

    @property
    def is_recording(self) -> bool:
        """Whether it has no guest; before that has ended."""
        return self._guest is None

    def record(self) -> None:
        """On the loop: there is no guest, only hear what the app reads. The verdict says so already."""
        self._link.open()
        self._say_end()  # or the app would give a script a moment to begin

    def refuse(self, outcome: Outcome, message: str) -> None:
        """On the loop: there will be no guest; tell the app and be done."""
        self.verdict.set(outcome, message=message)
        self._ended_ns = time.monotonic_ns()
        self._link.open()
        self._say_end()
        self._link.close()
        self._finish()

    def begin(
        self,
        template: GuestTemplate,
        dialer: Connector,
        addresses: Iterable[str],
        *,
        on_abort: Callable[[Run], None],
        on_guest_end: Callable[[Sequence[str]], None],
    ) -> None:
        """There will be a guest: `live` is its life, for a thread to run.

        Args: addresses: where to connect to before the guest asks; on_guest_end: hears where it asked for."""
        self._template = template
        self._dialer = dialer
        self._on_abort = on_abort
        self._on_guest_end = on_guest_end
        shared = (self._budget, self._link, self._calls, self._waiting)
        self._connections = Connections(dialer, *shared)
        self._rpcs = Rpcs(self._connections, self.region, *shared, self._request.known)
        self._connections.connect_ahead(addresses)
        self._host = Calls(self._given, self.region, self._connections, self._rpcs, self._outbox, self._inbox, self)
        self._guest = Guest(template, self._host, self.verdict, self._calls, self._waiting)
        self._link.open()

    def live(self, alarm: Alarm) -> None:
        """In a guest's thread, once, after `begin`: all of the guest's life."""
        assert self._guest is not None and self._template is not None
        try:
            now_s = time.monotonic()
            self._deadline_s = now_s + self._budget.deadline_s
            alarm.set(min(self._budget.deadline_s, until_tick_s(now_s)), self._look)
            self._guest.run()
            alarm.clear()
        finally:
            self.verdict.set(
                "trap", message="engine: no alarm could be set"
            )  # unless it has one, as every guest that ran
            self._calls.post(self._guest_ended)
        if self.verdict.outcome in ("exit", "cancelled"):
            # This thread is not waited for now.
            try:
                self._template.prepare()
            except Exception:  # the next guest meets the same, and says so in its report
                return

    def cancel(self) -> None:
        """End it now, whatever it does; the report follows, with all that the app said before."""
        self._link.hear_out()
        self._link.close()
        if self._guest is not None:
            self._stop("cancelled", "by the daemon")
        else:
            self._finish()

    # -- Ending, in the guest's thread

    def guest_exits(self, status: int) -> None:
        """See calls.Ending."""
        self.verdict.set("exit", status)

    def guest_aborts(self, status: int, message: str) -> None:
        """See calls.Ending. The daemon is notified before the guest has ended: nothing else of the launch is of use."""
        if self.verdict.set("abort", status, message):
            assert self._on_abort is not None
            self._calls.post(self._on_abort, self)

    # -- AppEvents

    def app_said(self, message: dict[str, Any], payload: bytes, fd: int | None) -> None:
        """See app_link.AppEvents."""
        if message["op"] == "connection" and fd is not None:
            self._app_gives_connection(message, fd)
            return
        if fd is not None:
            os.close(fd)
        match message["op"]:
            case "message":
                self._inbox.put_message(message["id"], payload)
            case "check":
                self._checks.begin(message["id"], self._dialer)
            case "read":
                self._app_read(message)
            case op:
                raise WireError(f"the app sent {op!r}")

    def app_gone(self) -> None:
        """See app_link.AppEvents."""
        self._inbox.app_gone()
        if self._guest is not None:
            self._stop("cancelled", "the app has gone")
        else:
            self._finish()

    # --

    def _app_gives_connection(self, message: dict[str, Any], fd: int) -> None:
        sock = socket_of(fd)
        if sock is None:
            return
        if self._guest is None:
            sock.close()
            return
        try:
            self._inbox.put_connection(message["id"], sock, message["addr"])
        except WireError:
            sock.close()
            raise

    def _app_read(self, message: dict[str, Any]) -> None:
        try:
            read = msgspec.convert(message, AppRead)
        except msgspec.ValidationError as error:
            raise WireError(str(error)) from error
        size = len(read.served) + len(read.why) + sum(map(len, read.rpc)) + 50 * len(read.rpc)
        if len(self._reads) >= READS_LIMIT or size > self._reads_room:
            self._reads_are_cut = True
            return
        self._reads_room -= size
        self._reads.append(read)

    def _stop(self, outcome: Outcome, message: str) -> None:
        """Make the guest's thread come back, wherever it is."""
        assert self._template is not None and self._rpcs is not None
        self.verdict.set(outcome, message=message)
        self._waiting.stop()
        self._rpcs.stop()
        self._template.machine.interrupt()

    def _look(self) -> float:
        """See how much time the guest has taken, and stop it if that is too much; in how many seconds to look again."""
        now_s = time.monotonic()
        if self._guest is None or self._template is None:
            return math.inf
        if self.verdict.outcome is not None:
            # It may just have seen that it may go on, and have missed that the epoch was raised for this verdict.
            self._template.machine.interrupt()
            return until_tick_s(now_s)
        if now_s >= self._deadline_s:
            self._stop("deadline", "over its deadline")
        elif self._guest.cpu is not None:
            self._look_at(self._guest.cpu)
        return min(until_tick_s(now_s), max(self._deadline_s - now_s, 0))

    def _look_at(self, cpu: GuestCpu) -> None:
        assert self._template is not None
        used_ns = cpu.used_ns()
        if used_ns >= self._budget.cpu_ms * 1_000_000:
            self._stop("cpu", f"over its {self._budget.cpu_ms} ms of processor time")
        elif used_ns >= SLOW_NS and not cpu.is_slow:
            cpu.slow_down()
            self._template.machine.interrupt()

    def _guest_ended(self) -> None:
        assert self._guest and self._rpcs and self._connections and self._on_guest_end
        guest, self._guest = self._guest, None
        self._started_ns, self._ended_ns = guest.started_ns, guest.ended_ns
        self._on_guest_end(self._connections.addresses)
        self._waiting.stop()
        self._rpcs.stop()
        self._inbox.close()
        self._input.close()
        self._say_end()
        self._tidying = asyncio.get_running_loop().create_task(self._tidy(self._rpcs, self._connections))

    async def _tidy(self, rpcs: Rpcs, connections: Connections) -> None:
        """The transports let go; then, as soon as the app has been sent everything, the memory does."""
        await rpcs.close()
        await connections.close()
        self._rpc_records = rpcs.records()
        self._is_released = True
        if self._link.is_closed:
            self._finish()
        else:
            self._link.when_sent(self.region.close)

    def _say_end(self) -> None:
        assert self.verdict.outcome is not None
        self._link.send({"op": "end", "outcome": self.verdict.outcome, "status": self.verdict.status})

    def _finish(self) -> None:
        """The guest is over and the app is gone."""
        if self.done.done() or not (self._is_released or self._rpcs is None):
            return
        self._checks.stop()
        self.region.close()
        self._input.close()
        self.done.set_result(self._report())

    def _report(self) -> RunReport:
        assert self.verdict.outcome is not None
        return RunReport(
            run=self.id,
            outcome=self.verdict.outcome,
            status=self.verdict.status,
            message=self.verdict.message,
            arrived_ns=self._request.arrived_ns,
            started_ns=self._started_ns,
            ended_ns=self._ended_ns or time.monotonic_ns(),
            region_bytes=self.region.charged_bytes,
            rpcs=self._rpc_records,
            messages=self._outbox.records(),
            reads=self._reads,
            log=self._log(),
            cut=self._reads_are_cut,
        )

    def _log(self) -> str:
        """What the guest logged, and what it could not connect to."""
        if self._host is None or self._connections is None:
            return ""
        return self._host.log_text + "".join(f"engine: {refusal}\n" for refusal in self._connections.refusals)
