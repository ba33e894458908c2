"""A worker with one protection taken away, to prove that the suite sees it: python -m tests.support.broken NAME up ...

The product has no switch for any of this. A protection of the daemon's own is patched in this process before the daemon
is built; one of its children's is replaced in a copy of `zygote/` that the base gets instead of the real one.
"""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sockd.base.errors import SandboxFailed
from sockd.functions.registry import sqlite_store
from sockd.http import front, replays, sandbox_front
from sockd.http.access import basic_keys, keys, signatures
from sockd.http.access.host_check import HostCheck
from sockd.http.aws import access
from sockd.http.server.messages import body
from sockd.images.caches import fetcher, l2_client, lru_k, node_store, slab
from sockd.images.registry import destinations, image
from sockd.isolation.farm import uids, zygote
from sockd.isolation.networks import resolver
from sockd.isolation.roots import base
from sockd.isolation.sandbox import channel, deadline, output, process
from sockd.linux import allocator, mounts, procfs, readiness, syscalls
from sockd.linux.bpf import assembler, packet_guard
from sockd.linux.cgroups import leaf, tree
from sockd.linux.confined.confined_process import ConfinedProcess, Ground
from sockd.linux.processes import pidfds, task_shares
from sockd.linux.seccomp import seccomp
from sockd.linux.seccomp.compiler import compile_filter
from sockd.linux.syscall_table import NUMBERS
from sockd.observe import log_segments
from sockd.starts import sources
from sockd.starts.packages import built_names
from sockd.starts.templates import template_maker, templates, used_templates
from sockd.starts.zygotes import selection, zygote_tree
from sockd.starts.zygotes.learning import canary
from sockd.starts.zygotes.top_levels import sharing, soundness
from sockd.starts.zygotes.verification import verifier
from sockd.starts.zygotes.zygote_node import ZygoteNode
from sockd_zygote import protocol

BREAKS: dict[str, Callable[[], None]] = {}
"""What `sockd selftest --broken NAME` may name."""
IN_TESTS: set[str] = set()
"""The protections that the process of the tests lacks as well: their cases start no worker."""

Break = Callable[[], None]


def breaks(name: str, *, in_tests: bool = False) -> Callable[[Break], Break]:
    """Register a function that takes the protection `name` away."""

    def register(function: Break) -> Break:
        BREAKS[name] = function
        if in_tests:
            IN_TESTS.add(name)
        return function

    return register


def copied_zygote() -> Path:
    """Have sandboxes run a copy of zygote/, whose directory this is; it goes with this process."""
    (zygote,) = [bind.source for bind in base.plan(Path("/")) if bind.target == base.ZYGOTE]
    copy = Path(tempfile.mkdtemp(prefix="sockd-broken-")) / "sockd_zygote"
    atexit.register(shutil.rmtree, copy.parent, ignore_errors=True)
    copy.parent.chmod(0o755)
    shutil.copytree(zygote, copy, ignore=shutil.ignore_patterns("__pycache__"))
    original = base.plan

    def plan(packages: Path, prefix: str = "", ours: tuple[Path, Path] | None = None) -> tuple[base.Bind, ...]:
        return tuple(
            replace(bind, source=str(copy)) if bind.target == base.ZYGOTE else bind
            for bind in original(packages, prefix, ours)
        )

    base.plan = plan
    return copy


def patch_zygote(file: str, old: str, new: str) -> Path:
    """Have sandboxes run a copy of zygote/ in which each match of a pattern in a file is replaced; the copy's directory.

    Raises: AssertionError when there is none: the code has changed, and this break with it."""
    copy = copied_zygote()
    text, count = re.subn(old, new, (copy / file).read_text(), flags=re.MULTILINE)
    assert count, f"{file} has no {old!r}"
    (copy / file).write_text(text)
    return copy


