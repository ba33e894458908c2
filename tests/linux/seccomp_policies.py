"""The seccomp policies under test: what they deny, and the filters that each kind of process is under."""

from __future__ import annotations

import functools

from sockd.linux.seccomp import seccomp
from sockd.linux.syscall_table import Architecture

DENIED_TO_ALL = """
    ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd keyctl add_key request_key bpf perf_event_open userfaultfd
    io_uring_setup io_uring_enter io_uring_register io_setup io_submit io_destroy io_getevents io_cancel
    mount umount2 mount_setattr move_mount open_tree fsopen fsconfig fsmount fspick statmount listmount pivot_root
    open_by_handle_at name_to_handle_at unshare mknod seccomp
    landlock_create_ruleset landlock_add_rule landlock_restrict_self
    kexec_load kexec_file_load init_module finit_module delete_module create_module get_kernel_syms query_module
    swapon swapoff reboot adjtimex clock_adjtime clock_settime settimeofday quotactl quotactl_fd acct iopl ioperm
    syslog vhangup modify_ldt uselib lookup_dcookie fanotify_init fanotify_mark setdomainname sync syncfs
    mbind set_mempolicy get_mempolicy set_mempolicy_home_node migrate_pages move_pages memfd_secret process_mrelease
    set_thread_area get_thread_area lsm_get_self_attr lsm_set_self_attr lsm_list_modules uretprobe uprobe
    _sysctl nfsservctl getpmsg putpmsg afs_syscall tuxcall security vserver
""".split()
FOR_ZYGOTES = "chroot sethostname setgroups capset".split()
OWN_ID = 1234


@functools.cache
def sandbox_filter(architecture: Architecture | None = None) -> bytes:
    """The filter of a sandbox whose uid and gid are OWN_ID."""
    return seccomp.sandbox_filter.__wrapped__(OWN_ID, architecture)


FILTERS = {
    "root": (seccomp.root_filter,),
    "zygote": (seccomp.root_filter, seccomp.zygote_filter),
    "handler": (seccomp.root_filter, sandbox_filter),
    "handler of a zygote": (seccomp.root_filter, seccomp.zygote_filter, sandbox_filter),
}
"""What each kind of process is under, the oldest first."""
