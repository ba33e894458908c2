"""Preparing a deploy: the settings, entry point and installed packages of an archive, before it is recorded.

Owns the list of current deploys, whose packages are in use although no record names them yet.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from sockd.base import toml
from sockd.base.blocking import in_thread
from sockd.base.config import FunctionDefaults
from sockd.base.errors import (
    BadArchive,
    BadFunctionConfig,
    ImagesUnavailable,
    NameTaken,
    NoSuchFunction,
    ResolveFailed,
    SecretsLocked,
)
from sockd.base.notes import Note
from sockd.functions.code import dependencies, kept_settings, ol_yaml
from sockd.functions.code.code_store import CodeStore, CodeVersion
from sockd.functions.code.default_packages import DefaultPackages
from sockd.functions.code.dependencies import Dependencies
from sockd.functions.code.entrypoint import BOOTSTRAP, OPENLAMBDA, detected, entry_point, provided
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.code.handler_check import check_handler, instead_of
from sockd.functions.code.setting_checks import EXEC_WRAPPER
from sockd.functions.deploys.deploy_check import CHECK
from sockd.functions.in_images import image_programs
from sockd.functions.in_images.image_pythons import ImagePythons
from sockd.functions.registry.registry import Registry
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.image_store import ImageStore
from sockd.isolation.roots import interpreter_settings
from sockd.isolation.roots.image_mounting import ImageMounting
from sockd.isolation.roots.image_python import ImagePython
from sockd.isolation.roots.interpreter import Interpreter
from sockd.isolation.roots.interpreter_settings import Started
from sockd.starts.packages.distribution import Closure
from sockd.starts.packages.install_cache import InstallCache

CHECK_HANDLER = "check_handler"
"""A parameter of a deploy: true refuses a handler that is missing or does not compile; AWS's API accepts any, as AWS
does."""
FORCE = "force"
"""A parameter of a deploy: true replaces a function that was deployed from another source."""
DECORATED_HANDLER = "sockd:handler"
"""The handler of every decorated function. A sockd that recorded no sources deployed those that have this handler and no
source."""
LONG_TIMEOUT_S = 30.0
"""The time limit of f.py, of code with an ol.yaml, and of decorated functions, unless they set another."""
KEEP_PACKAGES = "keep_packages"
"""A parameter of a deploy: true keeps the resolved versions if the requirements did not change."""

NO_SETTINGS = frozenset({CHECK, CHECK_HANDLER, KEEP_PACKAGES, FORCE})
"""What a deploy may say besides keys of sockd.toml."""

Progress = Callable[[str], None]


class Deployable(NamedTuple):
    """The content of an archive, parsed."""

    config: FunctionConfig
    handler: str
    """"module:attr"."""
    closure: Closure
    """Its packages, which are installed."""
    image: str = ""
    """The digest of its image, which the worker has."""
    named: frozenset[str] = frozenset()
    """The settings that the deploy names (`kept_settings.named`)."""


class Deployments:
    """The deploys of one worker."""

    def __init__(
        self,
        defaults: FunctionDefaults,
        registry: Registry,
        code: CodeStore,
        packages: InstallCache,
        default_packages: Sequence[str],
        images: ImageStore | None = None,
        image_pythons: ImagePythons | None = None,
    ) -> None:
        """Args:
        default_packages: which are installed for functions that do not name them.
        images: None: no function has one; image_pythons: None: those that do are programs."""
        self._images = images
        self._image_pythons = image_pythons
        self._defaults = defaults
        self._default_packages = DefaultPackages(tuple(default_packages), packages)
        self._registry = registry
        self._code = code
        self._packages = packages
        self._under_way: list[tuple[str, Closure]] = []

    async def prepare(self, name: str, code: CodeVersion, overrides: dict[str, Any], progress: Progress) -> Deployable:
        """Read a function's archive and install its packages.

        Args: overrides: keys of sockd.toml that win over it, and KEEP_PACKAGES.
        Raises: BadArchive, BadFunctionConfig, PackagesFailed."""
        settings = {key: value for key, value in overrides.items() if key not in NO_SETTINGS}
        ol_settings = await _ol_settings(code, progress)
        beneath = self._timeout(code, overrides) | ol_settings
        # A stranger's texts, parsed in Python: not on the loop.
        config = await in_thread(_read_settings, code, self._defaults, settings, beneath)
        named = await in_thread(_named, code, settings, ol_settings)
        config = config.with_secrets(self._secrets(name))
        if not overrides.get(FORCE):
            self.check_source(name, config)
        if config.image is not None:
            return (await self._with_image(code, config, config.image, progress))._replace(named=named)
        python = await self._packages.interpreter(config.python)
        if not provided(code.path, config.runtime):
            interpreter_settings.check(config.environment, Started.of_host(config.python))
        await in_thread(self._code.compile_for, code.digest, python)
        handler = entry_point(code.path, config.handler, config.runtime)
        if EXEC_WRAPPER in config.environment and not provided(code.path, config.runtime):
            progress(
                Note(f'{EXEC_WRAPPER} is not run: a handler is forked; runtime = "provided" with awslambdaric runs it')
            )
        declared = await in_thread(dependencies.read, code.path, handler, python)
        for note in declared.notes:
            progress(Note(note))
        is_checked = bool(overrides.get(CHECK_HANDLER))
        if (is_checked or (config.handler is None and instead_of(handler))) and not provided(code.path, config.runtime):
            has_packages = declared.text is not None
            try:
                handler = await in_thread(check_handler, code.path, handler, has_packages=has_packages, python=python)
            except BadFunctionConfig:
                if is_checked:
                    raise
        kept = self._closure_kept(name, declared, config, python) if overrides.get(KEEP_PACKAGES) else None
        closure = await self._install(name, declared, config, kept, python, progress)
        if config.packages.default and provided(code.path, config.runtime) != BOOTSTRAP:
            merged = await self._default_packages.added(closure, code.path, progress, python)
            await self._ensure(name, merged, progress)
            closure = merged
        return Deployable(config, handler, closure, named=named)

    async def _with_image(self, code: CodeVersion, config: FunctionConfig, text: str, progress: Progress) -> Deployable:
        """What runs in an image: its program.

        Raises: BadImage and its kinds, UnknownImage, ImagesUnavailable, BadFunctionConfig."""
        if self._images is None:
            raise ImagesUnavailable("this worker runs no container images")
        if code.files > (code.settings() is not None):
            progress(Note("the files beside sockd.toml are not used: the function's code is the image's"))
        if config.app is not None:
            raise BadFunctionConfig(
                f'app = "{config.app}" is for code that is deployed without an image: start a web server in the image, and name '
                "its port (app_port)"
            )
        if config.python is not None:
            progress(Note(f'python = "{config.python}" is not used: the function runs with the image\'s own'))
        await check_writable_root(config, self._images)
        record = await self._images.resolve(text, progress)
        for note in image_programs.notes(record, config):
            progress(Note(note))
        config = image_programs.with_adapter(config, record)
        named = config.app_port
        config = image_programs.with_exposed_port(config, record.config)
        if config.app_port != named:
            found = f"app_port is {config.app_port}, which the image exposes"
            progress(Note(f'{found}; for a program that asks the Runtime API: runtime = "provided"'))
        if config.app_port is not None:
            progress(image_programs.port_words(config))
        elif config.readiness_path != "/":
            progress(Note("readiness_path is not used: without app_port nobody asks for it"))
        image_programs.command(config, record.config)
        if self._image_pythons is not None:
            python = await self._image_pythons.find(record, config, progress)
            if not python.reason:
                interpreter_settings.check(config.environment, Started.of_image(python))
            progress(f"runs as a program: {python.reason}" if python.reason else served_words(python))
            if python.reason and config.app_port is None and (ports := record.config.exposed_ports):
                port = ports[0].partition("/")[0]
                progress(Note(f"the image exposes port {port}: a web server there needs app_port = {port}"))
            check_client(python, config, record, progress)
        return Deployable(config, image_programs.handler(config, record.config), Closure(), record.digest)

    def check_source(self, name: str, config: FunctionConfig) -> None:
        """Refuse to replace the function of another source, which may have callers. Raises: NameTaken."""
        try:
            record = self._registry.get(name)
            current = record.settings.source
        except (NoSuchFunction, SecretsLocked):
            return  # a function whose settings nobody can open is deployed again to be of use
        is_unrecorded = not current and record.handler == DECORATED_HANDLER
        if current != config.source and not (is_unrecorded and config.source):
            raise NameTaken(name, _source_words(current, is_unrecorded), _source_words(config.source))

    @contextlib.contextmanager
    def holding(self, name: str, closure: Closure) -> Iterator[None]:
        """Count installed packages as used by a deploy that is not recorded yet."""
        deploying = (name, closure)
        self._under_way.append(deploying)
        try:
            yield
        finally:
            self._under_way.remove(deploying)

    def users(self, key: str) -> list[str]:
        """The functions that are being deployed with a distribution in their closure."""
        return [name for name, closure in self._under_way if key in closure.keys]

    def _timeout(self, code: CodeVersion, overrides: dict[str, Any]) -> dict[str, Any]:
        """OpenLambda's and decorated functions do not expect AWS's 3 s. The worker's own default takes precedence."""
        is_changed = self._defaults.timeout_s != FunctionDefaults().timeout_s
        if is_changed or "aws" in overrides:
            return {}
        is_long = "deployer" in overrides or (code.path / ol_yaml.FILE).is_file() or detected(code.path) == OPENLAMBDA
        return {"timeout_s": LONG_TIMEOUT_S} if is_long else {}

    def _secrets(self, name: str) -> dict[str, str]:
        """Settings that a deploy keeps."""
        with contextlib.suppress(NoSuchFunction, SecretsLocked):
            return self._registry.get(name).settings.secrets
        return {}

    def _closure_kept(
        self, name: str, declared: Dependencies, config: FunctionConfig, python: Interpreter
    ) -> Closure | None:
        """The packages of the current version, if it asked for the same."""
        with contextlib.suppress(NoSuchFunction, BadArchive, ResolveFailed, SecretsLocked):
            record = self._registry.get(name)
            before = record.settings
            if (before.packages, before.build, before.python) != (config.packages, config.build, config.python):
                return None
            then = dependencies.read(self._code.path(record.digest), record.handler, python)
            if then.asks_for == declared.asks_for:
                return Closure.from_json(record.closure)
        return None

    async def _install(
        self,
        name: str,
        declared: Dependencies,
        config: FunctionConfig,
        kept: Closure | None,
        python: Interpreter,
        progress: Progress,
    ) -> Closure:
        closure = kept or Closure()
        if kept is None and declared.text is not None:
            progress(f"resolving {declared.source}")
            closure = await self._packages.resolve(
                declared.text,
                declared.line_words,
                config.packages.chosen,
                build=config.build,
                python=python,
                constraints=declared.constraints,
                is_complete=declared.is_complete,
            )
        await self._ensure(name, closure, progress)
        return closure

    async def _ensure(self, name: str, closure: Closure, progress: Progress) -> None:
        with self.holding(name, closure):
            await self._packages.ensure(closure, progress=progress)
            self._packages.check_built(closure)


