"""What a worker records of the imports of services: nothing, as their programs import for themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from sockd.functions.code.function_config import FunctionConfig
from sockd.functions.registry.function_record import FunctionRecord
from sockd.functions.serving.version_program import About, import_view
from sockd.starts.packages.distribution import Closure
from sockd.starts.packages.install_cache import InstallCache

FUNCTION = '{"zygote": "stdlib"}'
SERVICE = '{"kind": "service", "service": {}, "zygote": "stdlib", "command": ["./server"]}'
COMPONENT = '{"kind": "service", "service": {}, "zygote": "stdlib", "runtime": "wasm"}'


@pytest.mark.parametrize(("settings", "zygote"), [(FUNCTION, "stdlib"), (SERVICE, "none"), (COMPONENT, "none")])
def test_no_start_of_a_service_is_recorded(tmp_path: Path, settings: str, zygote: str) -> None:
    """A recording would start its program once more, in a sandbox where its port is not there."""
    config = FunctionConfig.from_json(settings)
    record = FunctionRecord("f", 1, "0" * 64, 0, "f:f", settings, "[]", "", 0, 0)
    about = About(record, config, "1", 0)
    packages = InstallCache.__new__(InstallCache)  # it has no packages to ask about
    assert import_view(about, Closure(()), packages, tmp_path).zygote == zygote
