"""Stand-ins for SeBS's input data: files of the same size and kind, made here, the same on every machine.

For machines without SeBS's data (it is a repository of its own, and most of it may not be passed on). Each function writes what
one bench reads into a directory, laid out as SeBS's is, so that the bench's own `input.py` finds it. What a function computes
from a stand-in costs what it would cost, and means nothing.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

from benchmarks.sebs_runner.errors import NotPossible
from benchmarks.sebs_runner.made_inputs.jpeg import jpeg
from benchmarks.sebs_runner.made_inputs.onnx_file import write_model
from benchmarks.sebs_runner.made_inputs.resnet import resnet
from benchmarks.sebs_runner.made_inputs.torch_file import write_state_dict
from benchmarks.sebs_runner.made_inputs.wasm_file import write_module
from benchmarks.sebs_runner.suite import ffmpeg

VERSION = 1
"""The version of everything below: another version is made anew beside what is cached."""

PHOTOGRAPH = "6_astronomy-desktop-wallpaper-evening-1624438.jpg"
"""The one that 210's event names."""
WEIGHTS = "resnet50-19c8e357.pth"
BASES, LINE = 4_146_839, 80
FFMPEG_DEADLINE_S = 120
WORDS = 600
DOCUMENTS, DOCUMENT_BYTES = 11, 850_000
TEXTS, TEXT_BYTES = 28, 25_000


def thumbnailer(directory: Path, cache: Path) -> None:
    """A photograph of 2.19 MB and 10 megapixels."""
    (directory / PHOTOGRAPH).write_bytes(jpeg(3840, 2560, 2_191_330, seed=210))


def video(directory: Path, cache: Path) -> None:
    """12 s of 720p with noise in it, H.264, about 6.4 MB. Raises: FetchFailed, NotPossible."""
    source = ["-f", "lavfi", "-i", "testsrc2=size=1280x720:rate=25:duration=12"]
    noise = ["-vf", "noise=alls=6:allf=t:all_seed=220,format=yuv420p"]
    # One thread and no stamps: the same bytes each time.
    encode = ["-c:v", "libx264", "-preset", "veryfast", "-b:v", "4300k", "-threads", "1"]
    exact = ["-map_metadata", "-1", "-fflags", "+bitexact", "-flags:v", "+bitexact"]
    command = [str(ffmpeg(cache)), "-nostdin", "-loglevel", "error", "-y", *source, *noise, *encode, *exact]
    try:
        done = subprocess.run(
            [*command, str(directory / "city.mp4")], capture_output=True, timeout=FFMPEG_DEADLINE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotPossible(f"no video could be made: {error}") from None
    if done.returncode:
        raise NotPossible(f"no video could be made: {done.stderr.decode(errors='replace')[-500:]}")


def compression(directory: Path, cache: Path) -> None:
    """39 files, 10 MB: documents that do not compress, and texts that do; as a LaTeX class with its manuals is."""
    random = Random(311)
    words = ["".join(random.choices("etaoinshrdlu", k=random.randint(2, 11))) for _ in range(WORDS)]
    top = directory / "acmart-master"
    (top / "samples").mkdir(parents=True)
    for number in range(DOCUMENTS):
        (top / f"document-{number:02}.pdf").write_bytes(b"%PDF-1.5\n" + random.randbytes(DOCUMENT_BYTES))
    for number in range(TEXTS):
        text = ""
        while len(text) < TEXT_BYTES:
            text += " ".join(random.choices(words, k=12)) + "\n"
        (top / "samples" / f"sample-{number:02}.tex").write_text(text)


def torch_model(directory: Path, cache: Path) -> None:
    """ResNet-50 with random weights (102.5 MB), and one picture of 61 KB with its class."""
    (directory / "model").mkdir()
    write_state_dict(resnet(), directory / "model" / WEIGHTS)
    pictures = directory / "fake-resnet"
    pictures.mkdir()
    (pictures / "picture.jpg").write_bytes(jpeg(512, 384, 61_000, seed=411))
    (pictures / "val_map.txt").write_text("picture.jpg 0\n")


def dna(directory: Path, cache: Path) -> None:
    """As many random bases as the genome of Bacillus subtilis has, as FASTA of 4.2 MB."""
    letters = Random(504).randbytes(BASES).translate(b"ACGT" * 64)
    lines = b"\n".join(letters[start : start + LINE] for start in range(0, BASES, LINE))
    (directory / "bacillus_subtilis.fasta").write_bytes(b">random bases\n" + lines + b"\n")


def onnx_models(directory: Path, cache: Path) -> None:
    """For `imgrec`: 13.3 MB of weights and 4.9 MB of picture, as in the initscript paper; and ResNet-50's 102 MB."""
    write_model(resnet(21), directory / "small.onnx", size_bytes=13_300_000)
    write_model(resnet(), directory / "resnet50.onnx")
    _pictures(directory)


def wasm_models(directory: Path, cache: Path) -> None:
    """For `imgrec-wasm`: the networks of `imgrec` as modules, the smaller one filled up to the initscript paper's 45.6 MB."""
    write_module(resnet(21), directory / "small.wasm", size_bytes=45_600_000)
    write_module(resnet(), directory / "resnet50.wasm")
    _pictures(directory)


def _pictures(directory: Path) -> None:
    (directory / "small.jpg").write_bytes(jpeg(5120, 3840, 4_900_000, seed=182))
    (directory / "picture.jpg").write_bytes(jpeg(512, 384, 61_000, seed=411))


MAKERS: dict[str, Callable[[Path, Path], None]] = {
    "210.thumbnailer": thumbnailer,
    "220.video-processing": video,
    "311.compression": compression,
    "411.image-recognition": torch_model,
    "504.dna-visualisation": dna,
    "imgrec": onnx_models,
    "imgrec-wasm": wasm_models,
}
"""By bench; the others read no files. Each is called with an empty directory and the cache."""
