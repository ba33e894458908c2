"""The checks of `sockd doctor`, one function for each.

`probes` tries what a kernel supports instead of deriving it from the version. No check makes a permanent change.
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import uv

from sockd.base.errors import SandboxFailed
from sockd.base.extras import installing
from sockd.base.own_command import same_as_root
from sockd.linux.bpf.address_guard import deny_networks
from sockd.linux.bpf.port_guard import PortGuard
from sockd.linux.bpf.socket_counts import SocketCounts
from sockd.linux.cgroups.tree import Hierarchies
from sockd.linux.latency import favordynmods
from sockd.linux.latency.hrtick import PERIOD_NS, tick_s
from sockd.linux.syscall_table import AARCH64, ARCHITECTURES
from sockd.linux.ways import TABLE, Found, Ways
from sockd.worker.state_dir import open_to_others
from sockd_initscripts.client.engine_software import missing
from sockd_zygote import wasm_host

GB = 1 << 30
NEEDED_CAPABILITIES = {  # capabilities(7)
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_SYS_CHROOT": 18,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_MKNOD": 27,
}
PRINTK = Path("/proc/sys/kernel/printk")
CONSOLES = Path("/proc/consoles")
KERN_ERR = 3
"""The lowest console level that does not show messages of this severity (syslog(2))."""
CONTAINERS = "see docs/guide/worker.md, In a container"
LEAST_OPEN_FILES = 8192
UNGUARDED = "functions on the host's network can bind the worker's ports, and all ephemeral ports"
GUARDS_FIX = (
    "use Linux 5.14 or newer with CONFIG_CGROUP_BPF=y and cgroup v2; docker run --cap-add BPF ...  # " + CONTAINERS
)
UNCHECKED = "a source route or a routing header leads functions on the host's network to metadata services"
PACKETS_FIX = 'use Linux 6.15 or newer; until then network = "private" or "none" keeps a function from them'


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    name: str
    ok: bool | None
    """True: passed; False: sockd does not run; None: it runs, but see `fix`."""
    found: str
    fix: str = ""
    """The remedy, if possible as one command; empty if the check passed."""


# -- who we are


def python() -> Check:
    """The interpreter of sockd, which also runs handlers."""
    found = f"{platform.python_implementation()} {platform.python_version()} at {sys.prefix}"
    fine = sys.version_info >= (3, 11) and platform.python_implementation() == "CPython"
    return Check("python", fine, found, "" if fine else "make setup PYTHON=python3.11")


def privileges(unseen: Sequence[str] = ()) -> Check:
    """Root, with the capabilities for namespaces, mounts and uids. Args: unseen: checks that need root."""
    if os.geteuid() != 0:
        found = f"not root (uid {os.geteuid()}), not checked: {', '.join(unseen)}"
        return Check("privileges", False, found, same_as_root())
    held = int(_status_field("CapEff"), 16)
    lacking = [name for name, bit in NEEDED_CAPABILITIES.items() if not held >> bit & 1]
    if lacking:
        return Check("privileges", False, f"root without {', '.join(lacking)}", _container_fix(lacking))
    return Check("privileges", True, "root with all capabilities needed")


# -- what the kernel can do


def kernel() -> Check:
    """The version, for readers of the report; other checks try the system calls."""
    found = f"{platform.system()} {platform.release()} {platform.machine()}"
    if platform.system() != "Linux" or platform.machine() not in ARCHITECTURES or not hasattr(os, "pidfd_open"):
        hosts = " or ".join(ARCHITECTURES)
        return Check("kernel", False, found, f"use a host of {hosts} with Linux 5.14 or newer, best 6.18")
    if platform.machine() == AARCH64.name:
        return Check(
            "kernel",
            None,
            found,
            "run sockd selftest: on aarch64, workers were tried in an emulated machine alone",
        )
    return Check("kernel", True, found)


def roots() -> Check:
    """How a sandbox's root is made (`sandbox.roots`); what any kernel has is tried, too."""
    attached = probed(TABLE["roots"].title, "attached_root", "use Linux 5.14 or newer: open_tree, mount_setattr")
    if not attached.ok:
        return attached
    return _way("roots")


