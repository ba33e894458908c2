"""Deploys of functions in container images: the image, and what serves its function.

Owns nothing: the image store has the images.
"""

from __future__ import annotations

from sockd.base.blocking import in_thread
from sockd.base.errors import BadFunctionConfig, ImagesUnavailable
from sockd.base.notes import Note, Progress
from sockd.functions.code.code_store import CodeVersion
from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.deploys.content import Content
from sockd.functions.in_images import image_programs
from sockd.functions.in_images.image_pythons import ImagePythons
from sockd.images.store.image_record import ImageRecord
from sockd.images.store.image_store import ImageStore
from sockd.isolation.roots import interpreter_settings
from sockd.isolation.roots.image_mounting import ImageMounting
from sockd.isolation.roots.image_python import ImagePython
from sockd.isolation.roots.interpreter_settings import Started


class ImageContents:
    """The images of the deploys of one worker."""

    def __init__(self, images: ImageStore | None, pythons: ImagePythons | None) -> None:
        """Args: images: None: no function has one; pythons: None: those that do are programs."""
        self._images = images
        self._pythons = pythons

    async def resolve(self, code: CodeVersion, config: FunctionConfig, text: str, progress: Progress) -> Content:
        """Get an image. Args: text: as the settings name it.

        Raises: BadImage and its kinds, UnknownImage, ImagesUnavailable, BadFunctionConfig."""
        if self._images is None:
            raise ImagesUnavailable("this worker runs no container images")
        if code.files > (code.settings() is not None):
            progress(Note("the files next to sockd.toml are not used: the function's code is the image's"))
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
        if config.service is None:
            config = with_port(config, record, progress)
        image_programs.command(config, record.config)
        return Content(config, image_programs.handler(config, record.config), image=record)

    async def prepare(self, content: Content, progress: Progress) -> Content:
        """Find out what serves the function of an image: Zygotes of its Python, or its program.

        Raises: BadFunctionConfig, ImagePythonFailed."""
        record, config = content.image, content.config
        if record is not None and self._pythons is not None:
            python = await self._pythons.find(record, config, progress)
            if not python.reason:
                interpreter_settings.check(config.environment, Started.of_image(python))
            progress(f"runs as a program: {python.reason}" if python.reason else served_words(python))
            has_port = config.app_port is not None or config.service is not None
            if python.reason and not has_port and (ports := record.config.exposed_ports):
                port = ports[0].partition("/")[0]
                progress(Note(f"the image exposes port {port}: a web server there needs app_port = {port}"))
            check_client(python, config, record, progress)
        return content


def with_port(config: FunctionConfig, record: ImageRecord, progress: Progress) -> FunctionConfig:
    """Return the settings of a function with the port of its web server, if the image or they name one.

    Raises: BadFunctionConfig."""
    config = image_programs.with_adapter(config, record)
    named = config.app_port
    config = image_programs.with_exposed_port(config, record.config)
    if config.app_port != named:
        found = f"app_port is {config.app_port}, which the image exposes"
        progress(Note(f'{found}; for a program that asks the Runtime API: runtime = "provided"'))
    if config.app_port is not None:
        progress(image_programs.port_words(config))
    elif config.readiness_path != "/":
        progress(Note("readiness_path is not used: without app_port the worker does not ask for it"))
    return config


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
