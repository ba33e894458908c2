"""An engine for tests of scripts: the ABI over a dict of objects, in this thread, with a record of what was asked.

Replies are there as soon as they are waited for. Nothing is measured here, and nothing refused that the real one would
refuse but for what a test sets: that is the engine's own tests' affair.
"""

from __future__ import annotations

import errno
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.sax.saxutils import escape

import wasmtime

from sockd_initscripts.engine import abi, modules

Objects = Mapping[tuple[str, str], bytes]
"""(bucket, key) → content."""


class Ended(Exception):
    """The guest called exit or abort_launch."""


@dataclass
class FakeEngine:
    """Runs one module once."""

    objects: Objects
    event: bytes
    page_keys: int = 1000
    """How many keys a page of a LIST holds."""
    services: Mapping[str, Callable[[str, bytes], bytes]] = field(default_factory=dict)
    """Replies of other addresses than s3:, by address."""
    broken: frozenset[int] = frozenset()
    """RPCs that end with ECONNRESET."""
    rpcs: int = 1000

    addresses: list[str] = field(default_factory=list)
    sent: dict[int, list[str]] = field(default_factory=dict)
    """Descriptors by rpc_id, in the order of sending."""
    sent_before_waiting: int = 0
    messages: dict[int, tuple[list[str], int, bytes]] = field(default_factory=dict)
    """Descriptor, status, content by msg_id."""
    outcome: str = ""
    status: int = 0
    text: str = ""
    _replies: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    _buffers: list[tuple[list[str], int, bytes]] = field(default_factory=list)
    _waited: bool = False

    def run(self, wasm: bytes) -> FakeEngine:
        """Run it to its end; a trap is a wasmtime.Trap."""
        module = _compiled(wasm)
        linker = wasmtime.Linker(module.engine)
        for name in abi.FUNCTIONS:
            linker.define_func(
                abi.IMPORT_MODULE, name, modules.signature(name), getattr(self, f"_{name}"), access_caller=True
            )
        store = wasmtime.Store(module.engine)
        instance = linker.instantiate(store, module.module)
        boot = instance.exports(store)["boot"]
        assert isinstance(boot, wasmtime.Func)
        self.outcome = "exit"
        try:
            boot(store)
        except Ended:
            pass
        return self

    def reads(self) -> list[list[str]]:
        """What the function would be served, in the order of its numbers."""
        assert sorted(self.messages) == list(range(len(self.messages)))
        return [self.messages[number][0] for number in sorted(self.messages)]

    # -- the functions of the ABI

    def _connect(self, caller: wasmtime.Caller, addr: int, addr_len: int) -> int:
        self.addresses.append(_read(caller, addr, addr_len).decode())
        return len(self.addresses) - 1

    def _send_rpc(
        self, caller: wasmtime.Caller, conn: int, rpc: int, method: int, method_len: int, body: int, body_len: int
    ) -> int:
        if not 0 <= conn < len(self.addresses):
            return -errno.EBADF
        if rpc in self.sent:
            return -errno.EEXIST
        if len(self.sent) >= self.rpcs:
            return -errno.EDQUOT
        if not self._waited:
            self.sent_before_waiting += 1
        self._answer(
            rpc, self.addresses[conn], _read(caller, method, method_len).decode(), _read(caller, body, body_len)
        )
        return 0

    def _send_rpc_buf(self, *_: object) -> int:
        return -errno.EOPNOTSUPP

    def _recv_rpc_reply(self, caller: wasmtime.Caller, conn: int, rpc: int, out: int) -> int:
        self._waited = True
        if rpc not in self._replies:
            return -errno.ENOENT
        if rpc in self.broken:
            return -errno.ECONNRESET
        status, content = self._replies[rpc]
        self._buffers.append((self.sent[rpc], status, content))
        _write(caller, out, abi.REPLY.pack(len(self._buffers), status, len(content)))
        return 0

    def _buf_read(self, caller: wasmtime.Caller, handle: int, off: int, dst: int, n: int) -> int:
        content = self._buffers[handle - 1][2][off : off + n]
        _write(caller, dst, content)
        return len(content)

    def _send_msg(self, caller: wasmtime.Caller, msg: int, handle: int, off: int, length: int) -> int:
        if msg in self.messages:
            return -errno.EEXIST
        rpc, status, content = self._buffers[handle - 1]
        self.messages[msg] = (rpc, status, content[off : off + length])
        return 0

    def _send_bytes(self, caller: wasmtime.Caller, msg: int, ptr: int, length: int) -> int:
        self.messages[msg] = ([], 0, _read(caller, ptr, length))
        return 0

    def _send_file(self, caller: wasmtime.Caller, msg: int, handle: int) -> int:
        self.messages[msg] = self._buffers[handle - 1]
        return 0

    def _recv_msg(self, *_: object) -> int:
        return -errno.EPIPE

    _transfer_conn = _get_conn = _recv_msg

    def _input_len(self, caller: wasmtime.Caller) -> int:
        return len(self.event)

    def _input_read(self, caller: wasmtime.Caller, off: int, dst: int, n: int) -> int:
        content = self.event[off : off + n]
        _write(caller, dst, content)
        return len(content)

    def _log(self, caller: wasmtime.Caller, level: int, ptr: int, length: int) -> None:
        self.text += _read(caller, ptr, length).decode()

    def _now_ns(self, caller: wasmtime.Caller) -> int:
        return 1

    def _exit(self, caller: wasmtime.Caller, status: int) -> None:
        self.status = status
        raise Ended

    def _abort_launch(self, caller: wasmtime.Caller, status: int, ptr: int, length: int) -> None:
        self.outcome, self.status, self.text = "abort", status, _read(caller, ptr, length).decode()
        raise Ended

    # -- the services

    def _answer(self, rpc: int, address: str, method: str, body: bytes) -> None:
        if address != "s3:":
            name = method if address in ("sqs:", "dynamodb:") else address
            self.sent[rpc] = [f"{address.partition(':')[0]}.{method}", body.decode() if name == method else name]
            self._replies[rpc] = (200, self.services[address](method, body))
            return
        fields = json.loads(body)
        bucket = fields["bucket"]
        if method == "ListObjectsV2":
            token, *rare = (fields.get(name, "") for name in ("continuation", "delimiter", "max_keys", "start_after"))
            more = [token, *rare] if any(rare) else [token] if token else []
            self.sent[rpc] = ["s3.ListObjectsV2", bucket, fields["prefix"], *more]
            self._replies[rpc] = (200, self._page(bucket, fields["prefix"], int(token) if token.isdigit() else 0))
            return
        more = [fields["range"]] if "range" in fields else []
        self.sent[rpc] = [f"s3.{method}", bucket, fields["key"], *more]
        content = self.objects.get((bucket, fields["key"]))
        self._replies[rpc] = (404, b"<Error/>") if content is None else (200, content)

    def _page(self, bucket: str, prefix: str, first: int) -> bytes:
        keys = listed(self.objects, bucket, prefix)
        shown = keys[first : first + self.page_keys]
        contents = "".join(f"<Contents><Key>{escape(key)}</Key><ETag>&quot;0&quot;</ETag></Contents>" for key in shown)
        behind = first + len(shown)
        token = f"<NextContinuationToken>{behind}</NextContinuationToken>" if behind < len(keys) else ""
        return f"<ListBucketResult><Prefix>{escape(prefix)}</Prefix>{token}{contents}</ListBucketResult>".encode()