def patch_native(file: str, old: str, new: str) -> None:
    """The same for a file of zygote/native, compiled anew. Needs a C compiler."""
    copy = patch_zygote(f"native/{file}", old, new)
    (library,) = copy.glob("_native*.so")
    sources = map(str, sorted((copy / "native").glob("*.c")))
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", include, *sources, "-o", str(library)], check=True)


# -- groups A, B, C


@breaks("no-seccomp")
def no_seccomp() -> None:
    """Every call of a handler reaches the kernel."""
    everything = compile_filter(list(NUMBERS), checks={})
    seccomp.root_filter = seccomp.sandbox_filter = seccomp.zygote_filter = lambda *_: everything  # type: ignore[assignment]


@breaks("shared-stdin")
def shared_stdin() -> None:
    """A child keeps its Zygote's open file description of /dev/null."""
    patch_native("confine.c", r"^    must\((close\(0\)|open\(\"/dev/null\").*$", "")


@breaks("package-namespaces")
def package_namespaces() -> None:
    """A Zygote may clone a network namespace beside those of a fork."""
    forks = seccomp._ZYGOTE_FORKS
    seccomp._ZYGOTE_FORKS = (*forks, *(flags | syscalls.CLONE_NEWNET for flags in forks))  # type: ignore[assignment]


@breaks("no-port-guard")
def no_port_guard() -> None:
    """Sandboxes bind any port."""
    tree.CgroupTree.guard_ports = lambda self: None  # type: ignore[method-assign]


@breaks("no-packet-guard")
def no_packet_guard() -> None:
    """Packets of sandboxes go where their source routes lead."""
    packet_guard.refuse_packets = lambda *maps: assembler.leave(1)


@breaks("any-listener")
def any_listener() -> None:
    """A web server's requests go to any process that listens on its port."""
    patch_zygote("handlers/web_server.py", r"if found is not None and self\._listener\.find\(\) == found:", "if True:")


@breaks("any-function")
def any_function() -> None:
    """Functions with a private network that may call one function may call all."""
    sandbox_front.SandboxFront.check_caller = front.Front.check_caller  # type: ignore[method-assign]


@breaks("no-socket-limit")
def no_socket_limit() -> None:
    """Sandboxes have as many sockets as they like."""
    tree.CgroupTree.count_sockets = lambda self, most=0: None  # type: ignore[method-assign]


@breaks("kept-memory")
def kept_memory() -> None:
    """Bodies lie in the heap among small blocks, which is as glibc manages it, and is never trimmed."""
    allocator.return_large_blocks = lambda: None
    body.IN_PIECES_BYTES = 1 << 40
    allocator.HeapTrim.is_due = lambda self: False  # type: ignore[method-assign]


@breaks("long-turns")
def long_turns() -> None:
    """All frames that have come are handled in one turn of the loop."""
    channel.FRAMES_PER_TURN = 1 << 30  # type: ignore[attr-defined]


@breaks("long-frames")
def long_frames() -> None:
    """A frame of any kind may have any length."""
    kinds = protocol.sandbox_limits(0)
    protocol.sandbox_limits = lambda max_answer_bytes: dict.fromkeys(kinds, 1 << 30)


@breaks("open-fds")
def open_fds() -> None:
    """A handler inherits what its Zygote holds: its root's directory, the cgroup's files, the control socket."""
    patch_native("confine.c", r"^    close_between\(moved.*$", "")


@breaks("shared-uid")
def shared_uid() -> None:
    """All children of a Zygote have one uid."""
    uids.UidBlock.take_uid = lambda self: self._zero + 1  # type: ignore[method-assign]
    uids.UidBlock.give_back_uid = lambda self, uid: None  # type: ignore[method-assign]


@breaks("capabilities")
def capabilities() -> None:
    """A handler keeps all capabilities over its own user namespace, and may gain more."""
    pattern = r"^    must\((drop_bounding_set|lock_securebits|set_capabilities)\(0?\).*$"
    patch_native("confine.c", pattern, "")


