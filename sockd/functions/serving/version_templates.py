"""The templates of one function's versions: which are to have one, and which failed starts end one. Owns nothing."""

from __future__ import annotations

from functools import partial

from sockd.base.errors import FunctionFailed, SockdError
from sockd.functions.serving.failed_inits import FailedInits
from sockd.functions.serving.start_conditions import StartConditions
from sockd.functions.serving.version import Version
from sockd.isolation.sandbox.exchange import Reply
from sockd.isolation.sandbox.sandbox import Sandbox
from sockd.starts.templates.template import Snapshotted, Template, failed_words, lost_words
from sockd.starts.templates.templates import Templates

AFTER_RESTORE_ERROR = "Runtime.AfterRestoreError"


class VersionTemplates:
    """`expect` a version when it is adopted, `forget` it when it is not served any more; `give_up` after a failed start."""

    def __init__(self, templates: Templates | None, failed_inits: FailedInits) -> None:
        """Args: templates: None: no version has a snapshot."""
        self._templates = templates
        self._failed_inits = failed_inits

    def expect(self, version: Version, conditions: StartConditions) -> None:
        """Have a template made for a version, if it is to have a snapshot."""
        if version.config.snapshot and self._templates is not None:
            log = partial(self._log, version)
            name, number = version.record.name, version.number
            self._templates.expect(Snapshotted(name, number, version.view, version.program, conditions, log))

    def _log(self, version: Version, printed: bytes, error: SockdError | None) -> None:
        if printed or error is not None:
            self._failed_inits.note(version, Reply(error=error, log=printed))

    def forget(self, version: Version) -> None:
        """Keep no template for a version."""
        if version.config.snapshot and self._templates is not None:
            self._templates.forget(version.program)

    def give_up(self, template: Template, sandbox: Sandbox, error: SockdError) -> str:
        """A start from a template has failed, which serves no more if it is the cause.

        Returns: why, in words; empty: the function itself has answered so: its handler, or one of its hooks."""
        is_after_restore = isinstance(error, FunctionFailed) and error.error_type == AFTER_RESTORE_ERROR
        if sandbox.init.has_succeeded or is_after_restore:
            return ""
        reason = f"a start from it failed: {failed_words(error)}"
        if self._templates is not None:
            self._templates.lose(template, reason)
        return lost_words(reason)