class _Module(NamedTuple):
    engine: wasmtime.Engine
    module: wasmtime.Module


@functools.cache
def _compiled(wasm: bytes) -> _Module:
    config = wasmtime.Config()
    config.memory_init_cow = False  # or each module would keep a memfd
    engine = wasmtime.Engine(config)
    return _Module(engine, wasmtime.Module(engine, wasm))


def listed(objects: Objects, bucket: str, prefix: str) -> list[str]:
    """The keys as a LIST gives them: in the order of their bytes."""
    return sorted((key for name, key in objects if name == bucket and key.startswith(prefix)), key=str.encode)


def _memory(caller: wasmtime.Caller) -> wasmtime.Memory:
    memory = caller["memory"]
    assert isinstance(memory, wasmtime.Memory)
    return memory


def _read(caller: wasmtime.Caller, at: int, length: int) -> bytes:
    at, length = at & 0xFFFF_FFFF, length & 0xFFFF_FFFF
    assert at + length <= _memory(caller).data_len(caller), "a pointer outside of the memory"
    return bytes(_memory(caller).read(caller, at, at + length)) if length else b""


def _write(caller: wasmtime.Caller, at: int, content: bytes) -> None:
    at &= 0xFFFF_FFFF
    assert at + len(content) <= _memory(caller).data_len(caller), "a pointer outside of the memory"
    _memory(caller).write(caller, content, at)
