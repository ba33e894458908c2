"""Files and directories that a command writes: checks in advance whether it can. Owns nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click


class WrittenFile(click.Path):
    """An option's file, made or replaced when the command is done; its directory has to be there."""

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if (why := why_not(path)) is not None:
            self.fail(why, param, ctx)
        return path


def why_not(path: Path) -> str | None:
    """Why a file cannot be written, or None."""
    directory = path.absolute().parent
    if not directory.is_dir():
        return f"{path} cannot be written: {directory} is {'no directory' if directory.exists() else 'not there'}"
    if path.is_dir():
        return f"{path} cannot be written: it is a directory"
    if not os.access(path if path.exists() else directory, os.W_OK):
        return f"{path} cannot be written: permission denied"
    return None