def proc() -> Check:
    """How a sandbox has a /proc of its own."""
    return _way("proc")


def exits() -> Check:
    """How it is known how a function ended."""
    return _way("exits")


def _way(feature: str) -> Check:
    found: Found = getattr(Ways.find(), feature)
    newer = TABLE[feature].ways[0].since
    fix = f"use Linux {newer[0]}.{newer[1]} or newer" if found.reason else ""
    return Check(TABLE[feature].title, None if found.reason else True, found.words, fix)


def host_files() -> Check:
    """Whether Zygotes can be isolated from the host's files."""
    return probed("host files", "host_files", "docker run --security-opt seccomp=unconfined ...  # " + CONTAINERS)


def forks() -> Check:
    """Whether a Zygote can fork: it has to find where its thread's id is kept, with the kernel's help if there is any."""
    return probed("forks", "thread_id_address", "use a kernel with CONFIG_CHECKPOINT_RESTORE=y")


def user_namespaces() -> Check:
    """The limit of user namespaces: each sandbox and Zygote needs one."""
    most = _read_int("/proc/sys/user/max_user_namespaces")
    allowed = _read_int("/proc/sys/kernel/unprivileged_userns_clone")
    if allowed == 0:
        return Check("user namespaces", False, "only for root", "sysctl -w kernel.unprivileged_userns_clone=1")
    if most is None:
        return Check("user namespaces", False, "not in this kernel", "use a kernel with CONFIG_USER_NS=y")
    fine = most >= 4096
    fix = "" if fine else "sysctl -w user.max_user_namespaces=65536"
    return Check("user namespaces", True if fine else False if most == 0 else None, f"up to {most}", fix)


def seccomp() -> Check:
    """Seccomp with the actions that our filters use."""
    path = Path("/proc/sys/kernel/seccomp/actions_avail")
    actions = path.read_text().split() if path.exists() else []
    fine = {"allow", "errno", "kill_process"} <= set(actions)
    found = " ".join(actions) or "not in this kernel"
    return Check("seccomp", fine, found, "" if fine else "use a kernel with CONFIG_SECCOMP_FILTER=y")


# -- cgroups


def cgroups() -> Check:
    """The layout, and whether we may create cgroups."""
    hierarchies = Hierarchies.detect()
    found = f"{hierarchies.kind}: {', '.join(hierarchies.bases) or 'not mounted'}"
    if hierarchies.missing:
        return Check("cgroups", False, f"{found}; missing {', '.join(hierarchies.missing)}", _cgroup_fix(hierarchies))
    closed = [base for base in hierarchies.bases if not _can_make_cgroups(base)]
    if closed:
        return Check(
            "cgroups", False, f"{found}; not writable: {', '.join(closed)}", f"mount -o remount,bind,rw {closed[0]}"
        )
    if hierarchies.unified and not _can_make_cgroups(hierarchies.unified, holding="cgroup.kill"):
        return Check("cgroups", False, f"{found}; without cgroup.kill", "use Linux 5.14 or newer")
    return Check("cgroups", True, found)


def cgroup_moves() -> Check:
    """The time of a cgroup move after a pause. It is measured, because no file has it."""
    hierarchies = Hierarchies.detect()
    try:
        took_s = favordynmods.cold_move_s(hierarchies)
    except OSError as error:
        return Check("cgroup moves", None, f"not measured: {error}", "run sockd doctor as root")
    found = f"{took_s * 1e3:.2f} ms after a pause"
    if took_s < favordynmods.SLOW_MOVE_S:
        return Check("cgroup moves", True, found)
    if not favordynmods.enabled_needed(hierarchies):
        return Check("cgroup moves", None, f"{found}: every cold start waits", "use Linux 6.0 or newer: favordynmods")
    command = f"{sys.executable} -m sockd.linux.latency.favordynmods"
    fix = f"{command}  # `sockd up` does this itself; for the whole host until its reboot"
    return Check("cgroup moves", None, f"{found}: every cold start waits", fix)


