"""One version of a function, ready to run: its packages and program, made from a record of the registry.

Versions have AWS's names: $LATEST for the last deploy, a number for a published one.

Owns the program's code mount. A version is immutable; a deploy creates another and releases this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from sockd.caches.packages.distribution import Closure
from sockd.caches.packages.install_cache import InstallCache
from sockd.caches.packages.provided_names import Provided, provided_by
from sockd.caches.zygotes import standard_library
from sockd.caches.zygotes.soundness import NO_PACKAGES, OPEN_FILES, ImportView
from sockd.code.code_store import SANDBOX_PATH
from sockd.code.entrypoint import DETECTED_APPS, parse_handler, provided
from sockd.code.function_config import FunctionConfig
from sockd.functions.initscripts import Initscript
from sockd.image_functions import image_programs
from sockd.image_store.image_record import ImageRecord
from sockd.images import environment as environments
from sockd.images.host_pythons import SCHEME
from sockd.images.image_python import ImagePython
from sockd.images.interpreter import OWN_PYTHON
from sockd.images.program import OWN, ImageInUse, Limits, Program
from sockd.plain.call_signature import key_id, source_tag
from sockd.plain.errors import MethodNotAllowed, OtherCode
from sockd.plain.invoke_request import InvokeRequest
from sockd.plain.telemetry import FunctionInfo
from sockd.registry.aliases import LATEST
from sockd.registry.function_record import FunctionRecord
from sockd.sandbox.exchange import Call
from sockd_zygote import protocol
from sockd_zygote.handlers import storage_finder

EVENT_METHODS = ("GET", "POST")
"""Default HTTP methods of a function of events; a web app accepts all."""
ANY_METHOD = "*"


class UsedImage(NamedTuple):
    """An image, and a version's use of it."""

    record: ImageRecord
    use: ImageInUse
    python: ImagePython
    """What serves it; with a reason, nothing does, and it is a program."""


class Version:
    """`id` names it; `number` is its published number or $LATEST; `program` is what its sandboxes become; `keys` are its
    distributions; `view` is what its imports see, in which are only those that a Zygote may import for it."""

    def __init__(
        self,
        record: FunctionRecord,
        config: FunctionConfig,
        closure: Closure,
        program: Program,
        number: str,
        view: ImportView = NO_PACKAGES,
        image: ImageInUse | None = None,
    ) -> None:
        self.record = record
        self.image = image
        """That its sandboxes read, whether they are programs or handlers."""
        self.config = config
        self.closure = closure
        self.keys = closure.keys
        self.view = view
        self.number = number
        self.program = program
        self.initscript = Initscript.of(record.name, record.initscript, config) if record.initscript else None
        self.id = f"{record.name}@{(record.image.removeprefix('sha256:') or record.digest)[:12]}"

    @classmethod
    def load(
        cls,
        record: FunctionRecord,
        code: Path,
        packages: InstallCache,
        *,
        number: str = LATEST,
        max_answer_bytes: int,
        image: UsedImage | None = None,
    ) -> Version:
        """The version that a record describes; its code is published and its packages are installed.

        Args: image: that it runs in, if it has one."""
        config = FunctionConfig.from_json(record.config)
        if image is not None:
            return cls._of_image(record, config, image, number=number, max_answer_bytes=max_answer_bytes)
        closure = Closure.from_json(record.closure)
        init = init_message(record, config, closure, packages, code, number=number, max_answer_bytes=max_answer_bytes)
        program = Program(
            code,
            init,
            limits_of(config),
            init_timeout_s=config.init_timeout_s,
            timeout_s=config.timeout_s,
            log_bytes=config.log_bytes,
            is_app=IS_APP[app_kind(record.handler, config)],
            name=record.name,
            json_log_level=config.json_log_level,
            interpreter=interpreter_id(config),
        )
        return cls(
            record, config, closure, program, number, import_view(record, config, closure, packages, code, number)
        )

    @classmethod
    def _of_image(
        cls, record: FunctionRecord, config: FunctionConfig, image: UsedImage, *, number: str, max_answer_bytes: int
    ) -> Version:
        """One whose program is an image's."""
        oci = image.record.config
        if not image.python.reason:
            return cls._of_handler(record, config, image, number=number, max_answer_bytes=max_answer_bytes)
        message = {
            "name": record.name,
            "version": number,
            "handler": record.handler,
            "code": "/",
            "entry_file": "",
            "provided": image_programs.IMAGE,
            "image": image_programs.init_part(config, oci),
            "paths": [],
            "pth": [],
            "env": image_programs.variables(config, oci, function_variables(record, config, number)),
            "memory_mb": config.memory_mb,
            "open_files": config.open_files,
            "max_answer_bytes": max_answer_bytes,
        }
        program = Program(
            None,
            protocol.encode_init(message),
            limits_of(config),
            init_timeout_s=config.init_timeout_s,
            timeout_s=config.timeout_s,
            log_bytes=config.log_bytes,
            name=record.name,
            is_app=config.app_port is not None,
            json_log_level=config.json_log_level,
            image=image.use,
            writable_root=config.writable_root,
        )
        view = ImportView(frozenset(), network=config.network)
        return cls(record, config, Closure(), program, number, view, image.use)

    @classmethod
    def _of_handler(
        cls, record: FunctionRecord, config: FunctionConfig, image: UsedImage, *, number: str, max_answer_bytes: int
    ) -> Version:
        """One whose handler is in an image, and served by Zygotes of the image's Python."""
        imports = image.python.imports()
        variables = image_programs.variables(config, image.record.config, function_variables(record, config, number))
        message = {
            "name": record.name,
            "version": number,
            "handler": parse_handler(record.handler),
            "code": imports.directory,
            "entry_file": "",
            "sys_path": list(imports.path),
            "paths": list(imports.roots),
            "pth": list(imports.pth),
            "sitecustomize": imports.sitecustomize,
            "image_key": imports.key,
            "env": variables,
            "memory_mb": config.memory_mb,
            "open_files": config.open_files,
            "max_answer_bytes": max_answer_bytes,
        }
        program = Program(
            None,
            protocol.encode_init(message),
            limits_of(config),
            init_timeout_s=config.init_timeout_s,
            timeout_s=config.timeout_s,
            log_bytes=config.log_bytes,
            name=record.name,
            json_log_level=config.json_log_level,
            interpreter=image.python.id,
        )
        # Its code and packages are in the image, and so in each of its Zygotes.
        view = ImportView(
            frozenset((imports.key,)) if config.zygote == "packages" else frozenset(),
            environment=environments.BASE | variables,
            variables=frozenset(config.environment.items()),
            network=config.network,
            interpreter=image.python.id,
        )
        return cls(record, config, Closure(), program, number, view, image.use)

    def call(self, request: InvokeRequest, is_app: bool) -> Call:
        """The request to a sandbox of this version. Raises: MethodNotAllowed."""
        if request.method != ANY_METHOD:
            self._check_method(request.method, is_app)
        details, payload = request.details, request.payload
        if is_app and request.as_http is not None:
            http, payload = request.as_http()
            details = {**(details or {}), "http": http}
        return Call(request.id, payload, msgspec.json.encode(details) if details else b"")

    def check_code(self, expected: Sequence[str]) -> None:
        """Raises: OtherCode, unless this version's code or its source is among those that the caller names."""
        if self.record.digest in expected:
            return
        source = self.config.source
        if not source or source_tag(source) not in expected:
            raise OtherCode(self.record.name)

    def _check_method(self, method: str, is_app: bool) -> None:
        methods = self.config.methods
        if methods is None:
            if method not in EVENT_METHODS and not is_app:
                raise MethodNotAllowed(method, ", ".join(EVENT_METHODS))
        elif method not in methods and ANY_METHOD not in methods:
            raise MethodNotAllowed(method, ", ".join(methods))

    def info(self) -> FunctionInfo:
        """As people see it."""
        record, config = self.record, self.config
        return FunctionInfo(
            name=record.name,
            version=record.image.removeprefix("sha256:") or record.digest,
            version_number=record.version,
            handler=record.handler,
            memory_mb=config.memory_mb,
            timeout_s=config.timeout_s,
            concurrency=config.concurrency,
            network=config.network,
            egress=config.egress,
            packages=[f"{each.name}=={each.version}" for each in self.closure.distributions],
            storage=config.storage,
            zygote=config.zygote,
            python=config.python,
            initscript=record.initscript,
            image=config.image or "",
            source=config.source,
            run=config.run,
            call_key_id=key_id(config.call_key) if config.call_key else "",
            code_bytes=record.code_bytes,
            created_at=record.created_at,
            updated_at=record.published_at,
        )

    def close(self) -> None:
        """Release the code; running sandboxes keep it."""
        self.program.close()


