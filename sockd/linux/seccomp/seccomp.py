"""Seccomp: which system calls sandboxed code may make.

Owns the policies of sandboxes, Zygotes and the engine; `seccomp_compiler` makes programs for prctl(PR_SET_SECCOMP,
SECCOMP_MODE_FILTER) of them. Installs nothing and knows nothing of sandboxes. Each filter is this machine's, unless it is asked
for of another architecture. The lists name calls of all: aarch64 has no open, fork or stat, only what these are made with there.

The root Zygote installs the whole list once, and all that it forks inherits it; a child only adds what it loses. The kernel
runs a process's filters one after the other and takes the strictest answer. Measured (medians of one run): the child's part
takes 16 us of a start; the whole list in each child took 71 us, and 28 us on top of a Zygote's.
"""

from __future__ import annotations

import functools
from errno import EAFNOSUPPORT, ENOPROTOOPT, EPROTONOSUPPORT
from socket import (
    AF_INET,
    AF_INET6,
    AF_NETLINK,
    AF_UNIX,
    IPPROTO_IP,
    IPPROTO_IPV6,
    IPPROTO_TCP,
    IPPROTO_UDP,
    SO_BINDTODEVICE,
    SOCK_DGRAM,
    SOCK_RAW,
    SOCK_STREAM,
    SOL_SOCKET,
    TCP_CONGESTION,
)
from stat import S_IFIFO

from sockd.linux.seccomp.compiler import (
    RET_ALLOW,
    Switch,
    compile_filter,
    compile_restriction,
    only,
    refused,
    without,
)
from sockd.linux.syscall_table import Architecture

CLONE_THREAD = 0x00010000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
SANDBOX_NAMESPACES = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
"""What a sandbox gets of its own; its network namespace, if that is not the host's, is made before it."""
ALL_NAMESPACES = SANDBOX_NAMESPACES | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWCGROUP
"""CLONE_NEWTIME is not a flag of clone(2): the bit is part of its signal."""

TIOCSTI = 0x5412
TIOCLINUX = 0x541C

F_SETLEASE = 1024
F_NOTIFY = 1026

NETLINK_ROUTE = 0
SOL_NETLINK = 270
SOCK_TYPE_MASK = 0xF
"""socket(2) takes SOCK_CLOEXEC and SOCK_NONBLOCK in the same argument as the type."""

SO_ATTACH_FILTER = 26
SO_ATTACH_BPF = 50
SO_ATTACH_REUSEPORT_CBPF = 51
SO_ATTACH_REUSEPORT_EBPF = 52
SO_BINDTOIFINDEX = 62
IP_LOCAL_PORT_RANGE = 51
TCP_ULP = 31
UDP_ENCAP = 100


_HANDLER_CALLS = frozenset(
    # Files. The tree that these reach is the sandbox's own. sync and syncfs are not here: they would flush the host's disks.
    """
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 open openat openat2 creat close close_range
    stat fstat lstat newfstatat statx statfs fstatfs ustat sysfs access faccessat faccessat2 lseek dup dup2 dup3 pipe pipe2
    flock fsync fdatasync sync_file_range truncate ftruncate fallocate getdents getdents64 getcwd chdir fchdir rename
    renameat renameat2 mkdir mkdirat rmdir link linkat unlink unlinkat symlink symlinkat readlink readlinkat chmod fchmod
    fchmodat fchmodat2 chown fchown lchown fchownat umask utime utimes utimensat futimesat sendfile splice tee vmsplice
    copy_file_range readahead fadvise64 cachestat inotify_init inotify_init1 inotify_add_watch inotify_rm_watch
    setxattr lsetxattr fsetxattr setxattrat getxattr lgetxattr fgetxattr getxattrat listxattr llistxattr flistxattr
    listxattrat removexattr lremovexattr fremovexattr removexattrat
    """
    # Memory.
    """
    mmap mprotect munmap brk mremap msync mincore madvise process_madvise mlock munlock mlockall munlockall mlock2
    memfd_create remap_file_pages pkey_mprotect pkey_alloc pkey_free membarrier mseal map_shadow_stack
    """
    # Processes and threads.
    """
    fork vfork execve execveat exit exit_group wait4 waitid getpid getppid gettid getpgid getpgrp setpgid getsid setsid
    getuid geteuid getgid getegid getgroups getresuid getresgid capget kill tkill tgkill pidfd_open pidfd_send_signal
    prctl arch_prctl set_tid_address set_robust_list get_robust_list rseq restart_syscall futex futex_waitv futex_wake
    futex_wait futex_requeue getrlimit setrlimit prlimit64 getrusage times getpriority setpriority ioprio_get ioprio_set
    sched_yield sched_setaffinity sched_getaffinity sched_setparam sched_getparam sched_setscheduler sched_getscheduler
    sched_setattr sched_getattr sched_get_priority_max sched_get_priority_min sched_rr_get_interval getcpu
    uname sysinfo getrandom
    """
    # Signals, timers, waiting.
    """
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_tgsigqueueinfo rt_sigsuspend
    sigaltstack signalfd signalfd4 pause alarm nanosleep clock_nanosleep getitimer setitimer gettimeofday time
    clock_gettime clock_getres timer_create timer_settime timer_gettime timer_getoverrun timer_delete timerfd_create
    timerfd_settime timerfd_gettime eventfd eventfd2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl
    epoll_wait epoll_pwait epoll_pwait2
    """
    # Sockets, and the IPC namespace's own System V and POSIX objects.
    """
    connect accept accept4 bind listen shutdown sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg getsockname getpeername
    getsockopt shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open
    mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
    """
    # Harmless, and here because a hole in a run of numbers costs an instruction: io_pgetevents needs an io_setup, which is
    # denied; the two epoll calls are retired numbers that answer ENOSYS to every process.
    """
    io_pgetevents epoll_ctl_old epoll_wait_old
    """.split()
)

