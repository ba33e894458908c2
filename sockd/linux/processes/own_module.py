"""Processes of ours: a module of our own, exec'd in the daemon's interpreter with nothing of its environment."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path


async def start_module(
    module: str,
    *arguments: str,
    keep: Sequence[int] = (),
    stdin: int = asyncio.subprocess.DEVNULL,
    stdout: int = asyncio.subprocess.DEVNULL,
    stderr: int | None = None,
) -> asyncio.subprocess.Process:
    """Run a module as a program. Args: keep: descriptors that it gets, under their own numbers; stderr: None is our own.

    Call it in the main thread: PR_SET_PDEATHSIG is about the thread that was the parent. Raises: OSError."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module, *arguments),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        pass_fds=tuple(keep),
        start_new_session=True,
        cwd="/",
        env={"PYTHONPATH": str(Path(__file__).parents[3])},
    )