@breaks("writable-root")
def unsealed_root() -> None:
    """The base, and so each sandbox's root, is not sealed."""
    mounts.seal = mounts.replace_by_sealed = lambda target: None


@breaks("shared-changes")
def shared_changes() -> None:
    """The changes of all sandboxes to files of their images lie in one place."""
    place: list[int] = []
    new = mounts.new_overlay

    def overlay(lower: int | str, upper: int | str, work: int | str) -> int:
        if not place:
            place.extend(
                os.open(each, os.O_RDONLY) if isinstance(each, str) else os.dup(each) for each in (upper, work)
            )
        return new(lower, *place)

    mounts.new_overlay = overlay


@breaks("host-proc")
def host_proc() -> None:
    """Every sandbox has the daemon's /proc."""

    def new(self: procfs.Procfs, pidfd: int, *, only_own: bool = False) -> int:
        return syscalls.open_tree(syscalls.AT_FDCWD, "/proc", recursive=False)

    procfs.ByNamespace.new = procfs.ByChild.new = new  # type: ignore[method-assign]


@breaks("shared-ipc")
def shared_ipc() -> None:
    """Sandboxes share the farm's System V objects and message queues."""
    patch_native("fork.c", r" \| CLONE_NEWIPC", "")
    seccomp._ZYGOTE_FORKS = tuple(flags & ~seccomp.CLONE_NEWIPC for flags in seccomp._ZYGOTE_FORKS)  # type: ignore[assignment]


@breaks("host-network")
def host_network() -> None:
    """`network = "none"` is ignored."""
    patch_native("network.c", r"setns\(\w+, CLONE_NEWNET\)", "0")


@breaks("cgroup-files")
def cgroup_files() -> None:
    """A Zygote with packages is given the files with which a process is put into a cgroup."""
    original = zygote.Zygote._make_child

    async def make_child(self: zygote.Zygote, *given: Any, **fields: Any) -> zygote.Child:
        is_root, self._is_root = self._is_root, True
        try:
            return await original(self, *given, **fields)
        finally:
            self._is_root = is_root

    zygote.Zygote._make_child = make_child  # type: ignore[method-assign]


# -- group D


@breaks("no-pids-limit")
def no_pids_limit() -> None:
    """A sandbox may have as many processes as the machine."""
    leaf.Cgroup.set_pids = lambda self, tasks: None  # type: ignore[method-assign]


@breaks("no-task-shares")
def no_task_shares() -> None:
    """The sandboxes of one function may have all processes and threads of the worker."""
    task_shares.TaskShare.take = lambda self, wanted: task_shares.TaskGrant(self, wanted)  # type: ignore[method-assign]


@breaks("no-memory-limit")
def no_memory_limit() -> None:
    """A sandbox may have all of the machine's memory."""
    leaf.Cgroup.set_memory = lambda self, limit_bytes: None  # type: ignore[method-assign]


@breaks("no-tmp-limit")
def no_tmp_limit() -> None:
    """/tmp has neither a size nor a number of files."""
    new = mounts.new_tmp
    mounts.new_tmp = lambda *, size_bytes, inodes: new(size_bytes=0, inodes=0)


# -- group P


@breaks("shares-by-subset")
def shares_by_subset() -> None:
    """A Zygote serves every function that has its packages: SOCK's rule, and no other."""
    soundness.CLAUSES = soundness.CLAUSES[:1]
    verifies_nothing()


@breaks("verifies-nothing")
def verifies_nothing() -> None:
    """A Zygote serves whatever the rule lets it, and none is compared with a start of the function's own before."""
    verifier.Verifier.unverified = lambda self, node, view: ""  # type: ignore[method-assign]


@breaks("names-unobserved")
def names_unobserved() -> None:
    """The rule does not know which names imports look up: what that lets through, verification is to find."""
    take_clause(soundness._names_looked_up)


