"""botocore's data and events, read ahead: clients are what they are without it, however often and whatever was changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import botocore
import pytest

REPOSITORY = Path(__file__).parents[3]
SITE = Path(botocore.__file__).parents[1]
"""Where botocore is installed here."""
SERVICES = ("s3", "dynamodb", "sqs")
START = """
import hashlib, io, json, logging, os, sys
sys.path[:0] = [{site!r}, {repository!r}]
from sockd_zygote.handlers import import_hooks
import_hooks.watch_imports()
import boto3, botocore.hooks, botocore.loaders
from sockd_zygote.handlers import botocore_data as ahead, botocore_events as events
ahead.ROOT = {site!r}
ahead.attend(botocore.loaders)
events.attend(botocore.hooks)
if {prepared!r}:
    ahead.prepare()
    events.prepare()
    assert len(events._names) > 100, events._names
    assert len(ahead._parsed) == 6 and len(ahead._services["service-2"]) > 300, ahead._parsed.keys()

def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=False).encode()).hexdigest()

def described(session, name):
    client = session.client(name, region_name="eu-west-1", aws_access_key_id="k", aws_secret_access_key="s")
    model = client.meta.service_model._service_description
    return [digest(model), type(model).__name__, client.meta.endpoint_url, sorted(dir(client))[:5], len(dir(client))]
found = []
before = set(sys.modules)
"""
DESCRIBE = """
for _ in range(2):
    session = boto3.session.Session()
    found += [described(session, name) for name in {services!r}]
    found += [digest(session.get_available_services()), session.get_available_regions("s3")]
found.append(sorted(sys.modules.keys() - before))
"""
CHANGED = """
first = boto3.session.Session()
first.client("s3", region_name="eu-west-1").meta.service_model._service_description["metadata"].clear()
first._session.get_component("data_loader").list_available_services("service-2").append("mine")
found += [described(boto3.session.Session(), "s3"), digest(boto3.session.Session().get_available_services())]
"""
OWN_MODELS = """
os.makedirs("models/mine/2020-01-01")
with open("models/mine/2020-01-01/service-2.json", "w") as file:
    file.write('{{"metadata": {{"serviceId": "mine"}}, "operations": {{}}, "shapes": {{}}}}')
os.environ["AWS_DATA_PATH"] = "models"
session = boto3.session.Session()
found += ["mine" in session.get_available_services(), digest(session.get_available_services()), described(session, "s3")]
"""
LOGGED = """
log = io.StringIO()
logging.getLogger("botocore.loaders").addHandler(logging.StreamHandler(log))
logging.getLogger("botocore.loaders").setLevel(logging.DEBUG)
found += [described(boto3.session.Session(), "s3"), log.getvalue()]
"""
OWN_LOADER = """
class Files(botocore.loaders.JSONFileLoader):
    def _load_file(self, path, method):
        content = super()._load_file(path, method)
        return content and type(content)({{"metadata": {{}}, "path": path, **content}}) if "service-2" in path else content
loader = botocore.loaders.Loader(file_loader=Files())
found += [loader.load_service_model("s3", "service-2")["path"], digest(loader.list_available_services("service-2"))]
botocore.loaders.JSONFileLoader._load_file = lambda self, path, method: {{"path": path}}
found += [botocore.loaders.Loader().load_data("endpoints")]
"""
UNKNOWN = """
try:
    boto3.session.Session().client("nothing", region_name="eu-west-1")
except Exception as error:
    found += [type(error).__name__, digest(str(error))]
"""


def found(code: str, directory: Path, *, prepared: bool) -> Any:
    """What a program finds in a process of its own."""
    start = START.format(site=str(SITE), repository=str(REPOSITORY), prepared=prepared)
    program = f"{start}{code.format(services=SERVICES)}\nprint(json.dumps(found))"
    directory.mkdir()
    run = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, cwd=directory)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


HANDLERS = """
import functools, inspect
from botocore.handlers import BUILTIN_HANDLERS
class Callable:
    def __call__(self, **rest): pass
    def method(self, a, *args, b=1, **rest): pass
    def strict(self, a): pass
def signed(a): pass
signed.__signature__ = inspect.Signature([inspect.Parameter("all", inspect.Parameter.VAR_KEYWORD)])
handlers = [entry[1] for entry in BUILTIN_HANDLERS]
handlers += [Callable(), Callable().method, Callable().strict, signed, functools.partial(signed, a=1), lambda **k: k, dict, len]
for handler in handlers:
    try:
        found.append(botocore.hooks.accepts_kwargs(handler))
    except Exception as error:
        found.append(repr(error))
log = io.StringIO()
names = [entry[0] for entry in BUILTIN_HANDLERS]
session = boto3.session.Session()._session
for aliaser in (session.get_component("event_emitter"), botocore.hooks.EventAliaser(None, {{"s3": "mine"}})):
    found += [aliaser._alias_event_name(name) for name in names]
    found.append(sorted(aliaser._alias_name_cache.items()))
botocore.hooks.logger.addHandler(logging.StreamHandler(log))
botocore.hooks.logger.setLevel(logging.DEBUG)
aliaser = botocore.hooks.EventAliaser(None)
found += [[aliaser._alias_event_name(name) for name in names], log.getvalue()]
"""


@pytest.mark.parametrize("code", [DESCRIBE, CHANGED, OWN_MODELS, LOGGED, OWN_LOADER, UNKNOWN, HANDLERS])
def test_what_was_read_ahead_changes_no_answer(code: str, tmp_path: Path) -> None:
    assert found(code, tmp_path / "ahead", prepared=True) == found(code, tmp_path / "own", prepared=False)


COUNTED = """
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event in ("open", "os.listdir") else None)
for _ in range(2):
    described(boto3.session.Session(), "s3")
    found.append(len([path for path in opened if "botocore/data" in path]))
    opened.clear()
"""


def test_a_client_that_was_read_ahead_for_reads_hardly_a_file(tmp_path: Path) -> None:
    own, ahead = (found(COUNTED, tmp_path / str(is_), prepared=is_) for is_ in (False, True))
    assert min(own) > 800 and max(ahead) < 20, (own, ahead)


def test_a_botocore_in_the_code_of_a_function_is_left_alone(tmp_path: Path) -> None:
    code = "found += [ahead.ROOT, ahead._originals is None, events._originals is None]"
    start = START.replace("ahead.ROOT = {site!r}\n", "")
    program = start.format(site=str(SITE), repository=str(REPOSITORY), prepared=False) + code
    program += (
        "\nfound.append(botocore.loaders.JSONFileLoader.load_file.__code__.co_filename)\nprint(json.dumps(found))"
    )
    run = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert json.loads(run.stdout) == ["/packages/", True, True, str(SITE / "botocore/loaders.py")], run.stderr
