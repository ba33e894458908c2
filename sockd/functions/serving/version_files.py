"""The files of versions: a deploy's code, packages and image, and the version that is made of them.

Owns nothing: the code store, the install cache and the image store own the files.
"""

from __future__ import annotations

import logging
from pathlib import Path

from sockd.base.blocking import in_thread
from sockd.base.errors import BadFunctionConfig, CodeLost, FilesMissing, PackagesMissing, UnknownImage
from sockd.functions.code.code_store import CodeStore
from sockd.functions.code.entrypoint import WASM, entry_point, provided
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.in_images import image_programs
from sockd.functions.in_images.image_pythons import ImagePythons
from sockd.functions.modules import function_modules
from sockd.functions.modules.function_modules import FunctionModules
from sockd.functions.registry.aliases import LATEST
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.serving.shared_files import SharedFiles
from sockd.functions.serving.version import Version
from sockd.functions.serving.version_program import UsedImage
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.image_store import ImageStore
from sockd.isolation.roots.image_python import SCHEME, ImagePython
from sockd.isolation.roots.interpreter_settings import Started
from sockd.starts.packages.distribution import Closure
from sockd.starts.packages.install_cache import InstallCache

_log = logging.getLogger(__name__)


class VersionFiles:
    """The files of all versions of a worker; `load` makes a version of them."""

    def __init__(
        self,
        code: CodeStore,
        packages: InstallCache,
        images: ImageStore | None,
        pythons: ImagePythons | None,
        modules: FunctionModules,
        *,
        max_answer_bytes: int,
        shared: SharedFiles | None = None,
    ) -> None:
        """Args:
        images: None: functions run in no images; pythons: None: those that do are programs.
        shared: None: the worker is in no group."""
        self._code = code
        self._packages = packages
        self._images = images
        self._pythons = pythons
        self._modules = modules
        self._max_answer_bytes = max_answer_bytes
        self._shared = shared

    def load(self, record: FunctionRecord, number: str = LATEST) -> Version:
        """Make the version that a record describes. Raises: as `check`; SecretsLocked."""
        path = self.check(record)
        image = None
        if record.image and self._images is not None:
            of_image = self._images.get(record.image)
            python = self._python_of(of_image, record.settings)
            image = UsedImage(of_image, self._images.use(record.image), python)
        most = self._max_answer_bytes
        return Version.load(record, path, self._packages, number=number, max_answer_bytes=most, image=image)

    def check(self, record: FunctionRecord) -> Path:
        """Check that all files of a deploy are here. Returns: the directory of its code.

        Raises: FilesMissing, CodeLost, PackagesMissing, ModuleLost, UnknownImage."""
        if self._shared is not None and self._shared.lacks(record):
            raise FilesMissing(record.name)
        path, closure = self._path(record), Closure.from_json(record.closure)
        if lacking := self._packages.missing(closure):
            raise PackagesMissing(lacking)
        function_modules.check(record, path, closure)
        if record.image:
            if self._images is None:
                raise UnknownImage(record.image)
            self._images.get(record.image)
        return path

    async def restore(self, record: FunctionRecord) -> None:
        """Get what is missing here of a deploy: files from its group, packages from their index, the compiled module, the image.

        Raises: CodeLost, InstallFailed, ModuleLost, BadImage and its kinds, UnknownImage, ImageLost, ImagesUnavailable,
            ImagePythonFailed, ChunkStoreFailed, DatabaseUnavailable."""
        if self._shared is not None:
            await self._fetch(self._shared, record)
        path, closure = self._path(record), Closure.from_json(record.closure)
        await self._packages.ensure(closure)
        await self._modules.restore(record, path, closure)
        if record.image and self._images is not None:
            config = record.settings
            image = await self._images.ensure(record.image, config.image or "")
            if self._pythons is not None and not self._pythons.is_asked(image, config):
                await self._pythons.find(image, config, _log.info)

    async def _fetch(self, shared: SharedFiles, record: FunctionRecord) -> None:
        is_new = not record.image and not self._code.path(record.digest).is_dir()
        await shared.fetch(record)
        if is_new:
            python = await self._packages.interpreter(record.settings.python)
            await in_thread(self._code.compile_for, record.digest, python)

    def handler(self, record: FunctionRecord, config: FunctionConfig) -> str:
        """Find the entry point of recorded code with other settings. Raises: BadFunctionConfig, UnknownImage."""
        if record.image and self._images is not None:
            return image_programs.handler(config, self._images.get(record.image).config)
        if WASM in (config.runtime, record.settings.runtime):
            raise BadFunctionConfig(
                "runtime, handler: a WebAssembly module is compiled by its deploy: deploy the function again"
            )
        return entry_point(self._code.path(record.digest), config.handler, config.runtime)

    def interpreter(self, record: FunctionRecord, config: FunctionConfig) -> Started | None:
        """Return the interpreter that recorded code is forked from with these settings; None: it is a program."""
        if not record.image:
            is_program = provided(self._code.path(record.digest), config.runtime)
            return None if is_program else Started.of_host(config.python)
        if self._images is None:
            return None
        python = self._python_of(self._images.get(record.image), config)
        return None if python.reason else Started.of_image(python)

    def _path(self, record: FunctionRecord) -> Path:
        """The directory with a deploy's code. Raises: CodeLost; an image's functions need none."""
        path = self._code.path(record.digest)
        if not record.image and not path.is_dir():
            raise CodeLost(record.name)
        return path

    def _python_of(self, image: ImageRecord, config: FunctionConfig) -> ImagePython:
        if self._pythons is None:
            return ImagePython(id=SCHEME, reason="this worker has no Zygotes for images")
        return self._pythons.known(image, config)