def socket_guards() -> Check:
    """Whether cgroup BPF can protect the worker's ports and count sockets."""
    try:
        with group_for_programs() as directory:
            PortGuard.attach(directory).close()
            SocketCounts.attach(directory).close()
    except OSError as error:
        return Check("socket guards", None, f"{UNGUARDED}: {error}", GUARDS_FIX)
    return Check("socket guards", True, "functions cannot bind the worker's ports; their sockets are counted")


def packet_guard() -> Check:
    """Whether cgroup BPF can check each packet of functions on the host's network, and not only the addresses that they name."""
    try:
        with group_for_programs() as directory:
            reason = deny_networks(directory, ())
    except OSError as error:
        reason = str(error)
    if reason:
        return Check("packet guard", None, f"{UNCHECKED}: {reason}", PACKETS_FIX)
    return Check("packet guard", True, "each packet of functions on the host's network is checked for denied networks")


@contextmanager
def group_for_programs() -> Iterator[str]:
    """A cgroup of version 2, to which eBPF programs can be attached, for the length of the block. Raises: OSError."""
    unified = Hierarchies.detect().unified
    if unified is None:
        raise OSError("no cgroup hierarchy of version 2")
    directory = os.path.join(unified, f"sockd-doctor-{os.getpid()}")
    os.mkdir(directory)
    try:
        yield directory
    finally:
        os.rmdir(directory)


# -- the rest of the host


def scheduler_tick() -> Check:
    """How long a woken thread may wait while others compute (`latency.hrtick`)."""
    tick_ms = tick_s() * 1e3
    if tick_ms * 1e6 <= PERIOD_NS:
        return Check("scheduler's tick", True, f"{tick_ms:g} ms")
    found = f"{tick_ms:g} ms, made {PERIOD_NS / 1e6:g} ms while functions compute and others are called"
    return Check("scheduler's tick", True, found)


def open_files() -> Check:
    """The hard limit of descriptors: each live sandbox needs about eight."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    fine = most == resource.RLIM_INFINITY or most >= LEAST_OPEN_FILES
    found = "unlimited" if most == resource.RLIM_INFINITY else f"up to {most}"
    return Check("open files", True if fine else None, found, "" if fine else "ulimit -n 65536")


def core_dumps() -> Check:
    """A core pattern with a pipe starts a program as root at a crash; only RLIMIT_CORE prevents this for sandboxes."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if not pattern.startswith("|"):
        return Check("core dumps", True, f"core_pattern {pattern!r}")
    return Check("core dumps", None, f"piped to {pattern[1:].split()[0]}", "sysctl -w kernel.core_pattern=core")


def kernel_console() -> Check:
    """Whether a console shows out-of-memory kills (KERN_ERR): a CPU writes each message byte by byte and does nothing else
    meanwhile, and a function may cause one kill after the other."""
    shown = int(PRINTK.read_text().split()[0])
    lines = [line.partition("(") for line in CONSOLES.read_text().splitlines()]
    names = [name.split()[0] for name, _, flags in lines if "E" in flags]
    if shown <= KERN_ERR or not names:
        return Check("kernel's console", True, "does not show out-of-memory kills")
    found = f"{', '.join(names)} shows each out-of-memory kill; writing it occupies a CPU, on a serial line for milliseconds"
    return Check("kernel's console", None, found, f"sysctl -w kernel.printk={KERN_ERR}")


