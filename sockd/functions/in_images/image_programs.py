"""The program of a function with an image: its command, working directory and environment. Pure.

As on AWS: the image's ENTRYPOINT, CMD, ENV and WORKDIR, each of which but ENV the function's settings may replace; over ENV what
the platform sets, and over that the function's own variables.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sockd.base.errors import BadFunctionConfig
from sockd.functions.code.function_config import FunctionConfig
from sockd.images.registry.image import ImageConfig
from sockd.images.store.image_record import ImageRecord
from sockd.isolation.roots import base as bases
from sockd.isolation.roots.image_base import DIRECTORIES, PLACES
from sockd_zygote import protocol

DEFAULTS = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": f"/{bases.TMP}",
    "LAMBDA_TASK_ROOT": f"/{bases.CODE}",
    "LANG": "C.UTF-8",
    "TZ": ":UTC",
}
"""Defaults of variables that an image may set otherwise; PATH as docker has it."""
ADAPTER_PORT = 8080
"""Default of AWS's Lambda Web Adapter."""
AWS_ENTRYPOINT = "/lambda-entrypoint.sh"
"""The entry point of AWS's base images; it starts awslambdaric in the Python of /var/lang."""
RUNTIME_CLIENT = "awslambdaric"
PYTHON = "python3"
"""The Python of a handler whose image does not say how Python is started."""
JAVA_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
NODE_PROGRAMS = ("node", "nodejs", "npm", "npx", "yarn", "pnpm")
NODE_OPTIONS, NODE_HEAP = "NODE_OPTIONS", "--max-old-space-size"
NODE_OTHER_MB = 64
"""The memory of Node outside of its heap of old objects: code, buffers, young objects."""
HEAP_OPTIONS = ("-Xmx", "-XX:MaxRAM", "-XX:MaxHeapSize")
WRITERS = {
    "NGINX_VERSION": ("nginx", "/var/cache/nginx and /run"),
    "HTTPD_VERSION": ("Apache", "/usr/local/apache2/logs"),
    "CADDY_VERSION": ("Caddy", "/config and /data"),
}
"""Variables of official images, by which a program is known that writes outside of /tmp, and where it does."""
IMAGE = "image"
"""INIT's `provided`, of a function whose program is an image's."""


def command(config: FunctionConfig, image: ImageConfig) -> list[str]:
    """What is run: for a handler in Python, AWS's client with it, unless the image's own words start that.

    Raises: BadFunctionConfig, if that is nothing."""
    words = own_words(config, image)
    if needs_client(config, image):
        return [PYTHON, "-m", RUNTIME_CLIENT, str(config.handler).replace(":", ".")]
    if not words:
        raise BadFunctionConfig('the image has neither ENTRYPOINT nor CMD: name a program, command = ["/app/server"]')
    return words


def own_words(config: FunctionConfig, image: ImageConfig) -> list[str]:
    """ENTRYPOINT and CMD, of the settings or the image."""
    entry_point = config.entrypoint if config.entrypoint is not None else image.entrypoint
    return [*entry_point, *(config.command if config.command is not None else image.cmd)]


def needs_client(config: FunctionConfig, image: ImageConfig) -> bool:
    """Whether the image's words do not run the handler that the settings name."""
    words = own_words(config, image)
    if config.runtime != "python" or config.handler is None or config.app_port is not None:
        return False
    return words[:1] != [AWS_ENTRYPOINT] and RUNTIME_CLIENT not in words


def why_no_client(config: FunctionConfig, image: ImageConfig, reason: str) -> str:
    """What is wrong with a handler in an image without AWS's client, and what to do. Args: reason: why no Zygote serves it."""
    words = " ".join(command(config, image))
    return (
        f"the image's Python has no module {RUNTIME_CLIENT}, and Zygotes, which need none, cannot serve the handler ({reason}): "
        f"{words} would fail. Add it to the image (RUN python3 -m pip install {RUNTIME_CLIENT}), or remove that reason"
    )


def handler(config: FunctionConfig, image: ImageConfig) -> str:
    """Return what the program gets as `_HANDLER`: as in AWS's images, the first word of CMD."""
    arguments = config.command if config.command is not None else image.cmd
    return config.handler or (arguments[0] if arguments else command(config, image)[0])


def port_words(config: FunctionConfig) -> str:
    """Describe where the web server must listen, for the output of the deploy."""
    if config.network == "host":
        return (
            'its web server must listen on $PORT, a free one of the host\'s; with network = "none" or "private" '
            f"it is always {config.app_port}"
        )
    return f"its web server is asked on port {config.app_port}"


def directory(config: FunctionConfig, image: ImageConfig) -> str:
    """Where it is run."""
    return config.working_directory or image.working_dir or "/"


def variables(config: FunctionConfig, image: ImageConfig, of_function: dict[str, str]) -> dict[str, str]:
    """All that the program is given but what only the sandbox knows. Args: of_function: the platform's and its own."""
    own = dict(variable.split("=", 1) for variable in image.env if "=" in variable)
    region = {name: protocol.ENVIRONMENT[name] for name in ("AWS_REGION", "AWS_DEFAULT_REGION")}
    readiness = {"AWS_LWA_READINESS_CHECK_PATH": config.readiness_path} if config.readiness_path != "/" else {}
    found = {**DEFAULTS, **own, **region, **readiness, **of_function}
    return with_node_heap(own_words(config, image), found, config.memory_mb)


