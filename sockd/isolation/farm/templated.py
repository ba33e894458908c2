"""What a Zygote is asked for that is to be a template, and the memory file in which it reports what came of it.

As that of an import (`sockd.isolation.farm.imported`): its size is sealed, and the Zygote, which has run the function's code
by then, may write anything there. A false report can only cause that starts of this version alone fail, or have no template.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence

import msgspec

from sockd.base.untrusted import read_seconds, read_text
from sockd.isolation.farm.control import ZygoteGone, ZygoteRefused, close_all
from sockd.isolation.farm.zygote import Zygote
from sockd.isolation.networks.endpoint import Endpoint
from sockd_zygote import protocol

MOST_WORDS = 500
"""Characters of one reason."""
MOST_READ = 64 << 10
"""Characters of what an init has read."""


class TemplateError(msgspec.Struct, frozen=True, rename="camel"):
    """The exception that an init or a hook has raised, as AWS tells errors."""

    error_type: str = ""
    error_message: str = ""
    stack_trace: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Type and message, in one line that is not too long."""
        return read_text(f"{self.error_type}: {self.error_message}"[:MOST_WORDS])


class TemplateReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of a Zygote that was to be a template."""

    seconds: float = 0.0
    """How long the init took."""
    error: TemplateError | None = None
    """Its exception; then there is no template."""
    refused: tuple[str, ...] = ()
    """What init has left that no fork can have of its own, in words; with any, there is no template."""
    closed: tuple[str, ...] = ()
    """Connections that were closed by the snapshot, each as HOST:PORT."""
    notes: tuple[str, ...] = ()
    """What else starts from it have otherwise than their own init would."""
    has_tmp: bool = False
    """Whether init has left more in /tmp than each start should write anew."""
    reads: tuple[tuple[str, ...], ...] = ()
    """What init has read through the storage library, each in the words of the initscript engine."""


async def become_template(
    zygote: Zygote, init: bytes, tree: int, output: int, endpoint: Endpoint | None, *, deadline_s: float
) -> TemplateReport:
    """Have a Zygote run the init of a version, whose template it is from now on if the report refuses nothing.

    Args:
        init: its INIT message; tree: a root of a Zygote with the version's code, the caller's.
        output: the write end of the pipe that it prints to; endpoint: the network of its init; None: the Zygote's.
    Raises: ZygoteGone, with what it was doing, when the init killed it or hung; ZygoteRefused; OSError."""
    file = TemplateFile(init)
    network = () if endpoint is None or endpoint.namespace is None else (endpoint.namespace,)
    try:
        fds = file.fd, tree, output, *network
        answer = await zygote.request("template", fds, deadline_s=deadline_s, bytes=file.init_bytes)
        close_all(answer.fds)
        return file.report(answer.message.get("bytes"))
    except ZygoteGone as error:
        error.stage = file.stage()
        raise
    finally:
        file.close()


async def copy_ahead(zygote: Zygote, pages: Sequence[tuple[int, int]], *, deadline_s: float) -> None:
    """Have the spares of a template copy these rows of pages before they wait: (the number of the first, their count).

    Raises: ZygoteGone, ZygoteRefused, OSError."""
    close_all((await zygote.request("ahead", (), deadline_s=deadline_s, pages=pages)).fds)


class TemplateFile:
    """The memory file of one `template`. Owns its descriptor; `close` it."""

    def __init__(self, init: bytes) -> None:
        """Args: init: an INIT message. Raises: ZygoteRefused, when it is too long; OSError."""
        if len(init) > protocol.IMPORT_MAX_BYTES:
            raise ZygoteRefused(f"the message that a template becomes has {len(init)} bytes")
        self.init_bytes = len(init)
        self.fd = os.memfd_create("template", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.truncate(self.fd, protocol.IMPORT_FILE_BYTES)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
            os.pwrite(self.fd, init, 0)
        except BaseException:
            os.close(self.fd)
            raise

    def report(self, count: object) -> TemplateReport:
        """What the template wrote, as long as it says. Raises: ZygoteGone when that does not add up."""
        if type(count) is not int or not 0 < count <= protocol.IMPORT_REPORT_MAX_BYTES:
            raise ZygoteGone("the Zygote's answer to `template` has no length")
        return read_report(os.pread(self.fd, count, 0))

    def stage(self) -> str:
        """What the template says to have begun last, in words."""
        data = os.pread(self.fd, protocol.IMPORT_PROGRESS.size, protocol.IMPORT_MAX_BYTES)
        begun = int(protocol.IMPORT_PROGRESS.unpack(data)[0])
        stages = protocol.TEMPLATE_STAGES
        return stages[begun - 1] if 0 < begun <= len(stages) else stages[0]

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.fd)


def read_report(data: bytes) -> TemplateReport:
    """Raises: ZygoteGone."""
    try:
        report = msgspec.json.decode(data, type=TemplateReport)
        return msgspec.structs.replace(
            report,
            seconds=read_seconds(report.seconds),
            refused=tuple(read_text(words[:MOST_WORDS]) for words in report.refused),
            closed=tuple(read_text(words[:MOST_WORDS]) for words in report.closed),
            notes=tuple(read_text(words[:MOST_WORDS]) for words in report.notes),
            reads=read_reads(report.reads),
        )
    except (ValueError, RecursionError, OverflowError):  # msgspec's errors are ValueErrors
        raise ZygoteGone("the Zygote's answer is not one to `template`") from None


def read_reads(reported: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """Return what an init says to have read; nothing, if that is too long."""
    size = sum(len(words) for rpc in reported for words in rpc)
    return tuple(tuple(map(read_text, rpc)) for rpc in reported) if size <= MOST_READ else ()
