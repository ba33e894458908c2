"""Seccomp: which system calls sandboxed code may make, compiled to classic BPF.

Owns the policies (handler, Zygote, engine) and a compiler for them; installs nothing. The bytes it makes are `struct
sock_filter`s for prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER). Knows nothing of sandboxes; it imports no library because
libseccomp builds a filter in 440 us and reports its own failures badly.

Why the program looks as it does (kernel/seccomp.c):
  * Installing costs time per instruction (conversion, JIT) and per system call number: the kernel walks the filter once
    for each, to learn which calls it always allows, and skips the filter for those ever after. So the program is small,
    each path in it is short, and it uses only the operations that this walk understands (no shifts, no scratch).
    Measured: 56 us for our 80 instructions, 29 us on top of the Zygote's filter; 249 us for a plain list of 240 numbers.
  * Arguments are 64 bits wide, but the kernel takes flags, families and ioctl requests as 32. Only the low word is
    looked at: comparing all 64 bits lets a caller hide behind garbage in the upper half (CVE-2019-10063).
  * x32 calls carry bit 30, int 0x80 another architecture. The first are unknown numbers, the second is never an accident.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from errno import EAFNOSUPPORT, ENOSYS, EPERM
from socket import AF_INET, AF_INET6, AF_UNIX
from stat import S_IFIFO
from struct import Struct

from sockd.kernel.syscall_table import FIRST_UNKNOWN, NUMBERS

SOCK_FILTER = Struct("<HBBI")
"""struct sock_filter: code, jump if true, jump if false, k."""

AUDIT_ARCH_X86_64 = 0xC000003E

RET_KILL_PROCESS = 0x80000000
RET_ERRNO = 0x00050000
RET_ALLOW = 0x7FFF0000

LD_WORD = 0x20
AND = 0x54
JEQ = 0x15
JGE = 0x35
RET = 0x06

# Offsets in struct seccomp_data; arguments are little-endian u64s, so the low word comes first.
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16

CLONE_THREAD = 0x00010000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
SANDBOX_NAMESPACES = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET
"""The namespaces a Zygote makes with clone(2). CLONE_NEWTIME is not a flag of clone(2): the bit is part of its signal."""

TIOCSTI = 0x5412
TIOCLINUX = 0x541C


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on the low 32 bits of one argument, under which a call is allowed."""

    argument: int
    mask: int = 0xFFFFFFFF
    one_of: tuple[int, ...] = ()
    none_of: tuple[int, ...] = ()
    """Exactly one of `one_of` and `none_of` is given; both are compared with `argument & mask`."""
    otherwise: int = EPERM
    """The errno of a call that does not meet the condition."""


Verdict = int | Check
"""What becomes of a call: a seccomp return value, or a check that decides."""


def compile_filter(
    allow: Collection[str], *, checks: Mapping[str, Check], absent: Collection[str] = (), otherwise: int = EPERM
) -> bytes:
    """The seccomp program that lets exactly these calls through.

    Args:
        allow: names of calls that are always allowed.
        checks: names of calls that are allowed under a condition.
        absent: names of calls that fail with ENOSYS, so that callers fall back to an older one.
        otherwise: errno of every other call below FIRST_UNKNOWN; those above fail with ENOSYS.
    Returns: struct sock_filter[], native to x86_64.
    Raises: KeyError for a name that the table does not have; ValueError when the program is too long for one jump."""
    denied: Verdict = RET_ERRNO | otherwise
    verdicts = [denied] * FIRST_UNKNOWN + [RET_ERRNO | ENOSYS]
    for name in allow:
        verdicts[NUMBERS[name]] = RET_ALLOW
    for name in absent:
        verdicts[NUMBERS[name]] = RET_ERRNO | ENOSYS
    for name, check in checks.items():
        verdicts[NUMBERS[name]] = check

    program = _Program()
    program.add(LD_WORD, _ARCH)
    program.add(JEQ, AUDIT_ARCH_X86_64, otherwise=RET_KILL_PROCESS)
    program.add(LD_WORD, _NUMBER)
    _add_search(program, _segments(verdicts))
    for check in dict.fromkeys(verdict for verdict in verdicts if isinstance(verdict, Check)):
        _add_check(program, check)
    for value in program.missing_labels():
        program.label(value)
        program.add(RET, value)
    return program.assemble()


def instruction_count(program: bytes) -> int:
    """How many instructions a compiled program has; the kernel wants it in struct sock_fprog."""
    return len(program) // SOCK_FILTER.size


@dataclass(frozen=True, slots=True)
class _Segment:
    """The numbers from `first` up to the next segment: all have one verdict, but for a few single ones."""

    first: int
    verdict: Verdict
    exceptions: tuple[tuple[int, Verdict], ...]

    @property
    def label(self) -> Hashable:
        return ("segment", self.first) if self.exceptions else self.verdict


# A single number inside a run costs one JEQ as an exception and two JGEs as a segment of its own; but exceptions are
# tried one after the other. Four is where neither the size nor the longest path of our two programs shrinks any more.
_EXCEPTIONS = 4


def _segments(verdicts: list[Verdict]) -> list[_Segment]:
    """All numbers, cut into as few segments as a greedy walk from 0 gives."""
    runs = list(_runs(verdicts))
    segments, position = [], 0
    while position < len(runs):
        first, _, verdict = runs[position]
        position += 1
        exceptions: list[tuple[int, Verdict]] = []
        while (
            len(exceptions) < _EXCEPTIONS
            and position + 1 < len(runs)
            and runs[position][1] == 1
            and runs[position + 1][2] == verdict
        ):
            exceptions.append((runs[position][0], runs[position][2]))
            position += 2
        segments.append(_Segment(first, verdict, tuple(exceptions)))
    return segments


def _runs(verdicts: list[Verdict]) -> Iterator[tuple[int, int, Verdict]]:
    """(first number, how many numbers, verdict) of each run of equal verdicts."""
    first = 0
    for number in range(1, len(verdicts) + 1):
        if number == len(verdicts) or verdicts[number] != verdicts[first]:
            yield first, number - first, verdicts[first]
            first = number