# TCP and UDP. Not MPTCP, UDP-Lite, SCTP, DCCP and ping sockets, whose code few programs use and some bugs were in; a program that
# wants MPTCP takes EPROTONOSUPPORT for a kernel without it and uses TCP.
_INTERNET = only(
    1,
    SOCK_STREAM,
    SOCK_DGRAM,
    mask=SOCK_TYPE_MASK,
    then=only(2, 0, IPPROTO_TCP, IPPROTO_UDP, otherwise=EPROTONOSUPPORT),
)
# For getifaddrs(3). A process without CAP_NET_ADMIN over the network namespace may only ask rtnetlink, and none here has it: the
# host's belongs to the initial user namespace, and the owner of a sandbox's own has no capability left.
_ROUTES = only(1, SOCK_RAW, SOCK_DGRAM, mask=SOCK_TYPE_MASK, then=only(2, NETLINK_ROUTE, otherwise=EPROTONOSUPPORT))
_ENGINE_SOCKETS = ((AF_UNIX, RET_ALLOW), (AF_INET, _INTERNET), (AF_INET6, _INTERNET))
_HANDLER_SOCKETS = (*_ENGINE_SOCKETS, (AF_NETLINK, _ROUTES))

_OPTIONS = Switch(
    1,
    (
        (
            SOL_SOCKET,  # another way out than the routing table's; programs for the kernel's BPF compiler
            without(
                2,
                SO_BINDTODEVICE,
                SO_BINDTOIFINDEX,
                SO_ATTACH_FILTER,
                SO_ATTACH_BPF,
                SO_ATTACH_REUSEPORT_CBPF,
                SO_ATTACH_REUSEPORT_EBPF,
            ),
        ),
        # How much of a shared link one takes; kernel TLS and other protocols on top of TCP; IPsec in UDP.
        (IPPROTO_TCP, without(2, TCP_CONGESTION, TCP_ULP)),
        (IPPROTO_UDP, without(2, UDP_ENCAP)),
        (
            IPPROTO_IP,
            without(2, IP_LOCAL_PORT_RANGE),
        ),  # a bind to port 0 that picks the worker's port on another address
        (IPPROTO_IPV6, RET_ALLOW),
        (SOL_NETLINK, RET_ALLOW),
    ),
    refused(ENOPROTOOPT),
)

_HANDLER_CHECKS = {
    "clone": only(0, 0, mask=ALL_NAMESPACES),
    "socket": Switch(0, _HANDLER_SOCKETS, refused(EAFNOSUPPORT)),
    "socketpair": only(0, AF_UNIX, otherwise=EAFNOSUPPORT),
    "setsockopt": _OPTIONS,
    # A lease delays other openers of the file, a directory notification reports them.
    "fcntl": without(1, F_SETLEASE, F_NOTIFY),
    # Asking what it is, or setting plain Linux: anything else switches address randomization off or worse.
    "personality": only(0, 0, 0xFFFFFFFF),
    # Typing into a terminal that a parent shares.
    "ioctl": without(1, TIOCSTI, TIOCLINUX),
    # os.mkfifo. Devices need a capability as well, and no mount here would let one be opened.
    "mknodat": only(2, S_IFIFO, mask=0o170000),
}

