"""CodeDirectory: a directory that is deployed, packed for one worker; and what commands print about the files left out of it."""

from __future__ import annotations

import shlex
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sockd.base.errors import BadArchive, SockdError
from sockd.base.spelling import counted, size
from sockd.client.console.client import Management
from sockd.client.console.output import USAGE, Failure, echo, print_json, say
from sockd.client.console.tables import print_table

if TYPE_CHECKING:  # these take longer to import than most commands take
    from sockd.base.config import CodeConfig
    from sockd.functions.code.packing import PackedDirectory
    from sockd.functions.code.selection import LeftOut

SETTINGS = "sockd.toml"
MAX_SHOWN = 5


class CodeDirectory:
    """One directory with a function's code, or with the settings of a function in an image."""

    def __init__(self, directory: Path, management: Management, *, in_image: bool = False) -> None:
        """Args: in_image: its code is an image's, whatever its settings say."""
        self._directory = directory
        self._management = management
        self._in_image = in_image
        self._config: CodeConfig | None = None
        self.left_out: Sequence[LeftOut] = ()
        """What was left out when it was packed last."""

    def packed(self) -> PackedDirectory:
        """Pack what is there now, within the worker's limits. Raises: Failure."""
        from sockd.functions.code.packing import pack_directory

        only = _files_with_image(self._directory, in_image=self._in_image)
        try:
            try:
                packed = pack_directory(self._directory, self._config, only=only)
            except BadArchive:  # perhaps for the default limits, where the worker has higher ones
                if not self._learn_limits():
                    raise
                packed = pack_directory(self._directory, self._config, only=only)
        except (SockdError, OSError) as error:
            raise _not_deployable(self._directory, error) from None
        self.left_out = packed.left_out
        return packed

    def _learn_limits(self) -> bool:
        """Ask the worker for its limits once. Returns: whether they differ from the default ones."""
        from sockd.base.config import CodeConfig

        if self._config is not None:
            return False
        try:
            limits: dict[str, int] = self._management.get("status")["limits"]
        except Failure:
            return False
        default = CodeConfig()
        self._config = CodeConfig(
            max_zip_bytes=limits.get("archive_bytes", default.max_zip_bytes),
            max_code_bytes=limits.get("code_bytes", default.max_code_bytes),
            max_files=limits.get("code_files", default.max_files),
        )
        return self._config != default


def show_plan(source: Path, *, in_image: bool, as_json: bool) -> None:
    """Print what a deploy of a directory or zip would send, and what not. Raises: Failure."""
    if source.is_dir():
        from sockd.functions.code.packing import MOST_LISTED
        from sockd.functions.code.selection import select

        try:
            selection = select(source, only=_files_with_image(source, in_image=in_image), max_entries=MOST_LISTED)
        except (SockdError, OSError) as error:
            raise _not_deployable(source, error) from None
        files = [(each.path, each.size_bytes) for each in selection.packed if not each.path.endswith("/")]
        left_out: Sequence[LeftOut] = selection.left_out
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as archive:
            files = [(info.filename, info.file_size) for info in archive.infolist() if not info.is_dir()]
        left_out = ()
    else:
        raise Failure("--dry-run lists what is packed of a directory or a zip archive", exit_code=USAGE)
    total = sum(length for _, length in files)
    if as_json:
        packed = [{"path": path, "size_bytes": length} for path, length in files]
        print_json({"packed": packed, "left_out": left_out_json(left_out), "size_bytes": total})
        return
    if files:
        print_table(("packed", "size"), [(path, size(length)) for path, length in files])
    if left_out:
        print_table(("left out", "why"), [(each.path, each.reason) for each in left_out])
    echo(f"{counted(len(files), 'file')}, {size(total)}; nothing was deployed")
    show_left_out(source, left_out)


def left_out_json(left_out: Sequence[LeftOut]) -> list[dict[str, str]]:
    """Return what is left out, for programs."""
    return [{"path": each.path, "reason": each.reason} for each in left_out]


def show_left_out(directory: Path, left_out: Sequence[LeftOut]) -> None:
    """Print on stderr what a user may miss: secrets, and what a .gitignore names."""
    ignored = [each.path for each in left_out if each.by_git]
    if ignored:
        say(f"left out by .gitignore: {_shown(ignored)}")
    if words := secrets_words(directory, left_out):
        say(words)


def secrets_words(directory: Path, left_out: Sequence[LeftOut]) -> str:
    """Say which secrets are left out, and how to include them; empty if there are none."""
    secrets = [each.path for each in left_out if each.is_secret]
    if not secrets:
        return ""
    command = f"echo {shlex.quote('!/' + secrets[0])} >> {shlex.quote(str(directory / '.sockdignore'))}"
    return f"left out, as possible secrets: {_shown(secrets)}; to pack one: {command}; for variables: sockd secret set"


def _shown(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - MAX_SHOWN} more (sockd deploy --dry-run)" if len(paths) > MAX_SHOWN else ""
    return f"{', '.join(paths[:MAX_SHOWN])}{more}"


def _files_with_image(directory: Path, *, in_image: bool) -> list[str] | None:
    """The files that a function has outside of its image; None: all, as it is in no image, or an initscript may be among them.

    The directory is often that of the Dockerfile: with all that the image is built from, or the image itself."""
    try:
        text = (directory / SETTINGS).read_text()
        settings = tomllib.loads(text)
    except FileNotFoundError:
        return [] if in_image else None
    except (OSError, ValueError):  # the worker will refuse these
        return None
    if not in_image and "image" not in settings:
        return None
    return None if "initscript" in text else [SETTINGS]


def _not_deployable(directory: Path, error: SockdError | OSError) -> Failure:
    if isinstance(error, SockdError):
        return Failure(f"{directory} cannot be deployed", why=error.message)
    return Failure(f"{directory} cannot be read", why=str(error))
