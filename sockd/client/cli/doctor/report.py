"""`sockd doctor`: whether this host can run sockd, and the remedy if not.

A check that is False prevents `sockd up`; None costs speed, or is a note. The checks are in `checks`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sockd.base.printable import printable
from sockd.client.cli.doctor import checks as look
from sockd.client.cli.doctor.cgroup_limits import cgroup_limits
from sockd.client.cli.doctor.checks import Check
from sockd.client.cli.doctor.effects import effects
from sockd.client.cli.doctor.image_store import image_key, image_store
from sockd.client.cli.doctor.images import container_images, images_on_demand
from sockd.client.cli.doctor.networks import private_networks
from sockd.client.cli.doctor.security_modules import apparmor, namespaces, selinux

if TYPE_CHECKING:
    from rich.table import Table

    from sockd.base.config import ImagesConfig

__all__ = ["Check", "as_dicts", "render", "run_checks"]


def run_checks(state_dir: Path = Path("/var/lib/sockd"), config: ImagesConfig | None = None) -> list[Check]:
    """Look at everything (about a second); for an ordinary user at what does not need root, and once at what that leaves out.
    Changes nothing that stays; never raises.

    Args: config: of the worker's images; None: the defaults."""
    for_all: list[Look] = [
        look.python,
        look.kernel,
        look.user_namespaces,
        look.seccomp,
        selinux,
        look.scheduler_tick,
        look.core_dumps,
        look.kernel_console,
        look.packages,
        look.initscripts,
        lambda: look.disk(state_dir),
        lambda: look.state_directory(state_dir),
        look.memory,
    ]
    if os.geteuid() != 0:
        return [look.privileges(names([*FOR_ROOT, *OF_IMAGES])), *map(_shielded, for_all)]
    of_this_state = (private_networks, container_images)
    for_root = [partial(each, state_dir) if each in of_this_state else each for each in FOR_ROOT]
    of_images: list[Look] = [partial(each, state_dir, config) for each in OF_IMAGES]
    return [look.privileges(), *map(_shielded, [*for_root, *of_images, *for_all]), *effects()]


Look = Callable[[], Check]
FOR_ROOT: list[Look] = [
    look.roots,
    look.proc,
    look.exits,
    look.host_files,
    namespaces,
    apparmor,
    look.forks,
    look.cgroups,
    look.cgroup_moves,
    cgroup_limits,
    look.socket_guards,
    look.packet_guard,
    private_networks,
    container_images,
    images_on_demand,
    look.open_files,
]
"""What another user would find wrong although it is not: mounts, cgroups, devices and limits that the worker has as root."""


OF_IMAGES: list[Callable[..., Check]] = [image_store, image_key]
"""For root as well: others cannot look into the state directory."""


def names(looks: Sequence[Callable[..., Check]]) -> list[str]:
    """The subjects of these checks."""
    return [each.__name__.replace("_", " ") for each in looks]


def render(checks: list[Check]) -> Table:
    """The findings as a table."""
    from rich.markup import escape  # only for people: scripts do not pay for rich
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("", "check", "found"):
        table.add_column(heading, overflow="fold")
    marks = {True: "[green]ok[/]", False: "[red]FAIL[/]", None: "[yellow]note[/]"}
    for check in checks:
        fix = f"\n[bold]fix:[/] {escape(printable(check.fix))}" if check.fix else ""
        table.add_row(marks[check.ok], check.name, escape(printable(check.found)) + fix)
    return table


def as_dicts(checks: list[Check]) -> list[dict[str, object]]:
    """The findings as JSON (`--json`)."""
    return [asdict(check) for check in checks]


def _shielded(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        name = getattr(check, "__name__", "check").replace("_", " ")
        return Check(name, None, f"could not be checked: {error!r}", "run sockd doctor as root")