async def check_writable_root(config: FunctionConfig, images: ImageStore | None) -> None:
    """Raises: ImagesUnavailable, where sandboxes cannot change their image's files and the function's are to."""
    mounting = ImageMounting() if images is None else images.mounting
    if config.writable_root and (reason := await in_thread(mounting.why_no_writable_roots)):
        raise ImagesUnavailable(f"writable_root: this worker's kernel has no overlays for it: {reason}")


def check_client(python: ImagePython, config: FunctionConfig, record: ImageRecord, progress: Progress) -> None:
    """Check that the image has the AWS client that would run its handler. Raises: BadFunctionConfig, if it has none."""
    is_ours = image_programs.needs_client(config, record.config)
    if not python.reason or not (
        is_ours or image_programs.RUNTIME_CLIENT in image_programs.own_words(config, record.config)
    ):
        return
    # The function's own variables may lead to another Python, or to other modules; the Python was asked without them.
    is_elsewhere = any(name == "PATH" or name.startswith("PYTHON") for name in config.environment)
    if python.facts is not None and not python.facts.has_client and not is_elsewhere:
        raise BadFunctionConfig(image_programs.why_no_client(config, record.config, python.reason))
    if is_ours:
        words = " ".join(image_programs.command(config, record.config))
        progress(f"the program is {words}: the image must have {image_programs.RUNTIME_CLIENT}")


