"""The process of one sandbox and its kernel resources: cgroup, root, uid, memory, pidfd and pipes.

Owns these, and releases them: the daemon's own at once, uid and memory after the last process has ended. Knows nothing of
functions, requests and the channel's protocol (`sockd.isolation.sandbox.conversation`)."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from sockd.base.errors import OutOfMemory, SandboxDied, SandboxFailed, SockdError
from sockd.isolation.farm.zygote import Child, Zygote
from sockd.isolation.networks.endpoint import Endpoint
from sockd.isolation.networks.policy import Policy
from sockd.isolation.roots.image_base import ImageBase
from sockd.isolation.roots.program import Limits, Program
from sockd.isolation.roots.root import Root
from sockd.isolation.sandbox.memory_budget import Reservation
from sockd.isolation.sandbox.output import Output
from sockd.isolation.sandbox.parts import Parts
from sockd.linux.bpf.socket_counts import NO_FUNCTION
from sockd.linux.cgroups.tree import Cgroup
from sockd.linux.network.network_namespaces import entered
from sockd.linux.processes import pidfds
from sockd.linux.processes.task_shares import TaskGrant

EXIT_GRACE_S = 1.0
"""How long a process whose channel ended may take to exit before it is killed for it."""
PAUSED_SLACK_BYTES = 1 << 20
"""What a paused sandbox's limit leaves above its use."""


