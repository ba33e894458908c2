"""Certificates that tests make with the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificate(file: Path) -> Path:
    """A certificate of localhost and 127.0.0.1 that vouches for itself, with its key, valid for a day; returns the file."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = subprocess.run([*command.split(), *names, "-keyout", "-", "-out", "-"], check=True, capture_output=True)
    file.write_bytes(made.stdout)
    return file