def served_words(python: ImagePython) -> str:
    """Describe what serves a function of an image, for the output of its deploy."""
    assert python.facts is not None
    return f"served by Zygotes of the image's Python {'.'.join(map(str, python.facts.version))}"


def _source_words(source: str, is_unrecorded: bool = False) -> str:
    if is_unrecorded:
        return "a file of decorated functions, by an older sockd"
    return source or "a directory or zip"


def _read_settings(
    code: CodeVersion, defaults: FunctionDefaults, overrides: dict[str, Any], beneath: dict[str, Any]
) -> FunctionConfig:
    """What the code's sockd.toml says, if it has one. Blocks. Raises: BadFunctionConfig, BadArchive."""
    return FunctionConfig.from_toml(code.settings(), defaults, overrides, beneath=beneath)


def _named(code: CodeVersion, overrides: dict[str, Any], beneath: dict[str, Any]) -> frozenset[str]:
    """What a deploy names of the settings; its texts have been read once. Blocks."""
    given = {key: value for key, value in overrides.items() if value is not None}
    tables = (toml.loads(code.settings() or ""), given, beneath)
    return frozenset().union(*map(kept_settings.named, tables))


async def _ol_settings(code: CodeVersion, progress: Progress) -> dict[str, Any]:
    """What the code's ol.yaml says, if it has one. Raises: BadFunctionConfig, BadArchive."""
    text = await in_thread(code.ol_yaml)
    if text is None:
        return {}
    read = await in_thread(ol_yaml.read, text)  # a parser in Python
    for note in read.notes:
        progress(Note(note))
    return read.settings