def _add_search(program: _Program, segments: list[_Segment]) -> None:
    """A binary search for the segment of the loaded number, then the segment's exceptions."""
    if len(segments) == 1:
        (segment,) = segments
        program.label(segment.label)
        for number, verdict in segment.exceptions[:-1]:
            program.add(JEQ, number, then=verdict)
        for number, verdict in segment.exceptions[-1:]:
            program.add(JEQ, number, then=verdict, otherwise=segment.verdict)
        return
    lower, upper = segments[: len(segments) // 2], segments[len(segments) // 2 :]
    program.label(_search_label(segments))
    program.add(JGE, upper[0].first, then=_search_label(upper), otherwise=_search_label(lower))
    for half in (lower, upper):
        if len(half) > 1 or half[0].exceptions:
            _add_search(program, half)


def _search_label(segments: list[_Segment]) -> Hashable:
    return segments[0].label if len(segments) == 1 else ("search", segments[0].first, segments[-1].first)


def _add_check(program: _Program, check: Check) -> None:
    program.label(check)
    program.add(LD_WORD, _ARGUMENTS + 8 * check.argument)
    if check.mask != 0xFFFFFFFF:
        program.add(AND, check.mask)
    found, missed = RET_ALLOW, RET_ERRNO | check.otherwise
    if check.none_of:
        found, missed = missed, found
    values = check.one_of or check.none_of
    for value in values[:-1]:
        program.add(JEQ, value, then=found)
    program.add(JEQ, values[-1], then=found, otherwise=missed)


class _Program:
    """Instructions whose jumps name labels, until `assemble` makes distances of them. Jumps only go forward."""

    def __init__(self) -> None:
        self._instructions: list[tuple[int, int, Hashable, Hashable]] = []
        self._labels: dict[Hashable, int] = {}

    def label(self, label: Hashable) -> None:
        """Name the place of the next instruction."""
        self._labels[label] = len(self._instructions)

    def add(self, code: int, k: int, *, then: Hashable = None, otherwise: Hashable = None) -> None:
        """Append an instruction; a jump without a label goes to the next one."""
        self._instructions.append((code, k, then, otherwise))

    def missing_labels(self) -> list[int]:
        """The labels jumped to but not placed, in order of first use: at the end these are all return values."""
        used = (label for *_, then, otherwise in self._instructions for label in (then, otherwise))
        return [label for label in dict.fromkeys(used) if isinstance(label, int) and label not in self._labels]

    def assemble(self) -> bytes:
        return b"".join(
            SOCK_FILTER.pack(code, self._distance(place, then), self._distance(place, otherwise), k)
            for place, (code, k, then, otherwise) in enumerate(self._instructions)
        )

    def _distance(self, place: int, label: Hashable) -> int:
        distance = 0 if label is None else self._labels[label] - place - 1
        if not 0 <= distance <= 255:
            raise ValueError(f"a jump over {distance} instructions; sock_filter has 8 bits for it")
        return distance


_HANDLER_CALLS = frozenset(
    # Files. The tree that these reach is the sandbox's own. sync and syncfs are not here: they would flush the host's disks.
    """
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 open openat openat2 creat close close_range
    stat fstat lstat newfstatat statx statfs fstatfs ustat sysfs access faccessat faccessat2 lseek dup dup2 dup3 pipe pipe2
    fcntl flock fsync fdatasync sync_file_range truncate ftruncate fallocate getdents getdents64 getcwd chdir fchdir rename
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
    setsockopt getsockopt shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open
    mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
    """
    # Harmless, and here because a hole in a run of numbers costs an instruction: io_pgetevents needs an io_setup, which is
    # denied; the two epoll calls are retired numbers that answer ENOSYS whoever asks.
    """
    io_pgetevents epoll_ctl_old epoll_wait_old
    """.split()
)

_FAMILY = Check(0, one_of=(AF_UNIX, AF_INET, AF_INET6), otherwise=EAFNOSUPPORT)

_HANDLER_CHECKS = {
    "clone": Check(0, mask=SANDBOX_NAMESPACES | CLONE_NEWNS | CLONE_NEWCGROUP, one_of=(0,)),
    "socket": _FAMILY,
    "socketpair": _FAMILY,
    # Asking what it is, or setting plain Linux: anything else switches address randomization off or worse.
    "personality": Check(0, one_of=(0, 0xFFFFFFFF)),
    # Typing into a terminal that a parent shares.
    "ioctl": Check(1, none_of=(TIOCSTI, TIOCLINUX)),
    # os.mkfifo. Devices need a capability as well, and no mount here would let one be opened.
    "mknodat": Check(2, mask=0o170000, one_of=(S_IFIFO,)),
}

_ZYGOTE_CALLS = frozenset(
    # What confines a child: its root, its name, its ids, its capabilities.
    """
    chroot sethostname setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capset
    """.split()
)

_ZYGOTE_CHECKS = {"clone": Check(0, mask=CLONE_NEWNS | CLONE_NEWCGROUP, one_of=(0,))}

# The engine is threads of one process: it starts no other, and nobody's files have owners or links for it to change.
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
    "clone": Check(0, mask=CLONE_THREAD | SANDBOX_NAMESPACES | CLONE_NEWNS | CLONE_NEWCGROUP, one_of=(CLONE_THREAD,)),
}

# BPF cannot follow clone3's pointer to its flags. glibc takes ENOSYS for an old kernel and uses clone instead.
_ABSENT = ("clone3",)


@functools.cache
def handler_filter() -> bytes:
    """The filter of a handler sandbox: what Python, its packages and their subprocesses need, and nothing that makes a
    namespace, a mount, a device, or reaches another process's memory.

    A handler is a child of a Zygote, so the kernel runs both filters and takes the stricter answer."""
    _require_x86_64(platform.machine())
    return compile_filter(_HANDLER_CALLS, checks=_HANDLER_CHECKS, absent=_ABSENT)


@functools.cache
def zygote_filter() -> bytes:
    """The filter of a Zygote: the handler's, and what it takes to make and confine a child."""
    _require_x86_64(platform.machine())
    return compile_filter(_HANDLER_CALLS | _ZYGOTE_CALLS, checks=_HANDLER_CHECKS | _ZYGOTE_CHECKS, absent=_ABSENT)


@functools.cache
def engine_filter() -> bytes:
    """The filter of the initscript engine and of the compiler: a handler's, but for whatever makes a process, a
    directory or a System V object. What wasmtime needs is in it: executable memory, memfds, signal stacks, threads."""
    _require_x86_64(platform.machine())
    return compile_filter(_ENGINE_CALLS, checks=_ENGINE_CHECKS, absent=_ABSENT)


def _require_x86_64(machine: str) -> None:
    if machine != "x86_64":
        raise RuntimeError(f"the seccomp filters are written for x86_64; this machine is {machine}")
