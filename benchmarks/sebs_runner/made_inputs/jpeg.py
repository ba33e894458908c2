"""JPEGs of a wanted size in bytes and pixels, made from random coefficients: stand-ins for photographs; and the size of any JPEG.

Those that are made are baseline, 4:2:0, valid by ITU-T T.81. Each row of blocks is a restart interval, which makes rows
independent: a few are made and repeated, so that megapixels cost milliseconds. Decoding one costs what a photograph of this many
bytes and pixels does. The same arguments give the same bytes, whatever is installed.
"""

from __future__ import annotations

import struct
from random import Random

DISTINCT_ROWS = 4
MCU_PIXELS = 16
BLOCKS = (0, 0, 0, 0, 1, 1)
"""The blocks of one unit of 16 x 16 pixels: four of luminance, then both of chrominance, by their component's predictor."""
MOST_COEFFICIENTS = 48.0
AC_SYMBOLS = bytes(run << 4 | size for run in range(8) for size in range(1, 7)) + b"\x00"
"""(zeros before it, bits) of a coefficient, and the end of a block: all of the symbols in use, each a code of 8 bits."""
DC_SYMBOLS = bytes(range(12))
COMMENT_BYTES = 65533
HEADER_BYTES = 4096
"""More than everything but the rows takes; the rest is filled up."""


def jpeg(width: int, height: int, size_bytes: int, *, seed: int) -> bytes:
    """A picture. Its length is exact, unless `size_bytes` is less than these pixels need.

    Args: width, height: multiples of 16."""
    columns, rows = width // MCU_PIXELS, height // MCU_PIXELS
    random = Random(seed)
    coefficients = _fitting(columns, (size_bytes - HEADER_BYTES) / rows, seed)
    distinct = [_row(random, columns, coefficients) for _ in range(DISTINCT_ROWS)]
    scan = bytearray()
    for row in range(rows):
        scan += random.choice(distinct)
        if row < rows - 1:
            scan += bytes((0xFF, 0xD0 + row % 8))
    start = b"\xff\xd8" + _segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
    rest = _header(width, height, columns) + bytes(scan) + b"\xff\xd9"
    return start + _comments(size_bytes - len(start) - len(rest)) + rest


def jpeg_size(data: bytes) -> tuple[int, int]:
    """Return width and height from the frame header of a JPEG (ITU-T T.81, B.2.2). Raises: ValueError: it is none."""
    position = 2
    while data[:2] == b"\xff\xd8" and position + 9 <= len(data):
        marker, length = struct.unpack_from(">HH", data, position)
        if 0xFFC0 <= marker <= 0xFFC2:
            height, width = struct.unpack_from(">HH", data, position + 5)
            return width, height
        position += 2 + length
    raise ValueError("not a JPEG")


def _header(width: int, height: int, columns: int) -> bytes:
    quantization = b"".join(bytes((index, *[step] * 64)) for index, step in enumerate((6, 10)))
    frame = struct.pack(">BHHB", 8, height, width, 3) + bytes((1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1))
    tables = _huffman(0x00, DC_SYMBOLS, 4) + _huffman(0x10, AC_SYMBOLS, 8)
    return (
        _segment(0xDB, quantization)
        + _segment(0xC0, frame)
        + _segment(0xC4, tables)
        + _segment(0xDD, struct.pack(">H", columns))
        + _segment(0xDA, bytes((3, 1, 0, 2, 0, 3, 0, 0, 63, 0)))
    )


def _huffman(table: int, symbols: bytes, bits: int) -> bytes:
    """A table in which every symbol has a code of the same length."""
    counts = bytearray(16)
    counts[bits - 1] = len(symbols)
    return bytes((table,)) + bytes(counts) + symbols


def _segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def _comments(count: int) -> bytes:
    """Segments that fill up this many bytes; none when fewer than four are missing."""
    filling = b""
    while count >= 4:
        data = min(count - 4, COMMENT_BYTES)
        if 0 < count - 4 - data < 4:
            data -= 4
        filling += _segment(0xFE, b" " * data)
        count -= data + 4
    return filling


def _fitting(columns: int, row_bytes: float, seed: int) -> float:
    """How many coefficients a block may have on average, so that a row is about so long, and rather shorter."""
    least, most = 0.0, MOST_COEFFICIENTS
    for _ in range(8):
        middle = (least + most) / 2
        if len(_row(Random(seed), columns, middle)) * 1.01 < row_bytes:
            least = middle
        else:
            most = middle
    return least


def _row(random: Random, columns: int, coefficients: float) -> bytes:
    """One restart interval, with 0xFF bytes stuffed."""
    bits: list[str] = []
    levels = [0, 0, 0]
    for _ in range(columns):
        for number, chroma in enumerate(BLOCKS):
            component = number - 3 if chroma else 0
            level = max(-60, min(60, levels[component] + random.randint(-12, 12)))
            difference, levels[component] = level - levels[component], level
            bits.append(f"{abs(difference).bit_length():04b}{_value(difference)}")
            _put_block(bits, random, int(coefficients * (0.5 if chroma else 1) + random.random()))
    text = "".join(bits)
    text += "1" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\x00")


def _put_block(bits: list[str], random: Random, coefficients: int) -> None:
    """The coefficients but the first, fading with their frequency."""
    position = 0
    for number in range(coefficients):
        run = 0 if random.random() < 0.8 else random.randint(1, 2)
        position += run + 1
        if position > 62:
            break
        most = 8 >> min(number // 6, 3)
        value = random.randint(1, most) * random.choice((-1, 1))
        symbol = run << 4 | abs(value).bit_length()
        bits.append(f"{AC_SYMBOLS.index(symbol):08b}{_value(value)}")
    bits.append(f"{AC_SYMBOLS.index(0):08b}")


def _value(value: int) -> str:
    """The bits behind a symbol: the value, or one less than it where it is negative (T.81, F.1.2.1)."""
    size = abs(value).bit_length()
    return f"{value if value > 0 else value + (1 << size) - 1:0{size}b}" if size else ""