@breaks("variables-unobserved")
def variables_unobserved() -> None:
    """The rule does not know which variables imports read."""
    take_clause(soundness._variables_read)


def take_clause(clause: soundness.Clause) -> None:
    """Neither the rule nor the plans for Zygotes compare one kind of observation."""
    soundness.CLAUSES = tuple(each for each in soundness.CLAUSES if each is not clause)
    soundness.OBSERVATIONS = tuple(each for each in soundness.OBSERVATIONS if each is not clause)


def without_clause(clause: soundness.Clause) -> None:
    """The rule does not compare one kind of observation, and no verification makes up for it."""
    take_clause(clause)
    verifies_nothing()


for _clause in soundness.CLAUSES:
    breaks(f"without{_clause.__name__}")(partial(without_clause, _clause))


@breaks("without_modules_loaded")
def without_modules_loaded() -> None:
    """Nothing compares the modules: neither the rule, which compares them import by import, too, nor the choice of a node, which
    repeats this clause for speed."""
    without_clause(soundness._modules_loaded)
    take_clause(soundness._whole_imports)

    def any_node(nodes: Iterable[ZygoteNode], wanted: frozenset[str], *rest: Any) -> ZygoteNode:
        every = list(nodes)
        return selection.best_node(every, wanted.union(*(node.imports for node in every)), *rest)

    zygote_tree.best_node = any_node  # type: ignore[attr-defined, assignment]


@breaks("plans-by-subset")
def plans_by_subset() -> None:
    """A plan for a Zygote is whatever two functions have in common."""
    sharing.Sharing.closed = lambda self, wanted, ours, theirs: wanted & ours & theirs  # type: ignore[method-assign]


# -- group N


@breaks("separate-queries", in_tests=True)
def separate_queries() -> None:
    """Each function that waits for a name has the nameserver asked."""
    code = f"""
import asyncio
from {resolver.MODULE} import ResolverProcess, main
ResolverProcess._ask_nameservers = lambda self, name, kind: self._nameservers.ask(name, kind)
asyncio.run(main())
"""
    start = ConfinedProcess.start

    async def start_broken(ground: Ground, *arguments: str, **given: Any) -> ConfinedProcess:
        if arguments[:2] == ("-m", resolver.MODULE):
            arguments = ("-c", code, *arguments[2:])
        return await start(ground, *arguments, **given)

    ConfinedProcess.start = start_broken  # type: ignore[method-assign]


# -- groups E, F


@breaks("no-canary")
def no_canary() -> None:
    """A new Zygote serves without one fork of it having been tried."""

    async def try_nothing(*args: object, **deadline: float) -> None:
        return

    canary.try_out = try_nothing  # type: ignore[assignment]


@breaks("no-reseed")
def no_reseed() -> None:
    """Generators that a package made in a Zygote go on from there in each of its forks."""
    patch_zygote("forks/hygiene.py", r"^        mend\(\)$", "        pass")


@breaks("late-deadlines")
def late_deadlines() -> None:
    """A sandbox has twelve times as long as its function's timeout: later than a busy machine explains."""
    set_ = deadline.Deadline.set
    deadline.Deadline.set = lambda self, delay_s, passed: set_(self, 12 * delay_s, passed)  # type: ignore[method-assign]


# -- group K


@breaks("keys-reach-all")
def keys_reach_all() -> None:
    """A key may invoke every function."""
    check = keys.Key.check

    def check_others(self: keys.Key, right: keys.Right, function: str | None) -> None:
        if right != "invoke":
            check(self, right, function)

    keys.Key.check = check_others  # type: ignore[method-assign]


@breaks("any-address", in_tests=True)
def any_address() -> None:
    """A registry may have an import connect to any address."""
    destinations.Destinations.refusal = lambda *_: ""  # type: ignore[method-assign]


