"""What the state reports of two starts of one program are not compared in, each with its reason."""

from __future__ import annotations

from fnmatch import fnmatchcase

NAME = "the function whose starts are its own has another name"
ADDRESS = "holds addresses or ids of objects or threads"
CLOCK = "holds the time of the import"
RANDOM = "is drawn at random during the import (a documented limit: equal in all sandboxes of one Zygote)"

FORK = "is emptied in each child of a fork by threading, which holds the main thread's lock elsewhere, too"

EXCLUDED = {
    "environment AWS_LAMBDA_FUNCTION_NAME": NAME,
    "environment AWS_LAMBDA_LOG_GROUP_NAME": NAME,
    "constants __patched_module_threading._active": ADDRESS,
    "constants eventlet.green.threading._active": ADDRESS,
    "constants __original_module_threading._shutdown_locks": FORK,
    "constants absl.flags._helpers.disclaim_module_ids": ADDRESS,
    "constants freezegun.api._GLOBAL_MODULES_CACHE": ADDRESS,
    "constants freezegun.api._real_time_object_ids": ADDRESS,
    "constants pydantic.v1.env_settings.env_file_sentinel": ADDRESS,
    "constants sqlalchemy.orm.attributes._NO_STATE_SYMBOLS": ADDRESS,
    "constants scipy.sparse._data.name": ADDRESS,
    "constants typing_inspection.typing_objects.DEPRECATED_ALIASES_IDS": ADDRESS,
    "constants beartype.*.HINT_*": ADDRESS,
    "constants numba.*.c_helpers": ADDRESS,
    "constants numpy.f2py.rules.generationtime": CLOCK,
    "constants numpy.f2py.rules.module_rules": CLOCK,
    "constants fastapi.telemetry.*_TELEMETRY_KEY": RANDOM,
    "constants joblib._multiprocessing_helpers.name": RANDOM,
    "constants openai.lib.bedrock._LEGACY_SIGNATURE_KEY": RANDOM,
    "constants opentelemetry.*_KEY": RANDOM,
    "constants opentelemetry.sdk.resources._service_instance_id": RANDOM,
}
"""By part and name, as a pattern. Loggers' caches, the state of random generators and addresses are in no report at all."""


def is_excluded(part: str, name: str) -> bool:
    """Whether a name of a part is not compared."""
    return any(fnmatchcase(f"{part} {name}", pattern) for pattern in EXCLUDED)
