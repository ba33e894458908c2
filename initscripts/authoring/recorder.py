"""The recorder: from what one start read, and its event, to the source of an initscript that asks for the same.

Pure; the reads come from `POST /functions/{name}/record`, in the order in which the function's storage library numbered
them. What is not in the source: what the function read by other means; and the content of replies, which was not recorded:
a key that came out of another object is a constant here, and the comment next to it says so. The developer reads it,
changes what was guessed wrongly, and builds it.

    field_texts         which fields a text came from       script_plan         reads → steps: objects, loops, directories
    script_statements   steps → what is done, in order      script_languages    statements → C or Rust
"""

from __future__ import annotations

from collections.abc import Sequence

from sockd_initscripts.authoring.field_texts import Fields
from sockd_initscripts.authoring.script_languages import C, Language, Rust
from sockd_initscripts.authoring.script_plan import Rpc, plan
from sockd_initscripts.authoring.script_statements import statements

LANGUAGES: dict[str, type[Language]] = {"c": C, "rust": Rust}
SUFFIXES = {"c": ".c", "rust": ".rs"}


def write(reads: Sequence[Rpc], event: object, *, name: str, language: str = "c") -> str:
    """The source of an initscript for the function `name`.

    Args:
        reads: descriptors such as ["s3.GetObject", bucket, key], in the order of the function's reads.
        event: the one that was recorded, as JSON has it.
        language: a key of LANGUAGES."""
    shown = "".join(character if character.isalnum() or character in "-_." else "_" for character in name)
    opening = (
        f"Initscript of {shown}, recorded from one start.",
        "",
        "Each remark is a read of the function, under its number, and the line below asks for it with the fields that",
        "its words seem to come from. Check that, and what is constant; then: sockd initscript build THIS-FILE",
    )
    fields = Fields(event)
    return LANGUAGES[language]().write(opening, statements(plan(reads, event), fields))
