"""The content of a deploy: the code or the image that it brings, with what it needs to run."""

from __future__ import annotations

from typing import NamedTuple

from sockd.functions.code.function_config import FunctionConfig
from sockd.images.store.image_record import ImageRecord
from sockd.isolation.roots.interpreter import Interpreter
from sockd.starts.packages.distribution import Closure

CHECK_HANDLER = "check_handler"
"""A parameter of a deploy: true refuses a handler that is missing or does not compile; AWS's API accepts any, as AWS
does."""
KEEP_PACKAGES = "keep_packages"
"""A parameter of a deploy: true keeps the resolved versions if the requirements did not change."""


class Content(NamedTuple):
    """Code or an image, resolved."""

    config: FunctionConfig
    """The settings of the deploy, completed by what the content says."""
    handler: str
    """"module:attr"."""
    closure: Closure = Closure()
    """Its packages."""
    python: Interpreter | None = None
    """The interpreter that runs the code; None: the content is an image."""
    image: ImageRecord | None = None
    """Its image, which the worker has."""
