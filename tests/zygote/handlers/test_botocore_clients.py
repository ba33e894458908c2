"""Rules of endpoints and names of methods that were made ahead: clients are what they are without them, whatever was changed."""

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
START = """
import json, sys
sys.path[:0] = [{site!r}, {repository!r}]
from sockd_zygote.handlers import botocore_data as data, import_hooks
data.ROOT = {site!r}
import_hooks.watch_imports()
import boto3, re
import botocore.endpoint_provider as provider, botocore.handlers, botocore.hooks, botocore.session
from sockd_zygote.handlers import botocore_clients as ahead, botocore_events as events
if {prepared!r}:
    for each in (data, events, ahead):
        each.prepare()
    assert ahead._made and len(ahead._known) > 100 and events._alias_class

def session():
    return botocore.session.Session()

def client(of, **more):
    keys = dict(region_name="eu-west-1", aws_access_key_id="k", aws_secret_access_key="s")
    return of.create_client("s3", **keys, **more)

def shape(rule):
    values = sorted((name, value) for name, value in vars(rule).items() if name != "rules")
    return [type(rule).__qualname__, repr(values), [shape(each) for each in getattr(rule, "rules", ())]]

def endpoints(of):
    resolve = of._ruleset_resolver._provider.resolve_endpoint
    found = []
    chosen = {{"UseFIPS": True}}, {{"Accelerate": True}}, {{"Bucket": "a.b"}}, {{"Region": "cn-north-1"}}, {{"Endpoint": "http://x"}}
    for more in ({{}}, *chosen):
        asked = {{"Bucket": "data", "Region": "eu-west-1", "UseFIPS": False, "UseDualStack": False, **more}}
        try:
            found.append(list(resolve(**asked)))
        except Exception as error:
            found.append(str(error))
    return found

def reported(of):
    return [endpoints(of), [shape(rule) for rule in of._ruleset_resolver._provider.ruleset.rules]]

def spoil(rules):
    for rule in rules["rules"]:
        rule.get("rules", [])[:] = [{{"type": "error", "conditions": [], "error": "spoilt"}}]

def rules_of(of):
    return of.get_component("data_loader").load_service_model("s3", "endpoint-rule-set-1")
found = []
"""
CASES = {
    "clients of two sessions": """
found += [reported(client(session())), reported(client(session()))]
""",
    "two clients of a session": "one = session(); found += [reported(client(one)), reported(client(one))]",
    "the cache of names": """
before = len(botocore._xform_cache)
of = client(session())
found += [list(botocore._xform_cache.items())[before:], sorted(of._PY_TO_OP_NAME.items())]
""",
    "names that were changed": """
botocore._xform_cache["GetObject", "_"] = "mine"
found += [botocore.xform_name("GetObject"), botocore.xform_name("GetObject", "-"), botocore.xform_name("PutObject", "_", {})]
found += [hasattr(client(session()), "mine")]
""",
    "rules that were changed before": "one = session(); spoil(rules_of(one)); found += [reported(client(one))]",
    "rules that were loaded before": """
one = session()
one.get_component("data_loader").load_data("s3/2006-03-01/endpoint-rule-set-1")
found += [reported(client(one))]
""",
    "rules that an event changes": """
one = session()
one.register("creating-client-class.s3", lambda **_: spoil(rules_of(one)))
found += [reported(client(one))]
""",
    "rules that were changed after a client that failed": """
one = session()
def fail(**_):
    raise KeyError("on purpose")
one.register("creating-client-class.s3", fail, unique_id="fail")
try:
    client(one)
except KeyError:
    found.append("failed")
one.unregister("creating-client-class.s3", unique_id="fail")
spoil(rules_of(one))
found += [reported(client(one))]
""",
    "rules that were changed after the client": """
one = session()
of = client(one)
tree = next(rule for rule in rules_of(one)["rules"] if "rules" in rule)
tree["rules"][0]["conditions"][:] = [{"fn": "isSet", "argv": [{"ref": "NoSuch"}]}]
found += [reported(of)]
""",
    "a class of rules of one's own": """
class Mine(provider.TreeRule):
    pass
provider.RuleCreator.tree = Mine
found += [reported(client(session()))]
""",
    "a creator of one's own": """
class Mine(provider.RuleCreator):
    pass
rules = rules_of(session())
found += [shape(Mine.create(**rule)) for rule in rules["rules"]]
""",
    "handlers that are objects": """
kind = botocore.handlers.ClientMethodAlias
one, own = kind("a"), kind("b")
own.__signature__ = __import__("inspect").Signature()
found += [botocore.hooks.accepts_kwargs(one), botocore.hooks.accepts_kwargs(own)]
kind.__call__ = lambda self, client: None
found += [botocore.hooks.accepts_kwargs(one)]
""",
}


def found(code: str, *, prepared: bool) -> Any:
    """What a program finds in a process of its own."""
    start = START.format(site=str(SITE), repository=str(REPOSITORY), prepared=prepared)
    command = [sys.executable, "-I", "-S", "-c", f"{start}{code}\nprint(json.dumps(found))"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize("case", CASES)
def test_what_was_made_ahead_is_what_the_client_would_have_made(case: str) -> None:
    ahead, own = (found(CASES[case], prepared=prepared) for prepared in (True, False))
    assert ahead == own and own


USED = """
made = [rule for _, rule in ahead._made.values()]
rules = client(session())._ruleset_resolver._provider.ruleset.rules
again = client(session())._ruleset_resolver._provider.ruleset.rules
found += [[sum(rule is each for rule in of for each in made) for of in (rules, again)], len(made), len(ahead._made)]
"""


def test_the_first_client_and_no_other_has_the_rules_that_were_made_ahead() -> None:
    (first, second), made, left = found(USED, prepared=True)
    assert first == made > 0 == second == left
