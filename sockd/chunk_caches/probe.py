"""Measures caches and nodes from this machine: for benchmarks, and for an operator with a doubt.

    python -m sockd.chunk_caches.probe

It reads one JSON object a line, {"do": COMMAND, ...}, and answers one line each; errors are {"error": words}. Chunks are made from
random bytes and a seed, and are encrypted like an image's.

    open       nodes, origin (a directory) or null, l1 (a file) or null, l1_mb, needs_all (read four stripes, without parity)
    fill       count, seed, into: "l2", "origin"
    read       count, seed, via: "l1", "l2", "fetch", decrypt: bool, of: how many chunks -> {"ms": [...], "hits": n}
    starts     parallel, seed, of -> {"seconds": s}: that many threads fetch the same chunks in orders of their own
    counters   of the fetcher and of L2
    placement  nodes, keys -> {"max_to_mean", "keys_max_to_mean", "moved"}
    scans      capacity -> {"lru", "lru2"}: hit rates of hot chunks
    fleet      l1, l2 -> {"lru": {...}, "lru2": {...}}: hit rates of the tiers
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sockd.chunk_caches.fetcher import Fetcher, open_l1
from sockd.chunk_caches.l2_client import L2Client, _Slot
from sockd.chunk_caches.placement import PARTITIONS, Placement
from sockd.chunk_caches.simulation import Fleet, Lru2Cache, LruCache, fleet_hit_rates, hot_hit_rate, scans_between_hot_reads
from sockd.chunk_caches.stripes import DATA_STRIPES, STRIPES
from sockd.chunks.chunk import CHUNK_BYTES, Chunk, decrypt, encrypt
from sockd.chunks.directory_store import DirectoryStore

ROOT = "probe"
DEADLINE_S = 5.0
"""Of L2 reads: a busy machine must not turn hits into misses."""
"""."""
