"""What is run in an image, as settings and the image say."""

from __future__ import annotations

from typing import Any

import pytest

from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.in_images import image_programs
from sockd.images.registry.image import ImageConfig
from sockd.images.store.image_facts import ImageFacts
from sockd.images.store.image_record import ImageRecord


def command(entrypoint: tuple[str, ...], of_image: tuple[str, ...] = (), **settings: dict[str, str]) -> list[str]:
    config = FunctionConfig(image="i", memory_mb=512, **settings)  # type: ignore[arg-type]
    image = ImageConfig(entrypoint=entrypoint, cmd=("example.Handler::handle",), env=of_image)
    words: list[str] = image_programs.init_part(config, image)["command"]
    return words


@pytest.mark.parametrize("java", ["java", "/opt/jre/bin/java"])
def test_java_learns_the_memory_of_its_function(java: str) -> None:
    assert command((java, "-cp", "/function")) == [
        java,
        "-XX:MaxRAM=512m",
        "-cp",
        "/function",
        "example.Handler::handle",
    ]


@pytest.mark.parametrize("option", ["-Xmx400m", "-XX:MaxRAM=1g", "-XX:MaxRAMPercentage=70", "-XX:MaxHeapSize=300m"])
def test_java_with_a_heap_size_of_its_own_keeps_it(option: str) -> None:
    assert command(("java", option)) == ["java", option, "example.Handler::handle"]
    assert command(("java",), (f"JAVA_TOOL_OPTIONS=-Xlog {option}",)) == ["java", "example.Handler::handle"]
    of_function = {"JDK_JAVA_OPTIONS": option}
    assert command(("java",), env=of_function) == ["java", "example.Handler::handle"]


def node_options(
    words: tuple[str, ...], of_image: tuple[str, ...] = (), memory_mb: int = 512, **own: str
) -> str | None:
    config = FunctionConfig(image="i", memory_mb=memory_mb)
    image = ImageConfig(entrypoint=words, env=of_image)
    return image_programs.variables(config, image, own).get("NODE_OPTIONS")


@pytest.mark.parametrize(
    ("words", "of_image"),
    [(("/usr/bin/node", "app.js"), ()), (("npm", "start"), ()), (("/start",), ("NODE_VERSION=22.1",))],
)
def test_node_learns_the_memory_of_its_function(words: tuple[str, ...], of_image: tuple[str, ...]) -> None:
    sizes = {memory_mb: node_options(words, of_image, memory_mb) for memory_mb in (64, 128, 512, 1024)}
    assert sizes == {mb: f"--max-old-space-size={heap}" for mb, heap in {64: 16, 128: 64, 512: 384, 1024: 768}.items()}
    kept = "--enable-source-maps --max-old-space-size=384"
    assert node_options(words, (*of_image, "NODE_OPTIONS=--enable-source-maps")) == kept


def test_node_with_a_heap_size_of_its_own_keeps_it() -> None:
    for option in ("--max-old-space-size=99", "--max_old_space_size=99"):
        assert node_options(("node", option, "app.js")) is None
        assert node_options(("node",), (f"NODE_OPTIONS={option}",)) == option
        assert node_options(("node",), NODE_OPTIONS=option) == option
    assert node_options(("/server", "app.js")) is None, "no program of Node"


def test_other_programs_run_as_they_are() -> None:
    assert command(("/javac", "java")) == ["/javac", "java", "example.Handler::handle"]


@pytest.mark.parametrize("handler", ["app.handler", "app:handler"])
def test_a_handler_without_zygotes_is_run_by_awss_client(handler: str) -> None:
    config = FunctionConfig(image="i", runtime="python", handler=handler)
    wanted = ["python3", "-m", "awslambdaric", "app.handler"]
    assert image_programs.command(config, ImageConfig(cmd=("app.handler",))) == wanted
    assert image_programs.command(config, ImageConfig(entrypoint=("/bin/sh",))) == wanted


