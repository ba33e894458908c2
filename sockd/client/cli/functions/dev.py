"""`sockd dev DIR`: deploy a directory each time a file in it is saved."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sockd.base.extras import installing
from sockd.client.cli.functions.code_directory import CodeDirectory, secrets_words
from sockd.client.cli.functions.deploy import default_name
from sockd.client.cli.observe.logs import show_line_by_line
from sockd.client.console.client import Management, state_dir_option
from sockd.client.console.output import Failure, echo, json_option, print_json, say

if TYPE_CHECKING:
    from sockd.functions.code.selection import LeftOut

SETTLE_MS = 5
"""A save is complete after this time without a change: editors write a file and then rename it."""
IDLE_MS = 250
MAX_SHOWN = 5
MAX_SOURCE_BYTES = 4 << 20
RESOLUTION_S = 1e-6
"""Records are asked for by the time of the last one, which is known to the microsecond."""


@click.command()
@click.argument("directory", default=".", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", help="The function's name.  [default: the name of the directory]")
@state_dir_option
@json_option
def dev(directory: Path, name: str | None, state_dir: Path, as_json: bool) -> None:
    """Deploy DIRECTORY each time a file in it is saved, until Ctrl-C.

    Packs as sockd deploy does: .sockdignore and .gitignore hold. Prints the function's output, and errors of code that does not
    compile, which is not deployed. Packages are resolved only when the declared dependencies change."""
    try:
        import watchfiles
    except ImportError:
        raise Failure("sockd dev needs watchfiles", fix=installing("watch")) from None
    project = Project(directory, name or default_name(directory), Management(state_dir), as_json)
    with contextlib.suppress(KeyboardInterrupt):
        project.deploy()
        project.show_output()
        changes = watchfiles.watch(
            directory,
            watch_filter=lambda _, path: project.is_packed(Path(path)),
            step=SETTLE_MS,
            debounce=100,
            rust_timeout=IDLE_MS,
            yield_on_timeout=True,
        )
        for number, change in enumerate(changes):
            # When it yields for the first time, be it a time-out, it watches. What was saved between the deploy and then
            # no event tells of, so it is looked for before anything is said of watching.
            if change or number == 0:
                project.deploy(sorted({Path(path) for _, path in change}))
            if number == 0:
                project.tell_watching()


class Project:
    """A directory and its last deploy."""

    def __init__(self, directory: Path, name: str, management: Management, as_json: bool) -> None:
        self.name = name
        self.management = management
        self._directory = directory
        self._as_json = as_json
        self._digest = ""
        self._files: Files = {}
        self._refused_digest = ""
        self._code = CodeDirectory(directory, management)
        self._shown_secrets = ""
        self._shown_notes: set[str] = set()

    def is_packed(self, path: Path) -> bool:
        """Whether a file or directory, by its absolute path, is among what is deployed, or decides about it."""
        from sockd.functions.code.selection import is_packed

        try:
            return is_packed(self._directory, path.relative_to(self._directory.resolve()))
        except ValueError:
            return True

    def deploy(self, saved: Sequence[Path] = ()) -> None:
        """Deploy the files as they are now if they differ, and print the result. After an error, which is printed, too, the
        version before goes on serving.

        What changed is what differs from the deploy before: whether or not an event has named it, and what did not compile
        is tried again until it does.

        Args: saved: what events named, to be listed if nothing can be packed. Raises: Failure, of the first deploy."""
        started_ns = time.perf_counter_ns()
        changed = [_relative(path, self._directory) for path in saved]
        is_first = not self._digest
        try:
            archive, digest, left_out = self._code.packed()
            if digest == self._refused_digest:
                return  # one save may be several events; the refusal was shown
            self._refused_digest = ""
            if digest == self._digest:
                return
            files = packed_files(archive)
            if not is_first:
                changed = sorted({path for path, _ in files.items() ^ self._files.items()})
                if (error := syntax_error(archive, changed, self._directory)) is not None:
                    self._refused_digest = digest
                    self._tell_failure(changed, error)
                    return
            function = self._deploy(archive)
        except Failure as failure:
            if is_first:
                raise
            self._tell_failure(changed, "\n".join(filter(None, [failure.message, failure.why])))
            return
        self._files = files
        self._digest = digest
        self._show_secrets(left_out)
        took_ms = (time.perf_counter_ns() - started_ns) / 1e6
        if self._as_json:
            _print({"changed": changed, "version": function["version_number"], "ms": round(took_ms, 3)})
        else:
            echo(f"{_now()}  {_shown(changed)}version {function['version_number']} in {took_ms:.0f} ms")

    def _show_secrets(self, left_out: Sequence[LeftOut]) -> None:
        words = secrets_words(self._directory, left_out)
        if words and words != self._shown_secrets:
            say(words)
        self._shown_secrets = words

    def tell_watching(self) -> None:
        """Report that changes are now observed."""
        url = f"{self.management.get('status')['url']}/run/{self.name}"
        if self._as_json:
            _print({"watching": str(self._directory), "url": url})
        else:
            say(f"watching {self._directory} for {url}; Ctrl-C ends it")

    def show_output(self) -> None:
        """Print the function's output from now on, between messages about deploys."""
        if not self._as_json:
            threading.Thread(target=self._follow, args=(time.time(),), daemon=True).start()

    def _follow(self, since_s: float) -> None:
        with contextlib.suppress(Failure, OSError):  # the worker has ended, or the function was removed
            while True:  # a worker that another one follows ends its streams
                # What is printed until the worker knows of this follower is in its records.
                query = {"since": f"{since_s:.6f}", "follow": "1"}
                for record in self.management.lines("GET", "functions", self.name, "logs", query=query):
                    show_line_by_line(record)
                    since_s = record["time_s"] + RESOLUTION_S

    def _deploy(self, archive: bytes) -> dict[str, Any]:
        headers = {"x-sockd-overrides": json.dumps({"keep_packages": True})}
        lines = self.management.lines("PUT", "functions", self.name, body=archive, headers=headers)
        deployed: dict[str, Any] = self.management.result(lines, lambda text: None, self._show_note)
        return deployed

    def _show_note(self, text: str) -> None:
        if text not in self._shown_notes:
            say(f"note: {text}")
        self._shown_notes.add(text)

    def _tell_failure(self, paths: Sequence[str], why: str) -> None:
        if self._as_json:
            _print({"changed": list(paths), "error": why})
            return
        echo(f"{_now()}  {_shown(paths)}", nl=False)
        echo("not deployed", fg="red", bold=True)
        echo(why)


