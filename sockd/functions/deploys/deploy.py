"""One deploy, from an archive to the version that serves.

    parse     sockd.toml, ol.yaml and parameters           Parsing
    resolve   the entry point and packages, or the image   CodeContents, ImageContents
    prepare   install, compile, the initscript             CodeContents, ImageContents, InitscriptDeploys
    check     start the version once                       deploy_check
    record    in the registry, so that it gets requests    Switching, LiveFunctions

A failure before `record` changes nothing. Owns what is held until then: the packages, the initscript, the check's Zygote.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Collection
from typing import Any

import msgspec

from sockd.base import spelling
from sockd.base.errors import NoSuchFunction, SecretsLocked, VersionFailed
from sockd.base.notes import Note, Progress
from sockd.functions.code import kept_settings
from sockd.functions.code.code_store import CodeVersion
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.deploys import deploy_check
from sockd.functions.deploys.content import Content
from sockd.functions.deploys.deploy_check import NOT_CHECKED, Checked, FailedDeploy
from sockd.functions.deploys.image_contents import check_writable_root
from sockd.functions.deploys.parsing import FORCE
from sockd.functions.deploys.parts import DeployParts
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.serving.version import Version
from sockd.images.store.image_record import DIGEST


class Deploy:
    """One deploy of one function; `run` it once."""

    def __init__(
        self,
        parts: DeployParts,
        name: str,
        code: CodeVersion,
        overrides: dict[str, Any],
        progress: Progress,
        wasm: bytes | None,
    ) -> None:
        """Args: as of `Deploys.deploy`; code: the archive, published."""
        self._parts = parts
        self._name = name
        self._code = code
        self._overrides = overrides
        self._progress = progress
        self._wasm = wasm
        self._named: frozenset[str] = frozenset()
        """The settings that this deploy names."""

    async def run(self) -> Version:
        """Walk the steps. Returns: the version that serves. Raises: as `Deploys.deploy`."""
        self._parts.live.opened(self._name)  # what this deploy keeps and replaces is decided by what is live
        is_checked = deploy_check.wanted(self._overrides)
        content = await self._prepare(await self._resolve(await self._parse()))
        self._parts.reserved.check(self._name, content.config)
        async with contextlib.AsyncExitStack() as held:
            planned = await self._planned(content, held)
            checked = await self._check(planned, held) if is_checked else NOT_CHECKED
            async with self._decided(content.config) as (config, notes):
                record = dataclasses.replace(planned, config=config.to_json())
                version = await self._parts.switching.put(record, checked, anew=True)
        for line in notes:
            self._progress(Note(line))
        return version

    async def _parse(self) -> FunctionConfig:
        parsed = await self._parts.parsing.parse(self._name, self._code, self._overrides, self._progress)
        self._named = parsed.named
        return parsed.config

    async def _resolve(self, config: FunctionConfig) -> Content:
        """Raises: BadArchive, BadFunctionConfig, PackagesFailed, UnknownImage, ImagesUnavailable."""
        parts, progress = self._parts, self._progress
        if config.image is not None:
            if parts.shared is not None and DIGEST.fullmatch(config.image):
                await parts.shared.fetch_image(config.image)  # another worker of the group may have imported it
            return await parts.image_contents.resolve(self._code, config, config.image, progress)
        return await parts.code_contents.resolve(self._name, self._code, config, self._overrides, progress)

    async def _prepare(self, content: Content) -> Content:
        if content.image is not None:
            return await self._parts.image_contents.prepare(content, self._progress)
        return await self._parts.code_contents.prepare(self._name, self._code, content, self._progress)

    async def _planned(self, content: Content, held: contextlib.AsyncExitStack) -> FunctionRecord:
        """Compile the initscript, and write down what would be recorded now.

        Args: held: gets what is to last until the switch. Raises: BadInitscript, BadFunctionConfig, ImagesUnavailable."""
        parts, live, name = self._parts, self._parts.live.by_name, self._name
        current = live[name].version.record.initscript if name in live else ""
        chosen = parts.scripts.chosen(self._code, content.config, self._wasm, current, self._progress)
        initscript = await held.enter_async_context(chosen)
        held.enter_context(parts.packages.holding(name, content.closure))
        if content.image is not None and parts.shared is not None:
            await parts.shared.put_image(content.image)
        now, config = time.time(), self._with_kept(content.config)[0]
        await check_writable_root(config, parts.caches.images)
        return FunctionRecord(
            name=name,
            version=parts.registry.of(name).next_version,
            digest=self._code.digest,
            code_bytes=self._code.size_bytes,
            handler=content.handler,
            config=config.to_json(),
            closure=content.closure.to_json().decode(),
            initscript=initscript,
            published_at=now,
            created_at=now,
            image=content.image.digest if content.image is not None else "",
        )

    async def _check(self, planned: FunctionRecord, held: contextlib.AsyncExitStack) -> Checked:
        """Start the version once.

        Args: held: gets what is to last until the switch. Raises: VersionFailed; as `deploy_check.started_once`."""
        self._progress("starting the new version once, to check it")
        parts, name = self._parts, self._name
        version = parts.files.load(planned)
        is_known = name in parts.live.names()
        try:
            check = deploy_check.started_once(version, parts.caches, is_known=is_known)
            checked = await held.enter_async_context(check)
        except VersionFailed as error:
            if is_known:
                before = parts.switching.failed.get(name)
                is_live = before is not None and before.is_live
                parts.switching.note_failed(name, FailedDeploy(error.reason, is_live=is_live))
                raise
            if self._overrides.get(deploy_check.CHECK) != deploy_check.FIRST:
                raise
            return Checked(FailedDeploy(error.reason, is_live=True))
        if checked.advice:
            self._progress(Note(checked.advice))
        return checked

    @contextlib.asynccontextmanager
    async def _decided(self, config: FunctionConfig) -> AsyncIterator[tuple[FunctionConfig, list[str]]]:
        """Decide the settings once more, as a command or another deploy may have changed something meanwhile, and put the rules
        of the network in force.

        Yields: the settings, and what to say of them after the switch.
        Raises: BadFunctionConfig, NetworkUnavailable, NameTaken, NoCapacity."""
        parts, name = self._parts, self._name
        config, notes = self._with_kept(config)
        config = self._with_rules(config)
        async with parts.rules.enforced(name, config, are_given=config.network == "private"):
            if not self._overrides.get(FORCE):
                parts.parsing.check_source(name, config)
            notes += self._replaced(config)
            await parts.reserved.wait(name, config)
            yield config, notes

    def _with_kept(self, config: FunctionConfig) -> tuple[FunctionConfig, list[str]]:
        """The settings with those that commands have set, and what to say of these. Raises: BadFunctionConfig."""
        notes = []
        try:
            before = self._parts.live.settings(self._name)
        except NoSuchFunction:
            return config, []
        except SecretsLocked:  # a deploy that is forced
            before, lost = kept_settings.without_variables(self._parts.registry.get(self._name).readable)
            notes.append(_lost(lost))
        config, kept, changed = kept_settings.apply(config, before, self._named)
        if kept:
            notes.append(f"kept from sockd config and sockd env: {', '.join(kept)}; sockd.toml changes what it names")
        if changed:
            notes.append(f"set by sockd config or sockd env, changed by this deploy: {', '.join(changed)}")
        return config, notes

    def _with_rules(self, config: FunctionConfig) -> FunctionConfig:
        """The settings with the rules of the network. Rules belong to the function: with another network they are kept for
        versions that have a private one, and with that they are the deploy's."""
        live = self._parts.live.by_name
        if self._name not in live or config.network == "private":
            return config
        return msgspec.structs.replace(config, egress=live[self._name].version.config.egress)

    def _replaced(self, config: FunctionConfig) -> list[str]:
        """What to say, once the deploy is in force, of settings of all versions that it replaces."""
        lines, name, live = [], self._name, self._parts.live
        before = live.by_name[name].version.config if name in live.by_name else None
        # What a command had set, and the deploy names, has been said.
        said = self._named.intersection(before.by_command) if before is not None else frozenset()
        rule = live.request_settings.run_rules.get(name)
        if rule is not None and config.run != rule and "run" not in said:
            run = config.run or "as http.run"
            lines.append(f"/run was {rule!r}, and is {run!r} from now on: a deploy has its sockd.toml's settings")
        egress = before.egress if before is not None else config.egress
        if config.egress != egress and "egress" not in said:
            now = spelling.egress(config.egress)
            lines.append(f"egress was {spelling.egress(egress)}, and is {now} from now on, for all versions")
        return lines


def _lost(variables: Collection[str]) -> str:
    """What to say of an environment that does not open. Args: variables: those whose names are known."""
    known = f" (sockd env had set {', '.join(variables)})" if variables else ""
    return f"lost: the variables and secrets that the function had{known}: they do not open with the worker's key"
