"""`sockd selftest`: the fault-injection suite (`source_tree`), against a private worker on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from sockd.client.cli.source.source_tree import environment, installing, lacking, source_tree
from sockd.client.cli.written_file import WrittenFile
from sockd.client.console.output import USAGE, Failure

LIBRARIES = (
    *(
        "anyio",
        "blockbuster",
        "boto3",
        "botocore",
        "cgroupspy",
        "cronsim",
        "grpc",
        "hypothesis",
        "pyroute2",
        "pytest",
        "pytest_timeout",
    ),
    *("wasmtime", "websockets", "ziglang"),
)
"""The libraries of the extra `selftest`."""
FOLDERS = (
    *("tests/abuse", "tests/images/agent_keeper", "tests/faults", "tests/isolation/networks", "tests/spec"),
    "tests/starts/packages/test_built_names.py",
    "tests/daemon/groups",
    "tests/daemon/services",
    "tests/daemon/initscripts/test_prefetching_services.py",
    "tests/daemon/images/test_image_failures.py",
    "tests/daemon/images/test_lost_images.py",
    "tests/daemon/images/test_without_resends.py",
    "tests/daemon/snapshots",
    "tests/daemon/observation/test_page_keys.py",
    "tests/daemon/confinement/test_task_limits.py",
    "tests/daemon/test_wasm.py",
    "tests/daemon/confinement/test_writable_roots.py",
    "tests/http/test_front.py",
    "tests/images/store/test_import_runs.py",
    "tests/observe/test_log_store.py",
    "tests/images/registry/test_destinations.py",
    "tests/images/registry/test_sources.py",
)


@click.command()
@click.option("--all", "everything", is_flag=True, help="Include long cases.")
@click.option("--group", metavar="A,D", default="", help="Only these groups.")
@click.option("--case", "cases", metavar="A1,B3", default="", help="Only these cases, including long ones.")
@click.option("--json", "file", metavar="FILE", type=WrittenFile(), help="Write a report.")
def selftest(everything: bool, group: str, cases: str, file: Path | None) -> None:
    """Attack a private worker on this machine, and report each case (root)."""
    if missing := lacking(LIBRARIES):
        raise Failure(f"{missing} not installed", fix=installing("selftest"), exit_code=USAGE)
    if os.geteuid() != 0:
        raise Failure("a worker needs root", fix="sudo sockd selftest", exit_code=USAGE)
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.selftest", "-p", "no:cacheprovider"]
    command += ["-q", "--no-header", "--tb=short", "--show-capture=no", "-r", "N", *FOLDERS]
    command += ["--all"] * everything + [f"--group={group.upper()}"] * bool(group)
    command += [f"--case={cases.upper()}"] * bool(cases)
    if file is not None:
        command.append(f"--cases-json={file.resolve()}")
    os.chdir(source_tree())  # noqa: TID251  nothing else runs in this process
    os.execve(sys.executable, command, environment())
