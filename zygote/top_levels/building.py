"""Builds from source, inside a sandbox: the handler of `sockd.starts.builds.builder`.

uv runs build backends, which are foreign code, with the rights of this process: its answers are untrusted. All files are below
/tmp, which is deleted with the sandbox.
"""

from __future__ import annotations

import os
import subprocess

TYPE_CHECKING = False  # typing is off the import diet; type checkers know this name
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

UV = "/var/task/uv"
HOME = "/tmp/build"
CHUNK_BYTES = 64 << 10
MOST_WORDS = 6000
"""Characters of a failed command's output in its error: the last ones, where compilers and backends report errors."""


class CommandFailed(Exception):
    """A command of a build failed; the message is the end of its output."""


class BadSource(Exception):
    """The source is not the one that was pinned, or cannot be fetched."""


def answer(event: dict[str, Any]) -> object:
    """A lock file for the event's `requirements`, or the wheel of its `source`, streamed after a head with its file name.

    Args: event: also has `env`, the environment of this process and its children, and `python`, the interpreter to build for."""
    os.environ.clear()
    os.environ.update(event["env"])
    os.makedirs(f"{HOME}/out")
    os.chdir(HOME)
    if "requirements" in event:
        return resolve(event)
    return pieces(build(event))


def resolve(event: dict[str, Any]) -> str:
    """The text of the lock file. Raises: CommandFailed."""
    with open("requirements.txt", "w", encoding="utf-8") as file:
        file.write(event["requirements"])
    run(
        *(UV, "pip", "compile", "requirements.txt", "--format=pylock.toml", "--output-file=pylock.toml"),
        *("--no-header", "--no-sources", "--quiet", "--color=never", "--no-progress", f"--python={event['python']}"),
    )
    with open("pylock.toml", encoding="utf-8") as file:
        return file.read()


def build(event: dict[str, Any]) -> str:
    """The path of the wheel. Raises: CommandFailed, BadSource."""
    source = event["source"]
    path = clone(source) if source["commit"] else fetch(source["url"], source["digest"])
    if path.endswith(".whl"):
        return path
    if source["subdirectory"]:
        path = os.path.join(path if os.path.isdir(path) else unpack(path), source["subdirectory"])
    run(
        *(UV, "build", "--wheel", "--out-dir", f"{HOME}/out", "--no-sources", "--color=never", "--no-progress"),
        *("--no-create-gitignore", f"--python={event['python']}", path),
    )
    wheels = [name for name in os.listdir("out") if name.endswith(".whl")]
    if len(wheels) != 1:
        raise CommandFailed(f"the build backend has made {len(wheels)} wheels instead of one")
    return f"{HOME}/out/{wheels[0]}"


def clone(source: dict[str, Any]) -> str:
    """Check out a commit: alone if the server supports that, otherwise with all branches and tags."""
    url, commit = source["url"], source["commit"]
    git = ("git", "-c", "advice.detachedHead=false", "-C", "source")
    run("git", "init", "--quiet", "source")
    try:
        run(*git, "fetch", "--quiet", "--depth=1", url, commit)
    except CommandFailed:
        run(*git, "fetch", "--quiet", url, "+refs/heads/*:refs/all/*", "+refs/tags/*:refs/tags/*")
    run(*git, "checkout", "--quiet", commit)
    run(*git, "submodule", "--quiet", "update", "--init", "--recursive", "--depth=1")
    return f"{HOME}/source"


def fetch(url: str, digest: str) -> str:
    """Download a file, under its name in the URL. Raises: BadSource."""
    import hashlib
    import urllib.parse
    import urllib.request

    path = f"{HOME}/{os.path.basename(urllib.parse.unquote(urllib.parse.urlsplit(url).path)) or 'source'}"
    found = hashlib.sha256()
    try:
        with urllib.request.urlopen(url) as answer, open(path, "wb") as file:
            while piece := answer.read(CHUNK_BYTES):
                found.update(piece)
                file.write(piece)
    except (OSError, ValueError) as error:
        raise BadSource(f"it cannot be fetched: {error}") from None
    if found.hexdigest() != digest:
        raise BadSource(f"its sha256 is {found.hexdigest()}, expected {digest}")
    return path


def unpack(path: str) -> str:
    """Unpack a source distribution. Returns: its only top directory, or the directory of all its files."""
    import shutil

    if path.endswith(".zip"):
        shutil.unpack_archive(path, f"{HOME}/source")
    else:
        shutil.unpack_archive(path, f"{HOME}/source", filter="data")
    names = os.listdir(f"{HOME}/source")
    return f"{HOME}/source/{names[0]}" if len(names) == 1 else f"{HOME}/source"


def run(*command: str) -> None:
    """Run a command to its end. Raises: CommandFailed."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except FileNotFoundError:
        raise CommandFailed(f"{command[0]} is not installed on the worker's host") from None
    with process:
        assert process.stdout is not None
        last = b""
        while piece := os.read(process.stdout.fileno(), CHUNK_BYTES):
            last = (last + piece)[-4 * MOST_WORDS :]
    if process.returncode:
        words = last.decode(errors="replace").strip()[-MOST_WORDS:]
        raise CommandFailed(words or f"{os.path.basename(command[0])} ended with {process.returncode}")


def pieces(path: str) -> Iterator[object]:
    """A file as a streamed answer, after a head with its name."""
    yield {"statusCode": 200, "headers": {"x-wheel": os.path.basename(path)}}
    with open(path, "rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece
