"""What the sandboxes of a version become: its program, with the INIT message and the limits, and the view of its imports.

Owns nothing: the version that a program is made for owns it, and closes it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sockd.functions.code.code_store import SANDBOX_PATH
from sockd.functions.code.entrypoint import BOOTSTRAP, DETECTED_APPS, WASM, parse_handler, provided, service_command
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.in_images import image_programs
from sockd.functions.modules.function_modules import version_in
from sockd.functions.registry.function_record import FunctionRecord
from sockd.images.store.image_record import ImageRecord
from sockd.isolation.roots import environment as environments
from sockd.isolation.roots import interpreter_settings
from sockd.isolation.roots.host_pythons import SCHEME
from sockd.isolation.roots.image_python import ImagePython
from sockd.isolation.roots.interpreter import OWN_PYTHON
from sockd.isolation.roots.interpreter_settings import SEARCH_PATH, Started
from sockd.isolation.roots.program import OWN, ImageInUse, Limits, Program
from sockd.starts.packages.distribution import Closure
from sockd.starts.packages.install_cache import InstallCache
from sockd.starts.packages.provided_names import Provided, provided_by
from sockd.starts.zygotes.top_levels.soundness import ImportView, visible_limits
from sockd_zygote import protocol, wasm_host
from sockd_zygote.handlers import storage_finder
from sockd_zygote.handlers.wasm.runtime import compiled_path

FOR_EVER_S = 10 * 365 * 86_400.0
"""The time of the one request of a service's sandbox, which ends with its program."""


@dataclass(frozen=True, slots=True)
class About:
    """Which version a program is of, and how long its answers may be."""

    record: FunctionRecord
    config: FunctionConfig
    number: str
    max_answer_bytes: int


class UsedImage(NamedTuple):
    """An image, and a version's use of it."""

    record: ImageRecord
    use: ImageInUse
    python: ImagePython
    """What serves it; with a reason, nothing does, and it is a program."""


def program_of_code(about: About, closure: Closure, packages: InstallCache, code: Path) -> tuple[Program, ImportView]:
    """Return the program of a version whose code is published and whose packages are installed, and the view of its
    imports."""
    record, config = about.record, about.config
    is_wasm, is_service = config.runtime == WASM, config.service is not None
    kind = "" if is_wasm or is_service else app_kind(record.handler, config)
    is_provided = BOOTSTRAP if is_service else provided(code, config.runtime)
    message = {
        "code": SANDBOX_PATH,
        "entry_file": entry_file(code, record.handler),
        "provided": is_provided,
        "paths": packages.paths(closure),
        "pth": packages.pth_paths(closure),
        "env": environment(about, closure, packages),
        "storage": config.storage,
        "app": kind,
    }
    if is_wasm and not is_service:
        message["wasm"] = compiled_path(record.handler, version_in(closure))
    if not is_provided:  # a program starts an interpreter of its own, which reads them
        message["paths"] = [*own_search_path(config), *packages.paths(closure)]
        message |= settings_part(config, Started.of_host(config.python))
    if is_service:
        message |= service_part(config, _service_command(record.handler, config, code))
    is_app = True if is_service else IS_APP[kind]
    program = _program(about, message, code=code, is_app=is_app, interpreter=interpreter_id(config))
    return program, import_view(about, closure, packages, code)


def _service_command(handler: str, config: FunctionConfig, code: Path) -> list[str]:
    if config.runtime == WASM:
        return wasm_host.command(handler, wasm_host.build(), config.memory_mb, config.timeout_s)
    return service_command(code, config.command)


def program_of_image(about: About, image: UsedImage) -> tuple[Program, ImportView]:
    """Return the program of a version that runs in an image: its handler, in Zygotes of the image's Python, or the image's
    program."""
    if not image.python.reason:
        return _handler_in_image(about, image)
    config, oci = about.config, image.record.config
    message = {
        "code": "/",
        "entry_file": "",
        "provided": image_programs.IMAGE,
        "image": image_programs.init_part(config, oci),
        "paths": [],
        "pth": [],
        "env": image_programs.variables(config, oci, function_variables(about)),
    }
    if config.service is not None:
        message |= service_part(config, image_programs.command(config, oci))
    is_app = config.app_port is not None or config.service is not None
    program = _program(about, message, image=image.use, is_app=is_app, writable_root=config.writable_root)
    return program, ImportView(frozenset(), network=config.network)


def _handler_in_image(about: About, image: UsedImage) -> tuple[Program, ImportView]:
    config, imports = about.config, image.python.imports()
    variables = image_programs.variables(config, image.record.config, function_variables(about))
    message = {
        "handler": parse_handler(about.record.handler),
        "code": imports.directory,
        "entry_file": "",
        "sys_path": list(imports.path),
        "paths": list(imports.roots),
        "pth": list(imports.pth),
        "sitecustomize": imports.sitecustomize,
        "image_key": imports.key,
        "env": variables,
        **settings_part(config, Started.of_image(image.python)),
    }
    # Its code and packages are in the image, and so in each of its Zygotes.
    view = ImportView(
        frozenset((imports.key,)),
        environment=environments.BASE | variables,
        variables=frozenset(config.environment.items()),
        network=config.network,
        interpreter=image.python.id,
        zygote=config.zygote,
        program=program_digest(about, variables, frozenset((imports.key,))),
        function=about.record.name,
    )
    return _program(about, message, interpreter=image.python.id), view


def _program(
    about: About,
    message: dict[str, Any],
    *,
    code: Path | None = None,
    image: ImageInUse | None = None,
    is_app: bool | None = False,
    interpreter: str = OWN,
    writable_root: bool = False,
) -> Program:
    """Args: message: INIT, but for what is the same for all versions (zygote/handlers/handler_server.py reads it)."""
    record, config = about.record, about.config
    common = {
        "name": record.name,
        "version": about.number,
        "handler": record.handler,
        "memory_mb": config.memory_mb,
        "open_files": config.open_files,
        "max_answer_bytes": about.max_answer_bytes,
        **({"initscript": True} if record.initscript else {}),
    }
    program = Program(
        code,
        protocol.encode_init({**common, **message}),
        limits_of(config),
        init_timeout_s=config.init_timeout_s,
        timeout_s=config.timeout_s if config.service is None else FOR_EVER_S,
        log_bytes=config.log_bytes,
        is_app=is_app,
        name=record.name,
        json_log_level=config.json_log_level,
        image=image,
        interpreter=interpreter,
        writable_root=writable_root,
    )
    program.wants_port = config.service is not None and config.network == "host"
    return program


def service_part(config: FunctionConfig, command: list[str]) -> dict[str, Any]:
    """What INIT says of a service (`sockd_zygote.handlers.programs.service`)."""
    assert config.service is not None
    return {
        "service": {
            "command": command,
            "port": config.service.port,
            "ready_path": config.service.ready_path,
            "init_timeout_s": config.init_timeout_s,
        }
    }


def import_view(about: About, closure: Closure, packages: InstallCache, code: Path) -> ImportView:
    """What the imports of a version see in its own start."""
    config = about.config
    if config.zygote == "none" or config.service is not None or provided(code, config.runtime):
        return ImportView(frozenset(), network=config.network, interpreter=interpreter_id(config))
    variables = environment(about, closure, packages)
    return ImportView(
        closure.keys,
        {key: packages.provided(key) for key in closure.keys},
        with_storage(provided_by(code)) if config.storage == "sockd" else provided_by(code),
        environments.BASE | variables | unnamed_variables(config),
        frozenset(config.environment.items()),
        config.network,
        frozenset(path.name for path in code.iterdir()),
        interpreter_id(config),
        config.zygote,
        program_digest(about, variables, closure.keys),
        about.record.name,
    )


def program_digest(about: About, variables: dict[str, str], keys: frozenset[str]) -> str:
    """A name for all that decides what a version's top level does. No value of a variable can be read from it."""
    record, config = about.record, about.config
    code = record.image or record.digest
    settings = record.handler, config.storage, config.app, config.network, config.zygote
    limits, variable_list = sorted(limits_in_sight(config).items()), sorted(variables.items())
    parts = code, settings, limits, interpreter_id(config), variable_list, sorted(keys)
    return hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def unnamed_variables(config: FunctionConfig) -> dict[str, str]:
    """What imports see besides variables, by the names that `soundness` compares it with."""
    path = ":".join(own_search_path(config))
    return limits_in_sight(config) | ({SEARCH_PATH: path} if path else {})


def limits_in_sight(config: FunctionConfig) -> dict[str, str]:
    return visible_limits(open_files=config.open_files, tmp_mb=config.tmp_mb, tmp_inodes=config.tmp_inodes)


def own_search_path(config: FunctionConfig) -> list[str]:
    """The directories of a function's own PYTHONPATH."""
    return interpreter_settings.search_path(config.environment, SANDBOX_PATH)


def settings_part(config: FunctionConfig, started: Started) -> dict[str, dict[str, str]]:
    """INIT's `settings`, if the function has any: looked for here, so that no start of another function pays for them."""
    settings = interpreter_settings.obeyed(config.environment, started)
    return {"settings": settings} if settings else {}


def interpreter_id(config: FunctionConfig) -> str:
    """Return the id of the interpreter that runs a version."""
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


def environment(about: About, closure: Closure, packages: InstallCache) -> dict[str, str]:
    """What AWS sets for a function, and its own variables; what is the same for all is in its Zygote already."""
    own = about.config.environment
    return {
        **environments.path_variable(packages.bin_paths(closure)),
        **function_variables(about),
        **environments.python_path(own.get("PYTHONPATH", ""), SANDBOX_PATH, packages.paths(closure)),
    }


def function_variables(about: About) -> dict[str, str]:
    """What AWS sets for a function, and its own variables, which win."""
    record, config = about.record, about.config
    own = config.environment
    return {
        **environments.region_variables(own),
        "_HANDLER": record.handler.replace(":", "."),
        "AWS_LAMBDA_FUNCTION_NAME": record.name,
        "AWS_LAMBDA_FUNCTION_VERSION": about.number,
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": str(config.memory_mb),
        "AWS_LAMBDA_LOG_GROUP_NAME": f"/aws/lambda/{record.name}",
        "AWS_LAMBDA_LOG_STREAM_NAME": about.number,
        "AWS_LAMBDA_INITIALIZATION_TYPE": "on-demand",
        **log_variables(config),
        **own,
    }


def log_variables(config: FunctionConfig) -> dict[str, str]:
    """What AWS's runtimes read of a function's LoggingConfig; nothing for text, which is what they do without."""
    if config.log_format == "text":
        return {}
    return {"AWS_LAMBDA_LOG_FORMAT": "JSON", "AWS_LAMBDA_LOG_LEVEL": (config.log_level or "info").upper()}
