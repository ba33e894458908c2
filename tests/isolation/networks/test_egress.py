"""Rules of functions as text: what they mean, and what is refused with words that help."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from sockd.base.errors import BadFunctionConfig
from sockd.isolation.networks.egress import EVERYTHING_PUBLIC, Egress, Rule, parse, recorded


@pytest.mark.parametrize(
    ("entry", "rule"),
    [
        ("10.0.0.0/8:5432", Rule(IPv4Network("10.0.0.0/8"), "", (5432, 5432), "")),
        ("192.168.7.7", Rule(IPv4Network("192.168.7.7/32"), "", None, "")),
        ("10.0.0.0/8/tcp", Rule(IPv4Network("10.0.0.0/8"), "", None, "tcp")),
        ("10.1.2.3:53/udp", Rule(IPv4Network("10.1.2.3/32"), "", (53, 53), "udp")),
        ("API.Example.com.:443", Rule(None, "api.example.com", (443, 443), "")),
        ("*.example.com:8000-8010", Rule(None, "*.example.com", (8000, 8010), "")),
        ("internet", Rule(None, "", None, "")),
        ("host:5432", Rule(IPv4Network("169.254.1.1/32"), "", (5432, 5432), "tcp")),
        ("function:a-b_C", Rule(IPv4Network("169.254.1.1/32"), "", (80, 80), "tcp", "a-b_C")),
        ("internet:443/tcp", Rule(None, "", (443, 443), "tcp")),
    ],
)
def test_rules(entry: str, rule: Rule) -> None:
    assert parse([entry], most=1) == Egress((rule,))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("10.0.0.1/8:5432", "host bits"),
        ("10.0.0.0/33", "not a network"),
        ("10.0.0.0/8:0", "1 to 65535"),
        ("10.0.0.0/8:99999", "1 to 65535"),
        ("10.0.0.0/8:90-80", "the lower one first"),
        ("10.0.0.0/8:http", "not NETWORK"),
        ("", "not NETWORK"),
        ("a b", "not NETWORK"),
        ("-a.com", "not NETWORK"),
        ("a..com", "not NETWORK"),
        ("*.*.com", "not NETWORK"),
        (f"{'a.' * 130}com", "at most 253 characters"),
        ("[::1]:80", "no IPv6"),
        ("fd00::/8", "no IPv6"),
        ("169.254.169.254:80", "169.254.0.0/16 is never reached"),
        ("127.0.0.1:80", "127.0.0.0/8 is never reached"),
        ("224.0.0.1", "224.0.0.0/4 is never reached"),
        ("100.100.100.200", "100.100.100.200/32 is never reached from a private network (network.denied)"),
        ("a" * 301, "300 characters"),
        ("none", "an empty list allows nothing"),
        ("None", "an empty list allows nothing"),
        ("Internet:443", 'write "internet"'),
        ("host", "given as host:PORT"),
        ("function:", "a function's name"),
        ("function:a.b", "a function's name"),
        ("function:a:1", "a function's name"),
        ("host:80-90", "one port of TCP"),
        ("host:53/udp", "one port of TCP"),
        ("private:80", "private is a network"),
        ("localhost:80", "own loopback"),
        ("db.localhost.", "own loopback"),
        ("10.0.0.1-10.0.0.9", "given as networks, such as 10.0.0.0/28"),
        ("10.0.0.1-10.0.0.9:5432/tcp", "given as networks"),
        ("0x0a000001", "an address has four"),
        ("example.123", "no name ends in a number"),
        ("*.1.0x", "no name ends in a number"),
        ("10.0.0.1:\u0668\u0660", "not NETWORK"),
        ("\u0661\u0660.0.0.1", "xn--"),
        ("m\u00fcller.example", "xn--"),
        ("\u212aelvin.example", "xn--"),
        (f"{'a' * 64}.example", "63 between two dots"),
    ],
)
def test_what_is_refused_says_why(entry: str, says: str) -> None:
    with pytest.raises(BadFunctionConfig, match="egress, entry 2, ") as refused:
        parse(["internet", entry], most=2, denied={IPv4Network("100.100.100.200"): "network.denied"})
    assert says in str(refused.value)


def test_no_rules_are_the_internet_and_none_are_nothing() -> None:
    assert parse(None, most=0) is EVERYTHING_PUBLIC
    assert parse([], most=0) == Egress(())


def test_a_recorded_rule_that_is_refused_by_now_opens_nothing_and_says_why() -> None:
    denied = {IPv4Network("10.77.0.0/16"): "network.denied"}
    rules, errors = recorded(["10.77.3.7:5432", "internet", "10.0.0.0/8"], denied=denied)
    assert rules == parse(["internet", "10.0.0.0/8"], most=2), "a rule that only contains what is denied stays"
    assert errors == [
        "egress, entry 1, '10.77.3.7:5432': 10.77.0.0/16 is never reached from a private network (network.denied)"
    ]
    assert recorded(None) == (EVERYTHING_PUBLIC, ()) and recorded([]) == (Egress(()), [])


def test_the_number_of_rules_is_bounded() -> None:
    with pytest.raises(BadFunctionConfig, match=r"3 rules, and may have 2 \(network\.max_rules\)"):
        parse(["internet"] * 3, most=2)


def test_names_are_resolved_by_the_rules_that_name_them() -> None:
    rules = parse(["api.example.com:443", "*.example.org", "10.0.0.0/8"], most=3)
    names = ("api.example.com", "www.api.example.com", "example.org", "a.example.org", "badexample.org", "")
    assert [rules.resolves(name) for name in names] == [True, False, False, True, False, False]
    assert rules.has_names and not rules.has_internet
    assert EVERYTHING_PUBLIC.resolves("anything.example")
