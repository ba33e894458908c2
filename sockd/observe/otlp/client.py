"""The exporter as the daemon knows it: a bounded pipe into a process that speaks to the collector.

Owns that process. Nothing here waits for it but `aclose`: what does not fit into the pipe's buffer is lost, and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections import deque
from collections.abc import Mapping
from importlib.util import find_spec

import msgspec

from sockd.base.config import OtlpConfig
from sockd.base.errors import BadConfig
from sockd.base.extras import installing
from sockd.linux.processes import oom_score
from sockd.observe.otlp.wire import MAX_FRAME_BYTES, Finished, Tally, encode
from sockd.observe.traces import Trace
from sockd.starts.packages.uv import confinement

SEND_S = 0.2
REPORT_S = 2.0
"""How long an invocation waits for its initscript's report, which comes after its answer."""
BYTES_PER_INVOCATION = 1024
"""For the bound of what waits here; a frame has some 300 bytes, with a report up to 128 KB."""
MAX_FILE_BYTES = 1 << 40
"""The process writes to no file but the daemon's own log, if that is one."""
RESTART_S = 5.0
_PASSED = frozenset(
    (
        *("PATH", "HOME", "LANG", "LC_ALL", "ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "PYTHONPATH", "TZ"),
    )
)
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_log = logging.getLogger(__name__)


class SpanExport:
    """`add` on the way of a request; `aclose` sends what is left."""

    def __init__(self, config: OtlpConfig, environment: Mapping[str, str]) -> None:
        """Args: environment: the exporter's."""
        self._config = config
        self._environment = environment
        self._limit_bytes = config.queue * BYTES_PER_INVOCATION
        self._threshold = int(config.sample * (1 << 56))
        self._loop = asyncio.get_running_loop()
        self._ready: list[bytes] = []
        self._ready_bytes = 0
        self._waiting: deque[tuple[float, Trace]] = deque()
        """Traces that wait for their initscript, and until when."""
        self._timer: asyncio.TimerHandle | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._running: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._began_s = -RESTART_S
        self._closed = False
        self._sent = 0
        """To the process that there is."""
        self.lost = 0
        """Invocations that did not fit into the pipe, or were in a process that ended."""
        self._before = Tally()
        self._now = Tally()

    @classmethod
    def of(cls, config: OtlpConfig, environ: Mapping[str, str] = os.environ) -> SpanExport | None:
        """An exporter, if the configuration or the environment asks for one. Raises: BadConfig."""
        if not 0 <= config.sample <= 1:
            raise BadConfig(f"otlp.sample is {config.sample}, and should be from 0 to 1")
        switched_off = (
            environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
        )
        asked = config.endpoint or (not switched_off and any(environ.get(name) for name in _ENDPOINTS))
        if not asked:
            return None
        if not is_installed():
            missing = f"spans are not exported: OpenTelemetry is not installed ({installing('otel')})"
            if config.endpoint:
                raise BadConfig(missing)
            _log.warning("%s", missing)
            return None
        return cls(config, environment_of(config, environ))

    def samples(self, trace_id: bytes) -> bool:
        """Whether a trace that begins here is recorded: the same for all who are asked about it."""
        return int.from_bytes(trace_id[9:]) < self._threshold  # the last 56 bits are random (Trace Context, level 2)

    def add(self, trace: Trace) -> None:
        """Export an invocation, some time."""
        if trace.run is not None and not trace.run.done.done():
            if len(self._waiting) >= self._config.queue:
                self.lost += 1
                return
            self._waiting.append((self._loop.time() + REPORT_S, trace))
        else:
            self._encode(trace)
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(SEND_S, self._send)

    def counts(self) -> dict[str, float]:
        """Invocations by what became of them, for the metrics."""
        before, now = self._before, self._now
        return {
            "exported": before.exported + now.exported,
            "failed": before.failed + now.failed,
            "dropped": before.dropped + now.dropped + self.lost,
        }

    async def aclose(self) -> None:
        """Send what is left, wait for that as long as `flush_s` says, and end the process."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            async with asyncio.timeout(self._config.flush_s):
                await self._flush()
        except TimeoutError:
            _log.warning("the last spans could not be exported within otlp.flush_s")
        finally:
            self.lost += len(self._ready)
            if self._running is not None:
                self._running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._running

    async def _flush(self) -> None:
        """The last of all to the process, which then ends when it has sent them."""
        self._send(last=True)
        if self._running is not None and self._process is None:
            await self._started.wait()
            self._send(last=True)
        if self._process is None or self._running is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.drain()
        self._process.stdin.close()
        await self._running

    # -- the pipe

    def _encode(self, trace: Trace) -> None:
        encoded = trace.run.encoded if trace.run is not None else b""
        if trace.run is not None:
            trace = msgspec.structs.replace(trace, run=None)
        frame = encode(Finished(trace, encoded))
        if self._ready_bytes + len(frame) > self._limit_bytes or len(frame) > MAX_FRAME_BYTES:
            self.lost += 1
            return
        self._ready.append(frame)
        self._ready_bytes += len(frame)

    def _send(self, last: bool = False) -> None:
        """Give the pipe what is ready, as far as it takes it."""
        self._timer = None
        now_s = self._loop.time()
        for _ in range(len(self._waiting)):
            until_s, trace = self._waiting.popleft()
            if last or until_s <= now_s or (trace.run is not None and trace.run.done.done()):
                self._encode(trace)
            else:
                self._waiting.append((until_s, trace))
        if self._ready and self._running is None and now_s - self._began_s >= RESTART_S:
            self._began_s = now_s
            self._started.clear()
            self._running = self._loop.create_task(self._run())
        stdin = self._process.stdin if self._process is not None else None
        if stdin is not None and not stdin.transport.is_closing():
            # While the process does not take them they wait here, up to the limit.
            has_room = stdin.transport.get_write_buffer_size() + self._ready_bytes <= self._limit_bytes
            if has_room:
                stdin.write(b"".join(self._ready))
                self._sent += len(self._ready)
                self._ready.clear()
                self._ready_bytes = 0
        if (self._ready or self._waiting) and not self._closed:
            self._timer = self._loop.call_later(SEND_S, self._send)

    async def _run(self) -> None:
        """One process, from its start to its end; what it says is read. Cancelled, it is killed."""
        process: asyncio.subprocess.Process | None = None
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *confinement(MAX_FILE_BYTES),
                *(sys.executable, "-BP", "-m", "sockd.observe.otlp", str(self._config.queue)),
                env=dict(self._environment),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,
            )
            oom_score.expose(process.pid)
            self._started.set()
            assert process.stdout is not None
            while line := await process.stdout.readline():
                self._now = msgspec.json.decode(line, type=Tally)
            await process.wait()
        except (OSError, msgspec.DecodeError) as error:
            _log.warning("spans cannot be exported: %s", error)
        finally:
            self._started.set()
            self._process = self._running = None
            before, now = self._before, self._now
            self._before = Tally(
                before.exported + now.exported, before.dropped + now.dropped, before.failed + now.failed
            )
            self.lost += max(self._sent - now.exported - now.dropped - now.failed, 0)
            self._now, self._sent = Tally(), 0
            if process is not None and process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
            if not self._closed:
                _log.warning("the process that exports spans has ended; another one is started when there are spans")


def is_installed() -> bool:
    """Whether the extra `otel` is there."""
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def environment_of(config: OtlpConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """The exporter's environment, from the daemon's: OpenTelemetry's variables, proxies and certificates."""
    chosen = {name: value for name, value in environ.items() if name.upper() in _PASSED or name.startswith("OTEL_")}
    if config.endpoint:
        chosen.pop(_ENDPOINTS[0], None)
        chosen[_ENDPOINTS[1]] = config.endpoint
    return chosen
