"""The layout of logs when `logging` is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]


def test_a_module_of_the_functions_own_that_is_named_logging_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "logging.py").write_text("def info(text): print(text)\n")
    program = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(REPOSITORY)!r}]\n"
        "from sockd_zygote.handlers import import_hooks\n"
        "import_hooks.watch_imports(); import_hooks.lay_out_logs()\n"
        "import logging\n"
        "import_hooks.lay_out_logs(); logging.info('mine')\n"
    )
    run = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("mine\n", "")
