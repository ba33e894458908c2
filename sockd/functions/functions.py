"""All functions of a worker: deploys, lookup, removal.

Owns the live functions, the registry and the code store. A deploy publishes code, resolves and installs packages, records
the version and switches to it; a failure before the record changes nothing. `published` has the published
versions.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sockd.base import spelling, uids
from sockd.base.blocking import in_thread
from sockd.base.config import Config, ErrorDetail, RunRule
from sockd.base.errors import (
    BadInitscript,
    CodeLost,
    NetworkUnavailable,
    NoCapacity,
    NoSuchFunction,
    PackagesMissing,
    SecretsLocked,
    SockdError,
    UnknownImage,
    VersionFailed,
)
from sockd.base.invoke_request import InvokeRequest
from sockd.base.notes import Note
from sockd.base.telemetry import FunctionInfo
from sockd.functions.code import kept_settings
from sockd.functions.code.code_in_use import CodeInUse
from sockd.functions.code.code_store import CodeStore, CodeVersion
from sockd.functions.code.entrypoint import entry_point, provided
from sockd.functions.code.function_config import FunctionConfig, InitscriptConfig
from sockd.functions.code.setting_checks import check_name
from sockd.functions.deploys import deploy_check
from sockd.functions.deploys.deploy_check import FailedDeploy
from sockd.functions.deploys.deployments import FORCE, Deployments, Progress, check_writable_root
from sockd.functions.deploys.initscript_deploys import InitscriptDeploys
from sockd.functions.deploys.restoring import Restoring, Unready, why_unready
from sockd.functions.in_images import image_programs
from sockd.functions.registry.aliases import LATEST
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.registry.registry import Registry
from sockd.functions.serving.allowance import Allowance
from sockd.functions.serving.allowances import Allowances
from sockd.functions.serving.debugging import Debugging, ReportProgress
from sockd.functions.serving.function import Caches, Function
from sockd.functions.serving.initscripts import Initscripts
from sockd.functions.serving.leased import Outcome
from sockd.functions.serving.published import Published
from sockd.functions.serving.serving import serve_request
from sockd.functions.serving.version import Version, info_of
from sockd.functions.serving.version_program import UsedImage
from sockd.images.store.image_record import ImageRecord
from sockd.isolation.roots import interpreter_settings
from sockd.isolation.roots.image_python import SCHEME, ImagePython
from sockd.isolation.roots.interpreter_settings import Started
from sockd.starts.packages.distribution import Closure
from sockd.starts.packages.install_cache import InstallCache
from sockd.starts.templates.templates import Entry, State
from sockd_initscripts.report import RunReport

REMOVE_DRAIN_S = 30.0
"""Time for the last requests of a removed function, which keep its code on disk."""

DECIDE_HANDLER = frozenset({"handler", "runtime", "image", "entrypoint", "command", "working_directory", "app_port"})
"""Settings that decide which handler or program runs."""

RECORD_DEADLINE_S = 10.0
"""Time for the report of a recording after its answer."""

HOW_TO_UNLOCK = (
    "the key %s is missing or wrong, so these functions cannot run: %s. Put the right file back and start sockd again; "
    "if it is lost, make a new one with `(umask 77; head -c 32 /dev/urandom > %s)`, start sockd and deploy the functions again"
)

REGISTRY_LOST = (
    "no function is recorded, but there is the code of %d versions: if registry.sqlite was lost, stop sockd and restore a backup "
    "before you deploy (sockd restore); the next deploy deletes this code"
)

_log = logging.getLogger(__name__)


class Functions:
    """`load` first. Blocking work goes to threads; the switch itself is one step of the loop."""

    def __init__(
        self, config: Config, registry: Registry, code: CodeStore, packages: InstallCache, caches: Caches
    ) -> None:
        self._config = config
        self._registry = self.registry = registry
        self._code = code
        self._in_use = CodeInUse(code, registry.digests)
        self._packages = packages
        self._caches = caches
        self.failed_inits = caches.failed_inits
        self._initscripts: Initscripts | None = getattr(caches, "initscripts", None)
        self._images = caches.images
        self._scripts = InitscriptDeploys(self._initscripts, config.initscripts)
        self._deployments = Deployments(
            config.function, registry, code, packages, config.packages.default, self._images, caches.image_pythons
        )
        confined = uids.confined(config.sandbox.base_uid, config.initscripts.uid)
        self.debugging = Debugging(config.debug, packages, caches.ports, confined)
        self.live: dict[str, Function] = {}
        """The last deploy of each function of which all parts are there."""
        self.allowances = Allowances(caches)
        self.restoring = Restoring(
            self.restore_files,
            lambda record: self._open(self._version(record)),
            wait_s=config.packages.restore_wait_s,
        )
        """Functions of an earlier daemon that cannot run yet, as something of them is missing."""
        self._unready = self.restoring.unready
        if self._images is not None:
            self._images.added.append(self.restoring.imported)
        self.published = Published(
            registry,
            self.restoring.files,
            caches,
            version_of=self._version,
            allowance_of=self._allowance,
            most=config.code.live_versions,
        )
        self._expecting: dict[tuple[str, int], asyncio.Task[None]] = {}
        """Versions that were published just now, and are to have a snapshot."""
        self.run_rules: dict[str, RunRule] = {}
        """The functions that restrict /run, with their rule."""
        self.error_details: dict[str, ErrorDetail] = {}
        """The functions that set how much of an error /run tells."""
        self.failed_deploys: dict[str, FailedDeploy] = {}
        """The functions whose last deploy failed its check."""

    def load(self) -> None:
        """Load the recorded functions, and delete code that a killed daemon had not recorded. Blocks briefly; starts no
        process.

        Nothing is deleted if no function is recorded at all: the registry may have been lost, and its backup needs the code."""
        if self._registry.list():
            self._code.gc(self._registry.digests())
            self._scripts.collect(self._registry.initscripts())
        elif digests := self._code.digests():
            _log.error(REGISTRY_LOST, len(digests))
        locked = []
        for record in self._registry.list():
            try:
                self._open(self._version(record))
            except (SockdError, OSError) as error:
                self._unready[record.name] = Unready(record, why_unready(record.name, error))
                self._note_rule(record.name, record.readable)
                if isinstance(error, SecretsLocked):
                    locked.append(record.name)
        if locked:
            key = self._registry.key_path
            _log.error(HOW_TO_UNLOCK, key, ", ".join(locked), key)

    async def called(self, request: InvokeRequest) -> Function:
        """The version for a request. Raises: as `get`."""
        return await self.get(request.name, request.qualifier, request.draw())

    async def get(self, name: str, qualifier: str = "", draw: float = 0.0) -> Function:
        """A live version of a function: the last deploy, or a published version.

        Args: qualifier: a number or an alias; draw: in [0, 1), decides between the versions of an alias.
        Raises: NoSuchFunction; as `Restoring.restore`, if something of it was lost."""
        if qualifier:
            number = self.published.resolve(name, qualifier, draw)
            if number is not None:
                return await self.published.get(name, number)
        function = self.live.get(name)
        if function is not None:
            return function
        await self.restoring.restore(name)
        return await self.get(name)

    async def restore_files(self, record: FunctionRecord) -> None:
        """Install a deploy's packages and import its image again, if they are lost.

        Raises: CodeLost, InstallFailed, BadImage and its kinds, UnknownImage, ImageLost, ImagesUnavailable, ImagePythonFailed."""
        self._code_path(record)
        await self._packages.ensure(Closure.from_json(record.closure))
        if record.image and self._images is not None:
            config = record.settings
            image, pythons = await self._images.ensure(record.image, config.image or ""), self._caches.image_pythons
            if pythons is not None and not pythons.is_asked(image, config):
                await pythons.find(image, config, _log.info)

    def incarnation(self, name: str, qualifier: str = "") -> str:
        """An id that distinguishes a function from a removed one of the same name; empty: no such function, version or
        alias. (Numbers of versions are never reused.)"""
        deploys = self._registry.of(name).deploys
        if not deploys or (qualifier and not self.published.is_known(name, qualifier)):
            return ""
        return repr(deploys[-1].created_at)

    def is_app(self, name: str) -> bool:
        """Whether a function is live and known to be a web app."""
        return name in self.live and bool(self.live[name].version.program.is_app)

    def current(self, name: str) -> Version:
        """The current version of a function that is live. Raises: NoSuchFunction; what it lacks, if it cannot run."""
        if name in self.live:
            return self.live[name].version
        return self._version(self._registry.get(name))

    def info(self, name: str) -> FunctionInfo:
        """A function for views, whatever of it is missing. Raises: NoSuchFunction."""
        if name in self.live:
            return self.described(self.live[name].version)
        record = self._registry.get(name)
        info = info_of(record, record.readable, Closure.from_json(record.closure))
        info = msgspec.structs.replace(info, has_private=self.has_private(name))
        if (unready := self._unready.get(name)) is None:
            return info
        return msgspec.structs.replace(info, state=unready.state, state_reason=unready.error.message)

    def described(self, version: Version) -> FunctionInfo:
        """A version for views, with what is known of its function."""
        is_app = bool(version.program.is_app)
        info = msgspec.structs.replace(version.info(), has_private=self.has_private(version.record.name), is_app=is_app)
        entry = self.snapshot_of(version)
        if entry is None:
            return info
        return msgspec.structs.replace(info, snapshot=entry.state.value, snapshot_reason=entry.reason)

    def snapshot_state(self, name: str, number: int | None = None) -> str:
        """The state of the snapshot of a function, or of a published version, for views; empty: it is to have none."""
        function = self.live.get(name) if number is None else self.published.find(name, number)
        entry = self.snapshot_of(function.version) if function is not None else None
        if entry is None and number is not None and (name, number) in self._expecting:
            return State.WAITING.value
        return entry.state.value if entry is not None else ""

    def expect_snapshot(self, name: str, number: int) -> None:
        """A version with a snapshot was published: have that made before its first request."""

        async def get() -> None:
            try:
                with contextlib.suppress(SockdError, OSError):  # its first request tells
                    await self.published.get(name, number)
            finally:
                del self._expecting[name, number]

        self._expecting[name, number] = asyncio.get_running_loop().create_task(get())

    def snapshot_of(self, version: Version) -> Entry | None:
        """What is known of a version's snapshot; None: it is to have none."""
        templates = self._caches.templates
        return templates.entry(version.program) if templates is not None and version.config.snapshot else None

    def settings(self, name: str) -> FunctionConfig:
        """The settings of a function, also of one that cannot run. Raises: NoSuchFunction, SecretsLocked."""
        if name in self.live:
            return self.live[name].version.config
        return self._registry.get(name).settings

    def check_known(self, name: str) -> None:
        """Raises: NoSuchFunction."""
        self._registry.get(name)

    def unready(self, name: str) -> Unready | None:
        """What a function lacks; None: it can run."""
        return self._unready.get(name)

    def has_private(self, name: str) -> bool:
        """Whether a version that is remembered has a private network, so that the function's rules are in use or can be again."""
        return any(record.readable.network == "private" for record in self._registry.of(name).deploys)

    def call_key(self, name: str) -> bytes | None:
        """The key of the deployer's signatures, if any."""
        with contextlib.suppress(NoSuchFunction, SecretsLocked):
            return self.settings(name).call_key
        return None

    def all(self) -> list[Version]:
        """The current version of every live function, by name."""
        return [self.live[name].version for name in sorted(self.live)]

    def names(self) -> list[str]:
        """Every function, also those that cannot run, by name."""
        return sorted({*self.live, *self._unready})

    async def deploy(
        self, name: str, zip_path: Path, overrides: dict[str, Any], progress: Progress, wasm: bytes | None = None
    ) -> Version:
        """Publish a version, start it once, and switch to it.

        Args:
            overrides: keys of sockd.toml, its `deployer`, and what else is in `deployments.NO_SETTINGS`.
            wasm: its initscript, uploaded beside the code.
        Raises: NameTaken, BadArchive, BadFunctionConfig, BadInitscript, PackagesFailed, NoCapacity; VersionFailed, and what else
            a start raises: its check failed, and nothing has changed."""
        check_name(name)
        try:
            async with self._in_use.published(zip_path) as code:
                return await self._deploy(name, code, overrides, progress, wasm)
        finally:
            await self.collect_code()

    async def deploy_initscript(self, name: str, wasm: bytes, progress: Progress) -> Version:
        """Deploy another initscript with unchanged code and settings, as a new version.

        Raises: NoSuchFunction, BadInitscript, NoCapacity."""
        await self.get(name)
        try:
            async with self._scripts.compiled(wasm, progress) as digest:
                record = self.current(name).record
                config = record.settings
                if config.initscript is None or config.initscript.wasm is not None:
                    settings = msgspec.structs.replace(config.initscript or InitscriptConfig(), wasm=None)
                    config = msgspec.structs.replace(config, initscript=settings)
                return self._put(dataclasses.replace(record, config=config.to_json(), initscript=digest))
        finally:
            await self.collect_code()

    async def configure(self, name: str, changes: dict[str, Any]) -> Version:
        """Change settings with unchanged code and packages, as a new version; `egress` alone without one.

        Args: changes: keys of `sockd.toml` with their new values.
        Raises: NoSuchFunction, BadFunctionConfig, NetworkUnavailable, NoCapacity."""
        await self.get(name)
        try:
            current = self.current(name)
            config = kept_settings.marked(current.config, current.config.changed(changes), changes)
            self._check_variables(current, config)
            await check_writable_root(config, self._images)
            if "egress" in changes and not self.has_private(name):
                config.check_egress()
            self._check_reserve(name, config)
            async with self._enforced(name, config, are_given="egress" in changes):
                if changes.keys() == {"egress"}:
                    return self._amend(current, config)
                is_other = bool(
                    DECIDE_HANDLER & changes.keys()
                )  # else the deploy has found it, perhaps by the code's text
                handler = self._handler(current.record, config) if is_other else current.record.handler
                return self._put(dataclasses.replace(current.record, handler=handler, config=config.to_json()))
        finally:
            await self.collect_code()

    async def restore(self, old: FunctionRecord) -> Version:
        """Deploy the code of an earlier deploy again; secrets and shared limits do not change.

        Raises: NoSuchFunction, InstallFailed, NoCapacity."""
        current = (await self.get(old.name)).version
        with self._in_use.holding(old.digest):
            await self.restore_files(old)
            config = old.settings.with_shared(current.config)
            config = config.with_secrets(current.config.secrets)
            self._check_reserve(old.name, config)
            async with self._enforced(old.name, config, are_given=False):
                restored = self._put(dataclasses.replace(old, config=config.to_json()))
        await self.collect_code()
        return restored

    async def check(self, zip_path: Path) -> None:
        """Check whether an archive could be deployed. Raises: BadArchive, StorageFull."""
        await in_thread(self._code.check, zip_path)

    async def record(self, request: InvokeRequest) -> tuple[Outcome, RunReport]:
        """Run a function once in a new sandbox and record its reads.

        Raises: as `serve_request`; NoSuchFunction; BadInitscript if there is no engine."""
        function = await self.called(request)
        if self._initscripts is None:
            raise BadInitscript("this worker has no initscripts")
        script = await self._initscripts.recorder(request.name, function.version.config)
        try:
            outcome = await serve_request(function, request, recorder=script)
            beside = outcome.leased.beside
            if beside is None:
                raise BadInitscript("the initscript engine is busy; record again")
            await asyncio.wait([beside.run.done], timeout=RECORD_DEADLINE_S)
            report = beside.run.report()
            if report is None:
                raise BadInitscript("the initscript engine died or did not answer; record again")
            return outcome, report
        finally:
            self._initscripts.release(script)

    async def debug(self, request: InvokeRequest, port: int, tell: ReportProgress) -> Outcome:
        """Run a function once, after a debugger has connected.

        Raises: as `serve_request`; CannotDebug, PackagesFailed."""
        function = await self.called(request)
        async with self.debugging.session(function.version, port, tell) as debugged:
            request.arrived_ns = time.monotonic_ns()  # installing the debugger is no waiting for its turn
            return await serve_request(function, request, debugged=debugged)

    async def remove(self, name: str) -> None:
        """Remove a function after its current requests. Raises: NoSuchFunction."""
        self._registry.delete(name)
        self.failed_deploys.pop(name, None)
        self.run_rules.pop(name, None)
        self.error_details.pop(name, None)
        self._unready.pop(name, None)
        function = self.live.pop(name, None)
        live = self.published.drop(name)
        if function is not None:
            function.close()
            live.append(function)
        await self.drain_closed(live, self.allowances.closed(name))
        published = [function.version for function in self.published.live()]
        self._caches.learner.end_unused([version.view for version in (*self.all(), *published)])

    def users(self, key: str) -> list[str]:
        """The functions that have a distribution in their closure, deploys under way among them."""
        live = [version.record.name for version in self.all() if key in version.keys]
        unready = [
            each.record.name for each in self._unready.values() if key in Closure.from_json(each.record.closure).keys
        ]
        published = [
            name for name, closure in self._registry.published_closures() if key in Closure.from_json(closure).keys
        ]
        return sorted({*live, *unready, *published, *self._deployments.users(key), *self.debugging.users(key)})

    def close(self) -> None:
        """Close all functions and the registry."""
        self.published.close()
        for function in self.live.values():
            function.close()
        self.allowances.close()
        self.live.clear()
        self._registry.close()

    async def drain_closed(self, functions: Sequence[Function], allowance: Allowance | None = None) -> None:
        """Wait for the last requests of closed versions, then delete unused code.

        Args: allowance: of the whole function, if that was closed."""
        with contextlib.ExitStack() as stack:
            for function in functions:
                stack.enter_context(self._in_use.holding(function.version.record.digest))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REMOVE_DRAIN_S):
                    await asyncio.gather(*(function.drain() for function in functions))
                    if allowance is not None:
                        await allowance.admission.drain()
            if allowance is not None:
                allowance.egress.close()
        await self.collect_code()

    async def collect_code(self) -> None:
        """Delete code that no recorded version and no current deploy needs."""
        await self._in_use.collect()
        if self._images is not None:
            await self._images.collect(self._registry.images())
        self._scripts.collect(self._registry.initscripts())

    # -- the steps of a deploy

    async def _deploy(
        self, name: str, code: CodeVersion, overrides: dict[str, Any], progress: Progress, wasm: bytes | None
    ) -> Version:
        is_checked = deploy_check.wanted(overrides)
        config, handler, closure, image, named = await self._deployments.prepare(name, code, overrides, progress)
        self._check_reserve(name, config)
        current = self.live[name].version.record.initscript if name in self.live else ""
        async with (
            self._scripts.chosen(code, config, wasm, current, progress) as initscript,
            contextlib.AsyncExitStack() as held,
        ):
            now, planned = time.time(), self._with_kept(name, config, named)[0]
            await check_writable_root(planned, self._images)
            record = FunctionRecord(
                name=name,
                version=self._registry.of(name).next_version,
                digest=code.digest,
                code_bytes=code.size_bytes,
                handler=handler,
                config=planned.to_json(),
                closure=closure.to_json().decode(),
                initscript=initscript,
                published_at=now,
                created_at=now,
                image=image,
            )
            is_app, failed = None, None
            if is_checked:
                held.enter_context(self._deployments.holding(name, closure))
                is_app, failed = await self._checked(record, overrides, held, progress)
            # Once more: a command may have changed settings meanwhile.
            config, notes = self._with_kept(name, config, named)
            config = self._with_rules(name, config)
            async with self._enforced(name, config, are_given=config.network == "private"):
                if not overrides.get(FORCE):
                    self._deployments.check_source(name, config)  # once more: another deploy may have ended meanwhile
                notes += self._replaced(name, config, named)
                await self._wait_for_reserve(name, config)
                version = self._version(self._put_record(dataclasses.replace(record, config=config.to_json())))
                if version.program.is_app is None:
                    version.program.is_app = is_app
                self._switch(version)
                self._note_failed(name, failed)
        for line in notes:
            progress(Note(line))
        if config.snapshot and "aws" not in overrides:  # AWS's API does not wait either
            await self._snapshot_made(version, progress)
        return version

    async def _snapshot_made(self, version: Version, progress: Progress) -> None:
        """Wait until it is decided whether a version that serves already has a snapshot, and tell it."""
        templates = self._caches.templates
        if templates is None:
            return
        progress("running the init once more, for the snapshot")
        entry = await templates.settled(version.program)
        if entry is None:
            return  # another deploy has replaced it
        if entry.template is None:
            progress(Note(f"no snapshot, and each start runs its own init: {entry.reason}"))
            return
        report, size_mb = entry.template.report, entry.template.memory_bytes / (1 << 20)
        progress(f"snapshot made: it saves each start {report.seconds:.2f} s of init, and holds {size_mb:.0f} MB")
        for address in report.closed:
            progress(
                Note(f"the connection to {address} is closed by the snapshot: clients connect again in each start")
            )
        for note in report.notes:
            progress(Note(note))

    def _check_variables(self, current: Version, config: FunctionConfig) -> None:
        """Refuse variables that the interpreter would ignore, but for those that the function has already.

        Raises: BadFunctionConfig."""
        started = self._started(current.record, config)
        if started is not None:
            is_same = self._started(current.record, current.config) == started
            interpreter_settings.check(config.environment, started, current.config.environment if is_same else {})

    def _started(self, record: FunctionRecord, config: FunctionConfig) -> Started | None:
        """The interpreter that recorded code is forked from with these settings; None: it is a program."""
        if not record.image:
            is_program = provided(self._code.path(record.digest), config.runtime)
            return None if is_program else Started.of_host(config.python)
        if self._images is None:
            return None
        python = self._python_of(self._images.get(record.image), config)
        return None if python.reason else Started.of_image(python)

    async def _checked(
        self, record: FunctionRecord, overrides: dict[str, Any], held: contextlib.AsyncExitStack, progress: Progress
    ) -> tuple[bool | None, FailedDeploy | None]:
        """Start the version of a deploy once.

        Args: held: gets what is to last until the switch.
        Returns: whether it is a web app, if that is known; and how it failed, if it is to be recorded all the same.
        Raises: VersionFailed; as `deploy_check.started_once`."""
        progress("starting the new version once, to check it")
        version, name = self._version(record), record.name
        is_known = name in self.names()
        try:
            check = deploy_check.started_once(version, self._caches, is_known=is_known)
            if advice := await held.enter_async_context(check):
                progress(Note(advice))
        except VersionFailed as error:
            if is_known:
                before = self.failed_deploys.get(name)
                self._note_failed(name, FailedDeploy(error.reason, is_live=before is not None and before.is_live))
                raise
            if overrides.get(deploy_check.CHECK) != deploy_check.FIRST:
                raise
            return None, FailedDeploy(error.reason, is_live=True)
        return version.program.is_app, None

    def _note_failed(self, name: str, failed: FailedDeploy | None) -> None:
        if failed is None:
            self.failed_deploys.pop(name, None)
        else:
            self.failed_deploys[name] = failed

    async def _wait_for_reserve(self, name: str, config: FunctionConfig) -> None:
        """Wait until a switch can reserve the function's memory: the sandbox of the check gives back its own when its last
        process has ended. Raises: NoCapacity."""
        held = self.live[name].version.config.reserved_memory_mb if name in self.live else 0
        if config.reserved_memory_mb > held:
            room = (config.reserved_memory_mb - held) << 20
            (await self._caches.budget.reserve(room, deadline_s=deploy_check.GONE_S)).close()

    def _with_kept(self, name: str, config: FunctionConfig, named: frozenset[str]) -> tuple[FunctionConfig, list[str]]:
        """A deploy's settings with those that commands have set, and what to say of these. Raises: BadFunctionConfig."""
        try:
            before = self.settings(name)
        except (NoSuchFunction, SecretsLocked):
            return config, []
        config, kept, changed = kept_settings.apply(config, before, named)
        notes = []
        if kept:
            notes.append(f"kept from sockd config and sockd env: {', '.join(kept)}; sockd.toml changes what it names")
        if changed:
            notes.append(f"set by sockd config or sockd env, changed by this deploy: {', '.join(changed)}")
        return config, notes

    def _check_reserve(self, name: str, config: FunctionConfig) -> None:
        """Refuse a deploy that `switch` could not reserve memory for, before it is recorded."""
        held = self.live[name].version.config.reserved_memory_mb if name in self.live else 0
        if (config.reserved_memory_mb - held) << 20 > self._caches.budget.free:
            raise NoCapacity(f"reserved_memory_mb = {config.reserved_memory_mb}: the worker has less memory free")

    def _with_rules(self, name: str, config: FunctionConfig) -> FunctionConfig:
        """A deploy's settings. Rules belong to the function: with another network they are kept for versions that have a private
        one, and with that they are the deploy's."""
        if name not in self.live or config.network == "private":
            return config
        return msgspec.structs.replace(config, egress=self.live[name].version.config.egress)

    def _replaced(self, name: str, config: FunctionConfig, named: frozenset[str]) -> list[str]:
        """What to say, once a deploy is in force, of settings of all versions that it replaces."""
        lines = []
        # What a command had set, and the deploy names, has been said.
        said = named.intersection(self.live[name].version.config.by_command) if name in self.live else frozenset()
        if (rule := self.run_rules.get(name)) is not None and config.run != rule and "run" not in said:
            run = config.run or "as http.run"
            lines.append(f"/run was {rule!r}, and is {run!r} from now on: a deploy has its sockd.toml's settings")
        egress = self.live[name].version.config.egress if name in self.live else config.egress
        if config.egress != egress and "egress" not in said:
            now = spelling.egress(config.egress)
            lines.append(f"egress was {spelling.egress(egress)}, and is {now} from now on, for all versions")
        return lines

    @contextlib.asynccontextmanager
    async def _enforced(self, name: str, config: FunctionConfig, *, are_given: bool) -> AsyncIterator[None]:
        """Change the rules of a function's network, which hold at once for all its sandboxes; the old ones come back if the
        block fails.

        Args: are_given: whether the rules are part of this change, so that the worker's limits apply; else they are as they
        were.
        Raises: BadFunctionConfig, NetworkUnavailable."""
        networks = self._caches.networks
        if are_given and networks is not None:
            networks.parse(config.egress)
        if config.network == "private":
            if networks is None:
                raise NetworkUnavailable("it was started without them")
            await networks.ready()
        allowance = self.allowances.get(name)
        async with allowance.egress.changing(config.egress) if allowance else contextlib.nullcontext():
            yield

    def _amend(self, version: Version, config: FunctionConfig) -> Version:
        """The same version with other settings, which its sandboxes do not have to know."""
        record = self._registry.amend(version.record, config.to_json())
        version.record, version.config = record, config
        return version

    def _put(self, record: FunctionRecord) -> Version:
        """Record a changed function and switch to it."""
        put = self._put_record(record)
        self.failed_deploys.pop(record.name, None)
        live = self.live.get(record.name)
        if live is not None and live.version.record.version == put.version:
            return live.version
        return self._switch(self._version(put))

    def _put_record(self, record: FunctionRecord) -> FunctionRecord:
        return self._registry.put(
            record.name,
            digest=record.digest,
            code_bytes=record.code_bytes,
            handler=record.handler,
            config=record.config,
            closure=record.closure,
            initscript=record.initscript,
            image=record.image,
        )

    def _code_path(self, record: FunctionRecord) -> Path:
        """The directory with a deploy's code. Raises: CodeLost; an image's functions need none."""
        path = self._code.path(record.digest)
        if not record.image and not path.is_dir():
            raise CodeLost(record.name)
        return path

    def _version(self, record: FunctionRecord, number: str = LATEST) -> Version:
        """Raises: CodeLost, PackagesMissing, UnknownImage, SecretsLocked."""
        path = self._code_path(record)
        if lacking := self._packages.missing(Closure.from_json(record.closure)):
            raise PackagesMissing(lacking)
        most = self._config.http.max_payload_bytes
        image = None
        if record.image:
            if self._images is None:
                raise UnknownImage(record.image)
            of_image = self._images.get(record.image)
            python = self._python_of(of_image, record.settings)
            image = UsedImage(of_image, self._images.use(record.image), python)
        return Version.load(record, path, self._packages, number=number, max_answer_bytes=most, image=image)

    def _python_of(self, image: ImageRecord, config: FunctionConfig) -> ImagePython:
        pythons = self._caches.image_pythons
        if pythons is None:
            return ImagePython(id=SCHEME, reason="this worker has no Zygotes for images")
        return pythons.known(image, config)

    def _handler(self, record: FunctionRecord, config: FunctionConfig) -> str:
        """The entry point of recorded code with other settings. Raises: BadFunctionConfig, UnknownImage."""
        if record.image and self._images is not None:
            return image_programs.handler(config, self._images.get(record.image).config)
        return entry_point(self._code.path(record.digest), config.handler, config.runtime)

    def _switch(self, version: Version) -> Version:
        name = version.record.name
        self._unready.pop(name, None)
        if name in self.live:
            self.live[name].switch(version)
            self._note_rule(name, version.config)
        else:
            self._open(version)
        return version

    def _note_rule(self, name: str, config: FunctionConfig) -> None:
        if config.run in (None, "open"):
            self.run_rules.pop(name, None)
        else:
            self.run_rules[name] = config.run
        if config.errors is None:
            self.error_details.pop(name, None)
        else:
            self.error_details[name] = config.errors

    def _open(self, version: Version) -> None:
        """Make a function live. Raises: NoCapacity."""
        name = version.record.name
        self.live[name] = Function(version, self._caches, self.allowances.opened(name, version.config))
        self._note_rule(name, version.config)

    def _allowance(self, name: str) -> Allowance:
        """For a published version, which may be live before the last deploy is. Raises: NoSuchFunction, NoCapacity."""
        allowance = self.allowances.get(name)
        if allowance is None:
            allowance = self.allowances.opened(name, self._registry.get(name).settings)
        return allowance
