"""The first step of a deploy: its settings, parsed once from sockd.toml, ol.yaml and the deploy's own parameters.

Owns nothing.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from sockd.base import toml
from sockd.base.blocking import in_thread
from sockd.base.config import FunctionDefaults
from sockd.base.errors import NameTaken, NoSuchFunction
from sockd.base.notes import Note, Progress
from sockd.functions.code import kept_settings, ol_yaml
from sockd.functions.code.code_store import CodeVersion
from sockd.functions.code.entrypoint import OPENLAMBDA, detected
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.deploys.content import CHECK_HANDLER, KEEP_PACKAGES
from sockd.functions.deploys.deploy_check import CHECK
from sockd.functions.registry.registry import Registry

FORCE = "force"
"""A parameter of a deploy: true replaces a function that was deployed from another source, or whose variables and secrets do not
open."""
DECORATED_HANDLER = "sockd:handler"
"""The handler of every decorated function. A sockd that recorded no sources deployed those that have this handler and no
source."""
LONG_TIMEOUT_S = 30.0
"""The time limit of f.py, of code with an ol.yaml, and of decorated functions, unless they set another."""
NO_SETTINGS = frozenset({CHECK, CHECK_HANDLER, KEEP_PACKAGES, FORCE})
"""What a deploy may say besides keys of sockd.toml."""


class Parsed(NamedTuple):
    """The settings of a deploy."""

    config: FunctionConfig
    named: frozenset[str]
    """The settings that the deploy names (`kept_settings.named`)."""


class Parsing:
    """The settings of the deploys of one worker."""

    def __init__(self, defaults: FunctionDefaults, registry: Registry) -> None:
        self._defaults = defaults
        self._registry = registry

    async def parse(self, name: str, code: CodeVersion, overrides: dict[str, Any], progress: Progress) -> Parsed:
        """Read the settings of an archive.

        Args: overrides: keys of sockd.toml that win over it, and those of NO_SETTINGS.
        Raises: BadArchive, BadFunctionConfig, NameTaken, SecretsLocked."""
        settings = {key: value for key, value in overrides.items() if key not in NO_SETTINGS}
        # A stranger's texts, parsed in Python: not on the loop, and all in one thread.
        config, named, notes = await in_thread(_read, code, self._defaults, settings, self._timeout(code, overrides))
        for note in notes:
            progress(Note(note))
        config = config.with_secrets(self._secrets(name))
        if not overrides.get(FORCE):
            self.check_source(name, config)
        return Parsed(config, named)

    def check_source(self, name: str, config: FunctionConfig) -> None:
        """Refuse to replace the function of another source, which may have callers, or one whose variables and secrets would be
        lost. Raises: NameTaken, SecretsLocked."""
        try:
            record = self._registry.get(name)
        except NoSuchFunction:
            return
        current = record.settings.source
        is_unrecorded = not current and record.handler == DECORATED_HANDLER
        if current != config.source and not (is_unrecorded and config.source):
            raise NameTaken(name, _source_words(current, is_unrecorded), _source_words(config.source))

    def _timeout(self, code: CodeVersion, overrides: dict[str, Any]) -> dict[str, Any]:
        """OpenLambda's and decorated functions do not expect AWS's 3 s. The worker's own default takes precedence."""
        is_changed = self._defaults.timeout_s != FunctionDefaults().timeout_s
        if is_changed or "aws" in overrides:
            return {}
        is_long = "deployer" in overrides or (code.path / ol_yaml.FILE).is_file() or detected(code.path) == OPENLAMBDA
        return {"timeout_s": LONG_TIMEOUT_S} if is_long else {}

    def _secrets(self, name: str) -> dict[str, str]:
        """Settings that a deploy keeps; none where they do not open."""
        with contextlib.suppress(NoSuchFunction):
            return self._registry.get(name).readable.secrets
        return {}


def _source_words(source: str, is_unrecorded: bool = False) -> str:
    if is_unrecorded:
        return "a file of decorated functions, by an older sockd"
    return source or "a directory or zip"


def _read(
    code: CodeVersion, defaults: FunctionDefaults, overrides: dict[str, Any], timeout: dict[str, Any]
) -> tuple[FunctionConfig, frozenset[str], list[str]]:
    """What the code's sockd.toml and ol.yaml say, if it has them, the settings that a deploy names, and notes. Blocks.

    Raises: BadFunctionConfig, BadArchive."""
    ol_text, text = code.ol_yaml(), code.settings()
    ol_settings, notes = ol_yaml.read(ol_text) if ol_text is not None else ol_yaml.OlYaml({}, [])
    config = FunctionConfig.from_toml(text, defaults, overrides, beneath=timeout | ol_settings)
    given = {key: value for key, value in overrides.items() if value is not None}
    tables = (toml.loads(text or ""), given, ol_settings)
    return config, frozenset().union(*map(kept_settings.named, tables)), notes
