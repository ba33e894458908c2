"""`sockd sebs`: the runner of ServerlessBench, which is in the source tree (`benchmarks/sebs_runner`)."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from sockd.client.cli.source.source_tree import source_tree

sys.path.insert(0, str(source_tree()))
sebs: click.Command = import_module("benchmarks.sebs_runner.command").sebs
