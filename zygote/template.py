"""A template: a Zygote that has run the init of one version of a function, and forks sandboxes of this version alone.

Its init runs where a sandbox's would: in a tree with the version's code, with its variables, its output, its limit of open files
and, if it has one, its network. Then the hooks for before the snapshot run, what no two processes can share is parked
(`sockd_zygote.forks.parked`) or reported, and the process leaves the tree, so that it may fork. No event ever enters it.

A fork has the handler in its memory. `Prepared.begin` is what it does instead of `handler_server.initialize`.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from time import monotonic, monotonic_ns

from sockd_zygote import _native, protocol
from sockd_zygote.forks import children, clocks, hygiene, kept, randomness, running_threads
from sockd_zygote.forks.parked import Parked, numbers
from sockd_zygote.forks.surroundings import OpenFiles, Surroundings
from sockd_zygote.handlers import entry, handler_server, import_hooks, initscript_link, snapshot_hooks, storage_finder
from sockd_zygote.handlers.init_reads import InitReads
from sockd_zygote.messages import errors

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sockd_zygote.handlers.handler import Handler

BEGINS, INIT, HOOKS, CHECK = range(1, 5)
"""One of protocol.TEMPLATE_STAGES."""
TYPE = b"AWS_LAMBDA_INITIALIZATION_TYPE"
ON_DEMAND, SNAP_START = b"on-demand", b"snap-start"
WHO = "init", "init leaves"
SETTLES = 3
"""How often `after_fork` is played through, so that forks find its code specialized."""
MOST_SHOWN = 50


def become(file: int, count: int, tree: int, output: int, network: list[int]) -> int:
    """Run the init that a memory file asks for, and write there what came of it.

    Args: tree, output, network: owned from now on. Returns: the length of the report."""
    function = protocol.decode_init(os.pread(file, count, 0))

    def note(stage: int) -> None:
        os.pwrite(file, protocol.IMPORT_PROGRESS.pack(stage), protocol.IMPORT_MAX_BYTES)

    note(BEGINS)
    _native.separate_growth()
    with Network(network), Output(output), Surroundings(tree), OpenFiles(function["open_files"]):
        outcome = run(function, note)
    report = json.dumps(outcome).encode(errors="replace")
    if len(report) > protocol.IMPORT_REPORT_MAX_BYTES:
        raise ValueError(f"the report of the init has {len(report)} bytes, limit {protocol.IMPORT_REPORT_MAX_BYTES}")
    return os.pwrite(file, report, 0)


def run(function: dict, note: Callable[[int], None]) -> dict:
    """Become the function as far as all of its sandboxes are alike; the report."""
    function["env"] = {**function["env"], TYPE: SNAP_START}
    os.chdir(function["code"])
    gc.enable()  # as in a sandbox
    seeds = randomness.Watch(takes_clocks=True)
    reads = InitReads()
    with children.Ends() as ends, seeds, Finder(seeds):
        left = kept.Kept(WHO)
        own = numbers()
        started = monotonic()
        note(INIT)
        try:
            handler = load(function, reads)
            seconds = monotonic() - started
            note(HOOKS)
            snapshot_hooks.run_before_snapshot()
            reads.end()
        except BaseException as error:  # user code: SystemExit and KeyboardInterrupt are failures like any other
            return {"error": json.loads(errors.describe(error))}
        note(CHECK)
        prepared = Prepared(function, handler)
        parked = prepared.parked = Parked(own)
        refused = [*running_threads.complaints(), *parked.complaints, *left.find(parked)]
    refused += [complaint.replace("an import", "init") for complaint in ends.complaints]
    gc.disable()
    if not _native.settle_atfork():
        refused.append("init registers more handlers with pthread_atfork(3) than can be run")
    if not refused:
        prepared.settle()
    return {
        "seconds": seconds,
        "refused": [complaint[:500] for complaint in refused[:MOST_SHOWN]],
        "closed": prepared.parked.closed[:MOST_SHOWN],
        "notes": seeds.notes[:MOST_SHOWN],
        "reads": reads.rpcs,
        "has_tmp": kept.stays_in_tmp,
    }


def load(function: dict, reads: InitReads) -> Handler:
    """Do what `handler_server.initialize` does for one sandbox. Raises: whatever the function's module raises.

    Args: reads: notes from now on what is read."""
    handler_server.set_environment(function["env"])
    if "settings" in function:
        from sockd_zygote.handlers import interpreter_settings

        interpreter_settings.apply(function["settings"])
    _native.set_title(f"sockd: template of {function['name']}", "sockd-template")
    kept.restore_tmp()
    handler_server.extend_path(function)
    if function.get("storage") == "sockd":
        storage_finder.StorageFinder(storage_finder.DIRECTORY).install()
    if "initscript" in function:  # which each fork has, for the clients of boto3 that the init makes
        storage_finder.serve_clients(function["env"])
    reads.begin()
    if b"AWS_LAMBDA_LOG_FORMAT" in function["env"]:
        from sockd_zygote.messages import log_layout

        log_layout.apply_json()
    handler = entry.open_handler(function)
    import_hooks.lay_out_logs()
    return handler


class Prepared:
    """A function after its init. Lives in the template; each fork has a copy."""

    parked: Parked

    def __init__(self, function: dict, handler: Handler) -> None:
        self._handler = handler
        self._env: dict[bytes, bytes] = function["env"]
        self._collects = gc.isenabled()
        gc.enable()
        self._directory = os.getcwd()
        os.chdir(function["code"])

    def settle(self) -> None:
        """Leave as little as possible for each fork to copy, and have forks begin with what is prepared."""
        is_late = bool(kept.in_tmp) or kept.has_late_files()
        hygiene.with_code[:] = [*([kept.restore_tmp] if is_late else []), *clocks.with_code()]
        hygiene.states[:] = randomness.keep_by_hand()
        hygiene.settle()
        for _ in range(SETTLES):
            hygiene.after_fork()
        handler_server.begin_prepared = self.begin
        _native.fill_gaps()
        _native.join_pages()
        if len(os.listdir("/proc/self/task")) == 1:  # another one's writes could be lost
            _native.part_large(True)

    def begin(self, channel: int, number: int, function: dict, link: int | None, is_spare: bool) -> Handler | None:
        """Do what differs between starts of the function. Answers READY or FAILED. Args: as of `handler_server.initialize`."""
        started = monotonic_ns()
        try:
            _native.limit_open_files(function["open_files"])
            if changed := self._changed(function["env"]):
                handler_server.set_environment(changed)
            _native.set_title(f"sockd: {function['name']}", function["name"])
            if link is not None:
                initscript_link.offer(link)
            if is_spare:
                handler_server.await_code(channel)
                started = monotonic_ns()
            self._restore()
        except (SystemExit, protocol.ProtocolError):
            raise
        except BaseException as error:
            handler_server.end_if_forked(error)
            _native.reply(channel, protocol.FAILED, number, started, monotonic_ns(), errors.describe(error))
            return None
        handler_server.end_if_forked()
        _native.reply(channel, protocol.READY, number, started, monotonic_ns(), self._handler.kind)
        return self._handler

    def _restore(self) -> None:
        """Raises: OSError; ReportedError, of a hook."""
        for restore in hygiene.with_code:
            restore()
        os.chdir(self._directory)
        self.parked.restore()
        if not self._collects:
            gc.disable()
        snapshot_hooks.run_after_restore()

    def _changed(self, env: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Return the variables that INIT has otherwise than the template had them."""
        changed = {name: value for name, value in env.items() if self._env.get(name) != value}
        if changed.get(TYPE) == ON_DEMAND:
            del changed[TYPE]
        return changed


class Output:
    """While it is entered, standard output and error are this pipe. Owns the descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> None:
        for stream in (1, 2):
            os.dup2(self._fd, stream)
        os.close(self._fd)

    def __exit__(self, *_: object) -> None:
        handler_server.flush()
        for stream in (1, 2):
            os.dup2(0, stream)


class Network:
    """While it is entered, this process is in a network namespace, if it was given one. Owns the descriptors."""

    def __init__(self, network: list[int]) -> None:
        self._network = network
        self._home = -1

    def __enter__(self) -> None:
        if self._network:
            self._home = _native.move_up(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
            _native.settle_in_network(self._network[0])

    def __exit__(self, *_: object) -> None:
        if self._home >= 0:
            _native.settle_in_network(self._home)


class Finder:
    """While it is entered, imports ask this finder first."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self._finder)

    def __exit__(self, *_: object) -> None:
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
