"""What an image may cost. Each limit is there because a hostile image would otherwise fill a disk, a memory or a day."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """All of one image."""

    max_bytes: int = 10 << 30
    """The most bytes of all layers, uncompressed. AWS: 10 GB."""
    max_layers: int = 127
    """As docker's overlay2 driver."""
    max_files: int = 500_000
    """Members of all layers together: files, directories (implied ones too), links, whiteouts."""
    max_metadata_bytes: int = 256 << 20
    """The most bytes of all paths, targets of links and extended attributes; they are held in memory."""
    max_ratio: int = 200
    """The most uncompressed bytes for one compressed byte of a layer, beyond the first RATIO_FREE_BYTES."""
    max_path_bytes: int = 4095
    """PATH_MAX without its zero byte."""
    max_depth: int = 255
    """Directories in a path."""
    max_header_bytes: int = 1 << 20
    """The most bytes of one member's extended header: long names, extended attributes."""
    max_sparse_parts: int = 65_536
    """The most parts of one sparse file."""


NAME_BYTES = 255
"""NAME_MAX."""
RATIO_FREE_BYTES = 64 << 20
MOST_CONFIG_TEXTS = 4096
"""Variables, words of a command, labels, volumes and ports of a configuration, each."""
MOST_VARIABLES_BYTES = 256 << 10
"""The most bytes of a configuration's variables and words together. execve(2) takes 128 KB for one, and 2 MB for all; each
start sends them."""
MOST_CONFIG_TEXT_BYTES = 1 << 20
"""The most bytes of all texts of a configuration that the worker keeps, labels included."""
