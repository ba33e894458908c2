"""`sockd doctor`: whether this host can run sockd, and the line that fixes it where it cannot.

A check that is False stops `sockd up`; one that is None costs speed, or is worth knowing. The checks are in `checks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sockd.cli import checks as look
from sockd.cli.checks import Check
from sockd.cli.effects import effects
from sockd.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Check", "as_dicts", "render", "run_checks"]


def run_checks(state_dir: Path = Path("/var/lib/sockd")) -> list[Check]:
    """Look at everything (about a second). Changes nothing that stays; never raises."""
    every: list[Callable[[], Check]] = [
        look.python,
        look.privileges,
        look.kernel,
        look.roots,
        look.host_files,
        look.namespaces,
        look.user_namespaces,
        look.apparmor,
        look.seccomp,
        look.cgroups,
        look.cgroup_moves,
        look.socket_guards,
        look.scheduler_tick,
        look.open_files,
        look.core_dumps,
        look.kernel_console,
        look.packages,
        look.initscripts,
        lambda: look.disk(state_dir),
        lambda: look.state_directory(state_dir),
        look.memory,
    ]
    return [*(_shielded(check) for check in every), *effects()]


def render(checks: list[Check]) -> Table:
    """The findings as a table for people."""
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
    """The findings for scripts (`--json`)."""
    return [asdict(check) for check in checks]


def _shielded(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        name = getattr(check, "__name__", "check").replace("_", " ")
        return Check(name, None, f"could not be looked at: {error!r}", "run sockd doctor as root")