@pytest.mark.parametrize("entrypoint", [("/lambda-entrypoint.sh",), ("/opt/bin/python", "-m", "awslambdaric")])
def test_an_image_that_starts_awss_client_keeps_its_words(entrypoint: tuple[str, ...]) -> None:
    config = FunctionConfig(image="i", runtime="python", handler="app.handler")
    image = ImageConfig(entrypoint=entrypoint, cmd=("app.handler",))
    assert image_programs.command(config, image) == [*entrypoint, "app.handler"]


def noted(facts: ImageFacts, image: ImageConfig, **settings: Any) -> list[str]:
    record = ImageRecord(
        digest="sha256:1", reference="r", config=image, size_bytes=1, layers=1, imported_at=0.0, facts=facts
    )
    return image_programs.notes(record, FunctionConfig(image="i", **settings))


SERVER = ImageConfig(entrypoint=("/server",), working_dir="/app")


def test_what_would_fail_at_the_first_request_is_said_with_a_remedy() -> None:
    assert noted(ImageFacts(files=9, command="/server"), SERVER) == []
    (missing,) = noted(ImageFacts(files=9), SERVER)
    assert "the entry point /server is no program of the image" in missing and "entrypoint = [" in missing
    (directory,) = noted(ImageFacts(files=9, command="/server", has_working_dir=False), SERVER)
    assert "WORKDIR /app is no directory" in directory and 'working_directory = "/"' in directory
    (closed,) = noted(ImageFacts(files=9, command="/private/server", closed="/private"), SERVER)
    assert "/private is closed to the user" in closed and "USER root" in closed and "chmod o+x" in closed


def test_a_working_directory_that_every_sandbox_has_is_not_judged() -> None:
    facts = ImageFacts(files=9, command="/server", has_working_dir=False)
    assert noted(facts, ImageConfig(entrypoint=("/server",), working_dir="/var/task/")) == []


def test_settings_in_the_place_of_what_would_fail_are_not_judged() -> None:
    assert noted(ImageFacts(files=9, closed="/x"), SERVER, entrypoint=["/other"]) == []
    facts = ImageFacts(files=9, command="/server", has_working_dir=False, closed="/app")
    assert noted(facts, SERVER, working_directory="/") == []


def test_a_program_that_writes_next_to_tmp_is_said() -> None:
    nginx = ImageConfig(entrypoint=("/server",), env=("NGINX_VERSION=1.29",))
    facts = ImageFacts(files=9, command="/server")
    (note,) = noted(facts, nginx)
    assert "nginx writes to /var/cache/nginx and /run" in note and "writable_root = true" in note
    assert noted(facts, nginx, writable_root=True) == []


@pytest.mark.parametrize(
    ("ports", "settings", "words", "port"),
    [
        (("8080/tcp",), {}, ("/server",), 8080),
        (("8080",), {}, ("/server",), 8080),
        (("53/udp", "80/tcp"), {}, ("nginx", "-g", "daemon off;"), 80),
        (("8080/tcp",), {"app_port": 3000}, ("/server",), 3000),
        ((), {}, ("/server",), None),
        (("80/tcp", "443/tcp"), {}, ("/server",), None),
        (("8000-8010/tcp",), {}, ("/server",), None),
        (("0/tcp",), {}, ("/server",), None),
        (("8080/tcp",), {"runtime": "provided"}, ("/server",), None),
        (("8080/tcp",), {"handler": "app.handler"}, ("/server",), None),
        (("8080/tcp",), {}, ("/lambda-entrypoint.sh", "app.handler"), None),
        (("8080/tcp",), {}, ("python3", "-m", "awslambdaric", "app.handler"), None),
        (("8080/tcp",), {}, ("npx", "aws-lambda-ric", "app.handler"), None),
        (("8080/tcp",), {}, ("/var/task/bootstrap",), None),
    ],
)
def test_the_port_that_an_image_exposes_is_its_web_servers(
    ports: tuple[str, ...], settings: dict[str, Any], words: tuple[str, ...], port: int | None
) -> None:
    config = FunctionConfig(image="i", **settings)
    assert image_programs.with_exposed_port(config, ImageConfig(cmd=words, exposed_ports=ports)).app_port == port