# What confines a child: its root, its name, its network, its ids, its capabilities.
_ZYGOTE_CALLS = frozenset(
    """
    chroot sethostname setns setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset
    """.split()
)
_UNCHANGED = 0xFFFFFFFF
"""The argument -1, by which setresuid(2) and its like leave an id as it is."""

# A Zygote's forks, no more: a package that is being imported, too, might clone. It would have every capability over a network
# namespace of its own, and with them the code of netfilter, traffic control and raw sockets. So no Zygote makes one: those of
# the walled tree enter what the daemon has had made.
_ZYGOTE_FORKS = (0, CLONE_NEWUSER, SANDBOX_NAMESPACES)

# The engine is threads of one process: it starts no other, and there are no files whose owners or links it could change.
_ENGINE_CALLS = _HANDLER_CALLS - frozenset(
    """
    fork vfork chown fchown lchown fchownat link linkat symlink symlinkat mkdir mkdirat rmdir rename renameat renameat2
    setxattr lsetxattr fsetxattr setxattrat removexattr lremovexattr fremovexattr removexattrat remap_file_pages
    process_madvise mlockall personality shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv
    msgctl mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr capset
    """.split()
)

_ENGINE_CHECKS = {
    **{name: check for name, check in _HANDLER_CHECKS.items() if name not in ("mknodat", "personality")},
    "clone": only(0, CLONE_THREAD, mask=CLONE_THREAD | ALL_NAMESPACES),
    "socket": Switch(0, _ENGINE_SOCKETS, refused(EAFNOSUPPORT)),
}

# BPF cannot follow clone3's pointer to its flags. glibc takes ENOSYS for an old kernel and uses clone instead.
_ABSENT = ("clone3",)


@functools.cache
def root_filter(architecture: Architecture | None = None) -> bytes:
    """The filter of the root Zygote and so of all that it forks: what Python, its packages and their subprocesses need, and
    what it takes to make and confine a child. Nothing in it makes a mount or a device, or reaches another's memory."""
    checks = {
        **_HANDLER_CHECKS,
        "clone": only(0, *_ZYGOTE_FORKS, mask=ALL_NAMESPACES),
        "setns": only(1, CLONE_NEWNET),
    }
    return compile_filter(_HANDLER_CALLS | _ZYGOTE_CALLS, checks=checks, absent=_ABSENT, architecture=architecture)


@functools.cache
def zygote_filter(architecture: Architecture | None = None) -> bytes:
    """What a Zygote on the host's network loses: entering another. One of the walled tree loses nothing."""
    return compile_restriction(("setns",), checks={}, architecture=architecture)


@functools.cache
def sandbox_filter(own_id: int, architecture: Architecture | None = None) -> bytes:
    """What a handler sandbox loses: whatever makes a namespace or changes who it is.

    Args:
        own_id: the uid and gid of the sandbox in its user namespace."""
    checks = {"clone": _HANDLER_CHECKS["clone"], **_id_checks(own_id)}
    return compile_restriction(_ZYGOTE_CALLS - checks.keys(), checks=checks, architecture=architecture)


def _id_checks(own_id: int) -> dict[str, Switch]:
    """The checks by which calls that change ids are allowed if they leave all ids as they are.

    Programs that drop privileges at their start, such as gunicorn, set the ids that they have, which plain Linux allows without
    a capability; it refuses setgroups(2) without CAP_SETGID. The checks are nested from the last argument to the first, so that
    all eight calls share three of them."""
    first = only(0, own_id, _UNCHANGED)
    second = only(1, own_id, _UNCHANGED, then=first)
    third = only(2, own_id, _UNCHANGED, then=second)
    return {
        **dict.fromkeys(("setuid", "setgid", "setfsuid", "setfsgid"), first),
        **dict.fromkeys(("setreuid", "setregid"), second),
        **dict.fromkeys(("setresuid", "setresgid"), third),
    }


@functools.cache
def engine_filter(architecture: Architecture | None = None) -> bytes:
    """The filter of the initscript engine and of the compiler: a handler's, but for whatever makes a process, a
    directory or a System V object. What wasmtime needs is in it: executable memory, memfds, signal stacks, threads."""
    return compile_filter(_ENGINE_CALLS, checks=_ENGINE_CHECKS, absent=_ABSENT, architecture=architecture)