Files = Mapping[str, tuple[int, int, int]]
"""CRC, size in bytes and mode of each path of an archive."""


def packed_files(archive: bytes) -> Files:
    """What was packed; paths of directories end with a slash."""
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        return {info.filename: (info.CRC, info.file_size, info.external_attr) for info in packed.infolist()}


def syntax_error(archive: bytes, paths: Sequence[str], directory: Path) -> str | None:
    """Why one of these does not compile, as Python says it; None: those that are sources, and are still there, do.

    Args: archive: what would be deployed: nothing is read that could have been saved since. directory: for the names."""
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        for path in sorted(set(paths) & set(packed.namelist())):
            if not path.endswith(".py") or packed.getinfo(path).file_size > MAX_SOURCE_BYTES:
                continue
            try:
                compile(packed.read(path), str(directory / path), "exec", dont_inherit=True)
            except (SyntaxError, ValueError) as error:
                import traceback

                return "".join(traceback.format_exception_only(error)).rstrip()
            except (RecursionError, MemoryError):
                continue
    return None


def _relative(path: Path, directory: Path) -> str:
    try:
        return str(path.relative_to(directory.resolve()))
    except ValueError:
        return str(path)


def _shown(paths: Sequence[str]) -> str:
    if not paths:
        return ""
    more = f" and {len(paths) - MAX_SHOWN} more" if len(paths) > MAX_SHOWN else ""
    return f"{', '.join(paths[:MAX_SHOWN])}{more}: "


def _now() -> str:
    return time.strftime("%H:%M:%S")


def _print(line: dict[str, Any]) -> None:
    print_json(line, indent=None)