@breaks("one-log", in_tests=True)
def one_log() -> None:
    """No function has a share of the kept logs: the oldest records go first, whichever function printed them."""
    log_segments.fair_share = lambda sizes, limit: 0 if sum(sizes) > limit else limit


@breaks("any-configuration", in_tests=True)
def any_configuration() -> None:
    """The configuration of an image may have any size."""
    image.ImageConfig.excess = lambda self: ""  # type: ignore[method-assign]


@breaks("any-modules", in_tests=True)
def any_modules() -> None:
    """A package that was built may hold modules of others."""
    built_names.module_of_another = lambda closure, provided: ""


@breaks("passed-on-keys")
def passed_on_keys() -> None:
    """A function gets the key that a browser knows for the page."""
    basic_keys.BasicKeys.withhold = lambda self, head: None  # type: ignore[method-assign]


@breaks("borrowed-pidfd")
def borrowed_pidfd() -> None:
    """Who waits for a process's end watches the sandbox's own pidfd, which may be closed meanwhile."""

    async def wait_exited(pidfd: int, deadline_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                await readiness.readable(pidfd)

    pidfds.wait_exited = pidfds.wait_status = wait_exited


# -- group G


@breaks("no-lock")
def no_lock() -> None:
    """A daemon does not lock its state directory."""
    fcntl.flock = lambda fd, operation: None


@breaks("no-sweep")
def no_sweep() -> None:
    """A start leaves the cgroups of a dead daemon where they are; a stop removes its own as ever."""
    destroy_all = tree.CgroupTree.destroy_all

    def first(self: tree.CgroupTree, deadline_s: float) -> None:
        tree.CgroupTree.destroy_all = destroy_all  # type: ignore[method-assign]

    tree.CgroupTree.destroy_all = first  # type: ignore[method-assign]


@breaks("late-commit")
def late_commit() -> None:
    """A deploy is answered while the registry's transaction is open: only a stop writes it."""

    @contextmanager
    def transaction(self: sqlite_store.SqliteStore) -> Iterator[None]:
        if not self._database.in_transaction:
            self._database.execute("BEGIN IMMEDIATE")
        yield

    async def aclose(self: sqlite_store.SqliteStore) -> None:
        if self._database.in_transaction:
            self._database.execute("COMMIT")
        self._database.close()

    sqlite_store.SqliteStore._transaction = transaction  # type: ignore[method-assign]
    sqlite_store.SqliteStore.aclose = aclose  # type: ignore[method-assign]


@breaks("nothing-undone")
def nothing_undone() -> None:
    """What the first steps of making a sandbox have taken is not given back when a later one fails."""

    class NothingUndone(ExitStack):
        def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
            if kind is not None:
                self.pop_all()
            return super().__exit__(kind, error, trace)

    process.ExitStack = NothingUndone  # type: ignore[assignment, attr-defined]


# -- group H


@breaks("no-host-check", in_tests=True)
def no_host_check() -> None:
    """Whatever name a request uses for this host is right."""
    HostCheck.allows = lambda self, header: True  # type: ignore[method-assign]


@breaks("no-signatures")
def no_signatures() -> None:
    """AWS's API believes what an unsigned request says."""
    access.Access.check_head = lambda self, operation, headers: None  # type: ignore[method-assign]
    signatures.Signatures.check = lambda self, request, body: None  # type: ignore[method-assign]


@breaks("no-replays")
def no_replays() -> None:
    """Who asks again is another one who asks."""

    async def once(
        self: replays.Replays, key: Any, body: Any, run: Callable[[], Awaitable[Any]], *, strict: bool, gone: Any = None
    ) -> Any:
        return await run()

    replays.Replays.once = once  # type: ignore[method-assign]


# -- group I: a probe of the chunk caches, or a cache node (tests/support/chunk_probe.py)


@breaks("no-parity")
def no_parity() -> None:
    """A chunk is read from the four nodes with its data alone."""
    slots = l2_client.L2Client._slots
    l2_client.L2Client._slots = lambda self, name: slots(self, name)[:4]  # type: ignore[method-assign]


@breaks("believes-nodes")
def believes_nodes() -> None:
    """What was joined from stripes is not verified."""
    l2_client.is_named = lambda *_, **__: True  # type: ignore[attr-defined]


@breaks("no-single-flight")
def no_single_flight() -> None:
    """Each thread that misses a chunk fetches it."""

    class Unshared(dict[bytes, Any]):
        def get(self, key: bytes, default: Any = None) -> Any:
            return None

        def __delitem__(self, key: bytes) -> None:
            self.pop(key, None)

    original = fetcher.Fetcher.__init__

    def init(self: fetcher.Fetcher, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._running = Unshared()

    fetcher.Fetcher.__init__ = init  # type: ignore[method-assign]


@breaks("trusts-l1")
def trusts_l1() -> None:
    """What an earlier process left in the file of L1 is served as it is."""
    slab.Slab._verified = lambda self, key, slot: self._read(key, slot, 0, slot.size)  # type: ignore[method-assign]


@breaks("plain-lru")
def plain_lru() -> None:
    """A cache evicts the least recently used, however often it was used."""
    lru_k.Lru2._victim = lambda self: min(self._last, key=self._last.__getitem__)  # type: ignore[method-assign]


@breaks("endless-node")
def endless_node() -> None:
    """A cache node keeps in memory whatever it is sent."""

    def hold(self: node_store.NodeStore, key: bytes, framed: node_store.Framed) -> None:
        self._held[key] = framed

    node_store.NodeStore._hold = hold  # type: ignore[method-assign]


# -- group T: snapshots


@breaks("any-thread")
def any_thread() -> None:
    """A template serves although its init has left a thread, which no fork has."""
    patch_zygote("template.py", r"refused = \[\*running_threads\.complaints\(\)\]", "refused = []")


@breaks("same-numbers")
def same_numbers() -> None:
    """Forks of a template go on with its generators."""
    patch_zygote("forks/hygiene.py", r"^        mend\(\)$", "        pass")


@breaks("live-connections")
def live_connections() -> None:
    """Forks of a template share the connections of its init."""
    patch_zygote("forks/parked.py", r"if stat\.S_ISSOCK\(.*\):", "if False:")


@breaks("unread-output")
def unread_output() -> None:
    """What an init prints in a template stays in its pipe; the init is given up soon."""
    template_maker.LEAST_DEADLINE_S = 3.0

    class Unread(output.Output):
        def start(self, *_: Any) -> None:
            return

    template_maker.Output = Unread  # type: ignore[attr-defined]


@breaks("endless-restore")
def endless_restore() -> None:
    """A start from a template may take as long as the init of the function."""
    sources.RESTORE_S = template_maker.RESTORE_S = 600.0  # type: ignore[attr-defined]


@breaks("no-next-source")
def no_next_source() -> None:
    """A start whose template fails is asked of no other source."""

    async def fail(*_: Any) -> Any:
        raise SandboxFailed("its template has failed")

    sources.Starts._without_template = fail  # type: ignore[method-assign,assignment]


@breaks("never-again")
def never_again() -> None:
    """A template that has ended is not made again."""
    templates.MOST_LOSSES = -1


@breaks("public-template")
def public_template() -> None:
    """Each version with a snapshot is started from the first template that there is."""
    templates.Templates.of = lambda self, program: next(iter(self.serving()), None)  # type: ignore[method-assign]


@breaks("forgets-uses")
def forgets_uses() -> None:
    """A worker does not know which templates the one before it has used."""
    used_templates.read = lambda path: []


def main() -> None:
    """`sockd` itself, after the break."""
    from sockd.client.cli.main import main as sockd_main

    BREAKS[sys.argv.pop(1)]()
    sockd_main()


if __name__ == "__main__":
    main()