def packages() -> Check:
    """uv, which resolves and installs packages."""
    try:
        binary = uv.find_uv_bin()
    except FileNotFoundError:
        return Check("uv", False, "not found", f"{sys.executable} -m pip install uv")
    completed = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False)
    fine = completed.returncode == 0
    found = f"{completed.stdout.strip() or completed.stderr.strip()} at {binary}"
    return Check("uv", fine, found, "" if fine else f"{sys.executable} -m pip install --force-reinstall uv")


def initscripts() -> Check:
    """The packages of the initscript engine, and the host of wasi:http; the worker runs without them."""
    if lacking := missing():
        off = f"switched off: {', '.join(lacking)} not installed"
        return Check("initscripts", None, off, installing("initscripts"))
    versions = ", ".join(f"{name} {version(name)}" for name in ("wasmtime", "certifi", "grpcio"))
    return Check("initscripts", True, f"{versions}; wasi:http: {wasm_host.build() or 'no host (make wasm-host)'}")


def disk(state_dir: Path) -> Check:
    """Disk space for packages and code, at the state directory."""
    existing = next(path for path in (state_dir.absolute(), *state_dir.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    fine = free >= 2 * GB
    return Check(
        "disk",
        True if fine else None,
        f"{free / GB:.1f} GB free at {existing}",
        "" if fine else "sockd up --state-dir DIR",
    )


def state_directory(path: Path) -> Check:
    """Whether the state directory is closed to other users; a daemon closes an older one at its start."""
    name = "state directory"
    if not path.is_dir():
        return Check(name, True, "none yet")
    try:
        found = [f"{entry.name} {stat.filemode(entry.stat().st_mode)}" for entry in open_to_others(path)]
    except PermissionError:
        return Check(name, True, f"{path} is closed to this user, as it should be")
    if path.stat().st_mode & 0o066:
        found.insert(0, f"{path} itself {stat.filemode(path.stat().st_mode)}")
    if found:
        return Check(
            name, None, f"open to other users: {', '.join(found)}", "restart sockd, which closes the directory"
        )
    return Check(name, True, f"{path} is closed to other users")


def memory() -> Check:
    """Memory for sandboxes."""
    fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    fine = free >= GB
    fix = "" if fine else "free memory, or set sandbox.memory_mb in sockd's configuration"
    return Check("memory", True if fine else None, f"{free / GB:.1f} GB available", fix)


# -- how it is found out


def probed(name: str, probe: str, fix: str) -> Check:
    """What one of `probes` finds out. Args: fix: the remedy if it fails."""
    command = [sys.executable, "-P", "-m", "sockd.client.cli.doctor.probes", probe]
    root = str(Path(__file__).parents[4])
    child = subprocess.run(command, env={"PYTHONPATH": root}, capture_output=True, text=True, check=False)
    if child.returncode == 0:
        return Check(name, True, "works")
    found = (child.stderr.strip().splitlines() or [f"exit status {child.returncode}"])[-1]
    return Check(name, False, found, fix)


def _status_field(name: str) -> str:
    for line in Path("/proc/self/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    raise SandboxFailed(f"/proc/self/status has no {name}")


def _read_int(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (FileNotFoundError, ValueError):
        return None


def _container_fix(lacking: list[str]) -> str:
    return f"docker run {' '.join(f'--cap-add {name[4:]}' for name in lacking)} ...  # {CONTAINERS}"


def _can_make_cgroups(base: str, *, holding: str = "cgroup.procs") -> bool:
    path = Path(base, f"sockd-doctor-{os.getpid()}")
    try:
        path.mkdir()
    except OSError:
        return False
    try:
        return (path / holding).exists()
    finally:
        path.rmdir()


def _cgroup_fix(hierarchies: Hierarchies) -> str:
    name = hierarchies.missing[0]
    if hierarchies.kind == "v1":
        return f"mkdir -p /sys/fs/cgroup/{name} && mount -t cgroup -o {name} cgroup /sys/fs/cgroup/{name}"
    return f"boot with cgroup_enable={name}, or under systemd: systemctl edit sockd, [Service] Delegate=yes"