def import_view(
    record: FunctionRecord, config: FunctionConfig, closure: Closure, packages: InstallCache, code: Path, number: str
) -> ImportView:
    """What the imports of a version see in its own start; of its packages none, if no Zygote may import any for it."""
    nothing = ImportView(frozenset(), network=config.network, interpreter=interpreter_id(config))
    if config.zygote == "none":
        return nothing
    file = entry_file(code, record.handler)
    uses_standard_library = bool(file) and standard_library.is_needed_by(code / file)
    if not closure.keys and not uses_standard_library:
        return nothing
    return ImportView(
        closure.keys if config.zygote == "packages" else frozenset(),
        {key: packages.provided(key) for key in closure.keys},
        with_storage(provided_by(code)) if config.storage == "sockd" else provided_by(code),
        environments.BASE
        | environment(record, config, closure, packages, number)
        | {OPEN_FILES: str(config.open_files)},
        uses_standard_library,
        frozenset(config.environment.items()),
        config.network,
        frozenset(path.name for path in code.iterdir()),
        interpreter_id(config),
    )


def interpreter_id(config: FunctionConfig) -> str:
    """Of the interpreter that runs a version."""
    return OWN if config.python in (None, OWN_PYTHON.short) else f"{SCHEME}:{config.python}"


def with_storage(code: Provided) -> Provided:
    """What a function's code offers, and the storage library's names, which are found before all others."""
    names = {*storage_finder.MODULES, *storage_finder.PACKAGES, *storage_finder.ALIASES}
    return msgspec.structs.replace(code, modules=code.modules | names)


def limits_of(config: FunctionConfig) -> Limits:
    """A function's settings in the units of the kernel."""
    return Limits(
        memory_bytes=config.memory_mb << 20,
        pids=config.pids,
        cpus=config.cpus,
        tmp_bytes=config.tmp_mb << 20,
        tmp_inodes=config.tmp_inodes,
        network=config.network,
        sockets=config.sockets,
    )


def init_message(
    record: FunctionRecord,
    config: FunctionConfig,
    closure: Closure,
    packages: InstallCache,
    code: Path,
    *,
    number: str,
    max_answer_bytes: int,
) -> bytes:
    """INIT: everything that a sandbox must know to be this version (zygote/handlers/handler_server.py reads it)."""
    message = {
        "name": record.name,
        "version": number,
        "handler": record.handler,
        "code": SANDBOX_PATH,
        "entry_file": entry_file(code, record.handler),
        "provided": provided(code, config.runtime),
        "paths": packages.paths(closure),
        "pth": packages.pth_paths(closure),
        "env": environment(record, config, closure, packages, number),
        "memory_mb": config.memory_mb,
        "open_files": config.open_files,
        "storage": config.storage,
        "app": app_kind(record.handler, config),
        "max_answer_bytes": max_answer_bytes,
    }
    return protocol.encode_init(message)


IS_APP = {"": False, "maybe": None, "auto": True, "wsgi": True, "asgi": True}
"""Whether a handler is a web app, by its kind; None: its first sandbox reports it."""


def app_kind(handler: str, config: FunctionConfig) -> str:
    """What kind of web app a handler is, as far as settings and file names tell; empty: none."""
    if config.app is not None:
        return config.app
    return DETECTED_APPS[handler] if config.handler is None and handler in DETECTED_APPS else "maybe"


def entry_file(code: Path, handler: str) -> str:
    """The source of the entry module when it is a plain file at the top of the code; else empty."""
    name = handler.partition(":")[0]
    is_plain = "." not in name and (code / f"{name}.py").is_file() and not (code / name).exists()
    return f"{name}.py" if is_plain else ""


def environment(
    record: FunctionRecord, config: FunctionConfig, closure: Closure, packages: InstallCache, number: str
) -> dict[str, str]:
    """What AWS sets for a function, and its own variables; what is the same for all is in its Zygote already."""
    own = config.environment
    return {
        **environments.path_variable(packages.bin_paths(closure)),
        **function_variables(record, config, number),
        **environments.python_path(own.get("PYTHONPATH", ""), SANDBOX_PATH, packages.paths(closure)),
    }


def function_variables(record: FunctionRecord, config: FunctionConfig, number: str) -> dict[str, str]:
    """What AWS sets for a function, and its own variables, which win."""
    own = config.environment
    return {
        **environments.region_variables(own),
        "_HANDLER": record.handler.replace(":", "."),
        "AWS_LAMBDA_FUNCTION_NAME": record.name,
        "AWS_LAMBDA_FUNCTION_VERSION": number,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(config.memory_mb),
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{record.name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": number,
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        **log_variables(config),
        **own,
    }


def log_variables(config: FunctionConfig) -> dict[str, str]:
    """What AWS's runtimes read of a function's LoggingConfig; nothing for text, which is what they do without."""
    if config.log_format == "text":
        return {}
    return {"AWS_LAMBDA_LOG_FORMAT": "JSON", "AWS_LAMBDA_LOG_LEVEL": (config.log_level or "info").upper()}