@dataclass(eq=False, slots=True)
class SandboxProcess:
    """Made by `fork`; given back by `close`, once."""

    parts: Parts
    zygote: Zygote
    uid: int
    limits: Limits
    cgroup: Cgroup
    output: Output
    sock: socket.socket
    """The channel's end. Its `Channel`, once there is one, closes it."""
    _reservation: Reservation
    _root: Root
    _endpoint: Endpoint | None
    pidfd: int = -1
    network_ns: tuple[int, int] = (0, 0)
    """When its network was asked for, and when it had it (CLOCK_MONOTONIC)."""
    _child: Child | None = None
    _status: int | None = None
    """How it ended (a wait status), once that is known."""
    image: ImageBase | None = None
    """In which it has its root: held until its last process has ended."""
    port: int = 0
    """The port of the host that it was granted; 0: none."""
    grant: TaskGrant | None = None
    """Its part of its function's processes and threads; None: it is a spare, or has no function."""

    @classmethod
    async def fork(
        cls, parts: Parts, zygote: Zygote, limits: Limits, reservation: Reservation, program: Program | None
    ) -> SandboxProcess:
        """A child of `zygote`, which confines itself; it owns the reservation from now on, also on failure.

        Args: program: what it will become; None: a spare.
        Raises: SandboxFailed, NoCapacity, OSError; ImageUnavailable: its image is lost; then everything was given back."""
        with ExitStack() as undo:
            undo.callback(reservation.close)
            asked_ns = time.monotonic_ns()
            endpoint = await zygote.endpoint(limits.network)
            network_ns = asked_ns, time.monotonic_ns()
            if endpoint is not None:
                undo.callback(endpoint.close)
            image = parts.image_of(program)
            if image is not None:
                image.check()
                image.hold()
                undo.callback(image.let_go)
            cgroup = parts.cgroups.take()
            undo.callback(parts.cgroups.give_back, cgroup)
            grant = _grant(program, limits)
            if grant is not None:
                undo.callback(grant.close)
            cgroup.limits.set(limits.memory_bytes, limits.pids if grant is None else grant.tasks, limits.cpus)
            cgroup.sockets.limit(limits.sockets, program.socket_account if program is not None else NO_FUNCTION)
            uid = zygote.users.add_sandbox()
            undo.callback(zygote.users.remove_sandbox, uid)
            root = parts.assembly.create(limits, program, uid=zygote.uids.on_host(uid))
            undo.callback(root.close)
            ends = parts.take_ends()
            undo.callback(ends.close_ours)
            with ExitStack() as theirs:
                theirs.callback(ends.close_theirs)
                process = cls(parts, zygote, uid, limits, cgroup, ends.output, ends.sock, reservation, root, endpoint)
                process.network_ns = network_ns
                process.image = image
                process.grant = grant
                fds = (root.fd, ends.channel_fd, ends.output_fd)
                process._child = await zygote.fork(
                    uid, endpoint, program is None, fds, cgroup.procs_fds, deadline_s=parts.spawn_deadline_s
                )
                process.pidfd = process._child.pidfd
            undo.pop_all()
        root.forked()
        while root.spent:
            parts.release(root.spent.pop())
        return process

    async def mount(self, program: Program | None) -> None:
        """Its /proc, and its code and the rules of its network if these are known; while the process confines itself.

        Not while it is being forked: where processors are few, the Zygote gets one only once this thread waits.

        Raises: SandboxFailed, when the process is gone; OSError."""
        try:
            await self._root.mount_proc(self.pidfd)
        except ProcessLookupError:
            raise SandboxFailed("the sandbox's process died while it was confined") from None
        if self.limits.network == "private":
            self._root.mount_resolv_conf()
        if program is not None:
            self._layer_tmp(self.limits)
            self._root.mount_code(program)
            self._admit(program)

    def hand_over(self, program: Program) -> None:
        """Give a spare the limits and the code of the function that it becomes. Raises: OSError."""
        limits = program.limits
        assert limits.network == self.limits.network
        self._admit(program)
        self.grant = _grant(program, limits)
        self.cgroup.limits.set(
            limits.memory_bytes, limits.pids if self.grant is None else self.grant.tasks, limits.cpus
        )
        self.cgroup.sockets.limit(limits.sockets, program.socket_account)
        if self.zygote.tmp_layer is not None:
            self._layer_tmp(limits)
        elif not limits.same_tmp(self.limits):
            self._root.replace_tmp(limits)
        if program.code is not None:
            self._root.mount_code(program)
        self.limits = limits

    def _layer_tmp(self, limits: Limits) -> None:
        """Have in /tmp what the init of its template has left there, if that is a layer. Raises: OSError."""
        layer = self.zygote.tmp_layer
        if layer is not None:
            self.parts.assembly.layer_tmp(self._root, layer, limits, self.host_uid)
            while self._root.spent:
                self.parts.release(self._root.spent.pop())

    def _admit(self, program: Program) -> None:
        """Have the rules of a program's function hold for its network; before that, and for what has none, all is refused.

        Raises: OSError."""
        if self._endpoint is not None and isinstance(program.policy, Policy):
            self._endpoint.admit(program.policy)

    def freeze(self) -> None:
        """Freeze it and give back the memory that it does not use."""
        self.cgroup.freeze_nowait()
        used = self.cgroup.memory_bytes() + PAUSED_SLACK_BYTES
        if used < self.limits.memory_bytes:
            self.cgroup.limits.set_memory(used)
            self._reservation.resize_nowait(used)

    async def regain_memory(self, *, deadline_s: float) -> None:
        """Reserve all of its memory again. Raises: NoCapacity, when that is not to be had in time."""
        if not self._reservation.resize_nowait(max(self._reservation.size, self.limits.memory_bytes)):
            await self._reservation.grow(self.limits.memory_bytes, deadline_s=deadline_s)

    def thaw(self) -> None:
        """Go on, with all of its memory, which must be reserved."""
        self.cgroup.limits.set_memory(self.limits.memory_bytes)
        self.cgroup.thaw_nowait()

    def grant_port(self) -> None:
        """Have a port of the host, which no other sandbox can bind until the last process of this one is gone.

        Raises: NoHostPort."""
        self.port = self.parts.ports.grant(self.host_uid)

    def open_socket(self) -> socket.socket:
        """A TCP socket in its network, not connected, which does not block and is the caller's. Its network must be its own, or
        it must have a port of the host's.

        Raises: OSError, also when the sandbox is gone."""
        namespace = self._endpoint.namespace if self._endpoint is not None else None
        if namespace is not None:
            with entered(namespace):
                sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        elif self.port:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        else:
            raise OSError(errno.ENETDOWN, os.strerror(errno.ENETDOWN))
        sock.setblocking(False)
        return sock

    @property
    def network_words(self) -> str:
        """Where its network came from; empty: it has the host's."""
        if self._endpoint is None:
            return ""
        return "pool hit" if self._endpoint.was_ready else "made on the path"

    @property
    def reserved_bytes(self) -> int:
        """What of the memory budget it holds."""
        return self._reservation.size

    @property
    def host_uid(self) -> int:
        """Its uid as everybody outside of its user namespace sees it."""
        return self.zygote.uids.on_host(self.uid)

    def adopt(self, reservation: Reservation) -> None:
        """Take over the reservation of the function that a spare is to become, and give back its own."""
        self._reservation.close()
        self._reservation = reservation

    def release_memory(self) -> None:
        """Give the reservation back before the last process is gone. Safe to call twice."""
        self._reservation.close()

    async def wait_status(self) -> None:
        """Wait a little until it is known how it exited, after its end of the channel was closed."""
        if not self._parent_tells:
            await pidfds.wait_status(self.pidfd, EXIT_GRACE_S)
            if self.pidfd >= 0:  # it was destroyed meanwhile, and its status is not needed any more
                self._status = pidfds.exit_status(self.pidfd)
            return
        await pidfds.wait_exited(self.pidfd, EXIT_GRACE_S)
        assert self._child is not None
        self._status = await self.zygote.exit_status(self._child, deadline_s=self.parts.spawn_deadline_s)

    @property
    def _parent_tells(self) -> bool:
        return self.zygote.farm is not None and self.zygote.farm.reaps

    def peak_bytes(self) -> int:
        """The most memory that it has used; 0: that cannot be read. Only before `close`."""
        try:
            return self.cgroup.peak_bytes()
        except OSError:  # out of descriptors, perhaps: what it failed of matters more
            return 0

    def cause_of_death(self) -> SockdError:
        """Why it ended. Only after `wait_status`, and before `close`."""
        status = self._status
        # A process of it may have been killed for memory before it ended by a fault of its own, such as a stack overflow.
        has_crashed = status is not None and pidfds.signal_of(status) not in (0, signal.SIGKILL)
        if self.cgroup.oom_kills() > 0 and not has_crashed:
            return OutOfMemory(limit_bytes=self.limits.memory_bytes, peak_bytes=self.cgroup.peak_bytes())
        died = SandboxDied(pidfds.describe_status(status))
        died.has_exited = status is not None and pidfds.has_exited(status)
        return died

    def close(self, gone: Callable[[], None] | None) -> None:
        """Kill it, and give everything back: at once what is only ours, and when its last process is gone its cgroup,
        its uid and its memory.

        Args: gone: called after that."""
        port, self.port = self.port, 0

        def after_last_process() -> None:
            self.zygote.users.remove_sandbox(self.uid)
            if self._endpoint is not None:
                self._endpoint.take_back(self._endpoint)
            self._reservation.close()
            if port:
                self.parts.ports.release(port)
            if self.grant is not None:
                self.grant.close()
            if self.image is not None:
                self.image.let_go()
            if gone is not None:
                gone()

        with ExitStack() as every:  # goes on after an error and raises the last
            every.callback(self.parts.cgroups.give_back, self.cgroup, after_last_process)
            every.callback(self.parts.release, self._root.give_up())
            every.callback(self.output.close)
            every.callback(self.sock.close)
            every.callback(self._close_pidfd)

    def _close_pidfd(self) -> None:
        fd, self.pidfd = self.pidfd, -1
        if fd >= 0:
            os.close(fd)


def _grant(program: Program | None, limits: Limits) -> TaskGrant | None:
    """Grant a sandbox its processes and threads; None: it belongs to no function, and has what its limits say."""
    return program.tasks.take(limits.pids) if program is not None and program.tasks is not None else None
