"""`sockd imports`: the packages that a function imports, their cost, and those that its Zygote has imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import echo, json_option, print_json
from sockd.client.console.tables import print_table

MOST_PASSED_OVER = 5
"""Zygotes that are named as passed over, besides the one in the reason."""


@click.command()
@click.argument("name")
@click.option("--modules", is_flag=True, help="Also list each module.")
@state_dir_option
@json_option
def imports(name: str, modules: bool, state_dir: Path, as_json: bool) -> None:
    """Show the packages that a function imports, and the cost of each at a cold start.

    The times are those of the recorded start of its own, and of the last new sandbox for what that had not imported."""
    shown = Management(state_dir).get("functions", name, "imports")
    if as_json:
        print_json(shown)
        return
    packages: list[dict[str, Any]] = shown["packages"]
    if not packages:
        for line in (f"{name} has no packages", *costs(shown), shown["sharing"]):
            echo(line)
        return
    rows = []
    for package in packages:
        took = f"{package['ms']:.1f} ms" if package["ms"] else "-"
        rows.append((package["package"], took, str(len(package["modules"])), state(package)))
        if modules:
            rows += [module_row(module) for module in package["modules"]]
    if standard := shown["standard"]["ms"]:
        rows.append(("standard library", f"{standard:.1f} ms", "", state_of_standard(shown["standard"])))
    print_table(("package", "import", "modules", "Zygote"), rows)
    for line in words(shown):
        echo(line)


def module_row(module: dict[str, Any]) -> tuple[str, str, str, str]:
    place = "imported ahead" if module["in_zygote"] else "in each cold start"
    return f"  {module['module']}", f"{module['ms']:.1f} ms", "", place


def state(package: dict[str, Any]) -> str:
    """Say who imports it."""
    if package["refused"]:
        return f"refused: {package['refused']}"
    if package["in_zygote"]:
        return "imported ahead"
    if package["ahead_ms"]:
        return f"{package['ahead_ms']:.1f} ms of it ahead, the rest in each cold start"
    return "in each cold start" if package["ms"] else "-"


def state_of_standard(standard: dict[str, float]) -> str:
    """Say how much of the standard library's modules a Zygote has imported."""
    return f"{standard['ahead_ms']:.1f} ms of it ahead" if standard["ahead_ms"] else "in each cold start"


def costs(shown: dict[str, Any]) -> list[str]:
    """Return the sums of the table; none with zygote = "none", and before the first cold start."""
    parts = [*shown["packages"], shown["standard"]]
    spared = sum(part["ahead_ms"] for part in parts)
    paid = sum(part["ms"] for part in parts) - spared
    if spared:
        return [f"a cold start now imports for {paid:.1f} ms, and is spared {spared:.1f} ms by its Zygote"]
    return [f"a cold start now imports for {paid:.1f} ms, and is spared nothing by a Zygote"] if paid else []


def words(shown: dict[str, Any]) -> list[str]:
    """Return the sums of the table, and why it is not less."""
    lines = [*costs(shown), shown["sharing"]]
    others = [each for each in shown["passed_over"] if each["reason"] not in shown["sharing"]]
    for larger in others[:MOST_PASSED_OVER]:
        lines.append(f"the Zygote of {', '.join(larger['packages'])} is passed over: {larger['reason']}")
    if shown["sharing"].startswith("nothing is imported ahead"):
        return lines
    if not shown["zygotes_allowed"]:
        lines.append("its zygote setting allows no Zygote with packages, so it imports all packages itself")
    elif movable := [each["package"] for each in shown["packages"] if each["shareable"] and not each["refused"]]:
        lines.append(f"a Zygote could take more of: {', '.join(movable)}")
    return lines