def init_part(config: FunctionConfig, image: ImageConfig) -> dict[str, Any]:
    """INIT's `image` (`sockd_zygote.handlers.programs.image_program`)."""
    words = with_memory(command(config, image), variables(config, image, config.environment), config.memory_mb)
    part: dict[str, Any] = {"command": words, "directory": directory(config, image)}
    if config.app_port is not None:
        shares_ports = config.network == "host"
        part |= {"port": config.app_port, "shares_ports": shares_ports, "init_timeout_s": config.init_timeout_s}
    return part


def with_memory(words: list[str], own: dict[str, str], memory_mb: int) -> list[str]:
    """POLICY: a command of Java, with the memory that it has, if neither the command nor its variables limit the heap.

    A JVM takes a quarter of the memory that it finds, and it finds the host's: on AWS that is the function's own. Without this
    its heap grows over the limit of the sandbox before it collects anything."""
    if not words or words[0].rpartition("/")[2] != "java":
        return words
    options = [*words, *(text for name in JAVA_OPTIONS for text in own.get(name, "").split())]
    if any(each.startswith(HEAP_OPTIONS) for each in options):
        return words
    return [words[0], f"-XX:MaxRAM={memory_mb}m", *words[1:]]


def with_node_heap(words: list[str], found: dict[str, str], memory_mb: int) -> dict[str, str]:
    """POLICY: the variables of a program of Node, with a heap that fits its memory, unless command or variables limit it.

    Node takes its heap's limit from the memory that it finds, which is the host's. Official images of Node start it by a script,
    and say NODE_VERSION."""
    is_node = "NODE_VERSION" in found or any(word.rpartition("/")[2] in NODE_PROGRAMS for word in words[:2])
    own = found.get(NODE_OPTIONS, "")
    if not is_node or any(each.replace("_", "-").startswith(NODE_HEAP) for each in (*words, *own.split())):
        return found
    heap_mb = max(memory_mb // 4, min(memory_mb * 3 // 4, memory_mb - NODE_OTHER_MB))
    return {**found, NODE_OPTIONS: f"{own} {NODE_HEAP}={heap_mb}".lstrip()}


def with_adapter(config: FunctionConfig, record: ImageRecord) -> FunctionConfig:
    """Settings with the port of an image's web server, if the image has AWS's adapter for one. Raises: BadFunctionConfig."""
    if config.app_port is not None or not record.facts.has_web_adapter:
        return config
    own = dict(variable.split("=", 1) for variable in record.config.env if "=" in variable) | config.environment
    text = own.get("AWS_LWA_PORT") or own.get("PORT") or str(ADAPTER_PORT)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise BadFunctionConfig(f"AWS_LWA_PORT = {text[:40]!r}: must be a port")
    return msgspec.structs.replace(config, app_port=int(text))


def with_exposed_port(config: FunctionConfig, image: ImageConfig) -> FunctionConfig:
    """POLICY: settings with the one TCP port that an image exposes, unless its program asks the Runtime API.

    What tells that: a handler, a runtime, or words of AWS's runtime clients, which all have `lambda` in their names."""
    if config.app_port is not None or config.handler is not None or config.runtime is not None:
        return config
    words = own_words(config, image)
    if any("lambda" in word.lower() for word in words) or (words and words[0].rpartition("/")[2] == "bootstrap"):
        return config
    ports = {each.removesuffix("/tcp") for each in image.exposed_ports if not each.endswith(("/udp", "/sctp"))}
    port = ports.pop() if len(ports) == 1 else ""
    if not port.isdecimal() or not 1 <= int(port) <= 65535:  # a range, as in EXPOSE 8000-8010, names none
        return config
    return msgspec.structs.replace(config, app_port=int(port))


def notes(record: ImageRecord, config: FunctionConfig) -> list[str]:
    """Return the notes for the output of an image's deploy."""
    said = [*record.notes, *_start_notes(record, config)]
    if not record.facts.has_user:
        said.append(
            f"USER {record.config.user} is ignored, as the image's /etc/passwd or /etc/group does not have it: the files of root "
            "are the function's own"
        )
    if record.config.volumes and not config.writable_root:
        volumes = " ".join(record.config.volumes)
        said.append(
            f"VOLUME {volumes} is ignored: only /tmp can be written; with writable_root = true, all of the image"
        )
    return said


def _start_notes(record: ImageRecord, config: FunctionConfig) -> list[str]:
    """POLICY: what would fail at the first request, as far as the image's files tell, and what to do."""
    facts, image, said = record.facts, record.config, []
    has_own_words = config.entrypoint is not None or config.command is not None or needs_client(config, image)
    words = own_words(config, image)
    if facts.files and words and not has_own_words and not facts.command:
        said.append(
            f"the entry point {words[0]} is no program of the image: requests will fail (Runtime.InvalidEntrypoint); build it "
            'in, or name another, entrypoint = ["/app/server"]'
        )
    is_made = image.working_dir.strip("/") in (*DIRECTORIES, *PLACES)
    has_directory = facts.has_working_dir or is_made or config.working_directory is not None
    if facts.files and not has_directory:
        said.append(
            f"WORKDIR {image.working_dir} is no directory of the image: requests will fail (Runtime.InvalidWorkingDir); RUN "
            'mkdir it, or set working_directory = "/"'
        )
    if facts.closed and not has_own_words and config.working_directory is None:
        said.append(
            f"{facts.closed} is closed to the user that functions of this image run as, USER {image.user or 'root'}: requests "
            "will fail; name its owner as USER, or RUN chmod o+x it"
        )
    known = dict(variable.split("=", 1) for variable in image.env if "=" in variable)
    program, places = next((found for name, found in WRITERS.items() if name in known), ("", ""))
    if program and not config.writable_root:
        said.append(f"{program} writes to {places}, which are read-only: set writable_root = true if it fails")
    return said
