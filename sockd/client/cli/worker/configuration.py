"""A worker's configuration file, as commands are given it: `--config`, and the settings in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sockd.client.console.output import USAGE, Failure

if TYPE_CHECKING:
    from sockd.base.config import Config

config_option = click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A TOML file."
)


def configured(config: Path | None, **overrides: str | None) -> Config:
    """The settings. Args: overrides: what other options say; None: nothing. Raises: Failure: they are wrong."""
    from sockd.base.config import Config as Settings
    from sockd.base.errors import BadConfig

    try:
        return Settings.load(config, **{key: value for key, value in overrides.items() if value is not None})
    except BadConfig as error:
        raise Failure("the configuration is wrong", why=error.message, exit_code=USAGE) from None
