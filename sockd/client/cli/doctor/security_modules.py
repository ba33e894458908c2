"""What the host's security modules forbid a worker: AppArmor's restriction of user namespaces, and SELinux.

The daemon is root. A root Zygote has no CAP_SYS_ADMIN, and the user namespaces of its forks are what both may take away.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sockd.base.own_command import own_command
from sockd.client.cli.doctor.checks import CONTAINERS, Check, probed

RESTRICTION = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
ENFORCE = Path("/sys/fs/selinux/enforce")
LABELS = Path("/proc/self/attr/apparmor/current"), Path("/proc/self/attr/current")
"""The first is AppArmor's alone (Linux 5.8), the second that of the module that was first."""
NAMESPACES_FIX = "sysctl -w user.max_user_namespaces=65536 user.max_pid_namespaces=65536"
UNCONFINED = ("unconfined_t", "unconfined_service_t", "initrc_t", "kernel_t", "spc_t")
"""Types of SELinux that the policies of Fedora, RHEL and Debian do not confine."""
SELINUX_FIX = (
    "systemctl edit sockd, [Service] SELinuxContext=system_u:system_r:unconfined_service_t:s0; in a container: "
    "docker run --security-opt label=disable ...  # " + CONTAINERS
)
PROFILE = """\
# sockd may make user namespaces, for its Zygotes and sandboxes; nothing else is changed. Made by `sockd doctor --apparmor`.
abi <abi/4.0>,
include <tunables/global>

profile sockd "{path}" flags=(unconfined) {{
  userns,

  include if exists <local/sockd>
}}
"""


def namespaces() -> Check:
    """User, pid, ipc and uts namespaces, and a nested user namespace."""
    return probed("namespaces", "sandbox_namespaces", profile_fix() if is_restricted() else NAMESPACES_FIX)


def apparmor() -> Check:
    """Ubuntu's restriction takes the capabilities in user namespaces from programs without a profile."""
    if not is_restricted():
        return Check("apparmor", True, "does not restrict user namespaces")
    works = probed("apparmor", "sandbox_namespaces", profile_fix())
    if works.ok:
        return Check("apparmor", True, f"restricts user namespaces, but not those of {label()}")
    return Check(
        "apparmor", False, f"restricts user namespaces of programs without a profile: {works.found}", works.fix
    )


def is_restricted() -> bool:
    """Whether AppArmor restricts user namespaces of unprivileged programs."""
    try:
        return RESTRICTION.read_text().strip() == "1"
    except OSError:
        return False


def profile_fix() -> str:
    """The commands that load a profile for this sockd; the worker has it from its next start on."""
    file = "/etc/apparmor.d/sockd"
    return f"{own_command()} doctor --apparmor > {file} && apparmor_parser --replace {file}  # and restart the worker"


def selinux() -> Check:
    """SELinux confines what it knows; sockd comes with no policy of its own."""
    if not ENFORCE.exists():
        return Check("selinux", True, "not active")
    if ENFORCE.read_text().strip() == "0":
        return Check("selinux", True, "permissive: it forbids nothing")
    context = label()
    if set(context.split(":")[2:3]) <= set(UNCONFINED):
        return Check("selinux", True, f"enforcing, and does not confine {context}")
    return Check("selinux", None, f"enforcing, and may confine {context}: sockd has no policy for that", SELINUX_FIX)


def label() -> str:
    """What this process is to the security module."""
    for path in LABELS:
        try:
            return path.read_text().strip("\0\n ")
        except OSError:  # this kernel has no such module
            continue
    return "unconfined"


def apparmor_profile() -> str:
    """A profile that lets this sockd, and no other program, make user namespaces (AppArmor 4.0).

    Raises: ValueError: sockd was not started by a program of its own, or AppArmor cannot name its path."""
    program = Path(sys.executable).with_name("sockd")
    if not program.is_file():
        raise ValueError(
            f"there is no {program}: install sockd, as `python -m sockd` would give the permission to all of Python"
        )
    path = str(program.resolve())
    if re.search(r'["\\\n]', path):
        raise ValueError(f"AppArmor cannot name {path!r}")
    return PROFILE.format(path=re.sub(r"([*?\[\]{}^@])", r"\\\1", path))
