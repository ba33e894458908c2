"""What Zygotes learn to import, and what they do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sockd.caches.zygotes.import_profile import FORMAT, WORKER, ImportProfile, Seen, load_learned, save_learned
from sockd.caches.zygotes.refusals import Refusals

PANDAS, NUMPY, FLASK = "pandas-2.2.3-aa", "numpy-1.26.4-bb", "flask-3.1-cc"


def seen(key: str, *modules: str, seconds: float = 0.01) -> list[Seen]:
    return [Seen(key, module, seconds) for module in modules]


def test_modules_come_in_the_order_in_which_functions_imported_them() -> None:
    profile = ImportProfile()
    imports = [*seen(PANDAS, "pandas"), *seen(NUMPY, "numpy", "numpy.core"), *seen(PANDAS, "pandas.core")]
    profile.observe("f", frozenset({PANDAS, NUMPY}), imports)
    assert profile.modules_for([PANDAS, NUMPY]) == ["pandas", "numpy", "numpy.core", "pandas.core"]


def test_only_modules_of_the_wanted_distributions_are_listed() -> None:
    profile = ImportProfile()
    profile.observe("f", frozenset({PANDAS, NUMPY}), [*seen(PANDAS, "pandas"), *seen(NUMPY, "numpy")])
    assert profile.modules_for([NUMPY]) == ["numpy"]


def test_nothing_is_learned_from_functions_that_asked_for_less() -> None:
    profile = ImportProfile()
    profile.observe("f", frozenset({NUMPY}), seen(NUMPY, "numpy"))
    assert profile.modules_for([NUMPY, FLASK]) == []


def test_modules_of_distributions_that_a_function_did_not_ask_for_are_dropped() -> None:
    profile = ImportProfile()
    profile.observe("f", frozenset({NUMPY}), [*seen(NUMPY, "numpy"), *seen(FLASK, "flask")])
    assert profile.modules_for([NUMPY]) == ["numpy"]
    assert profile.seconds_by_key() == pytest.approx({NUMPY: 0.01})


def test_a_module_that_few_functions_use_stays_out() -> None:
    profile = ImportProfile(share=0.5)
    closure = frozenset({PANDAS})
    for name in "abc":
        profile.observe(name, closure, seen(PANDAS, "pandas"))
    profile.observe("d", closure, seen(PANDAS, "pandas", "pandas.plotting"))
    assert profile.modules_for([PANDAS]) == ["pandas"]
    for name in "ab":
        profile.observe(name, closure, seen(PANDAS, "pandas", "pandas.plotting"))
    assert profile.modules_for([PANDAS]) == ["pandas", "pandas.plotting"]


def test_a_function_forked_from_a_zygote_does_not_vote_against_what_it_inherited() -> None:
    profile = ImportProfile()
    profile.observe("first", frozenset({PANDAS}), seen(PANDAS, "pandas", "pandas.core"))
    for name in "abcd":
        profile.observe(name, frozenset({PANDAS}), [], inherited=frozenset({PANDAS}))
    assert profile.modules_for([PANDAS]) == ["pandas", "pandas.core"]


def test_a_function_forked_from_a_zygote_adds_what_it_imported_besides() -> None:
    profile = ImportProfile()
    closure = frozenset({PANDAS})
    profile.observe("first", closure, seen(PANDAS, "pandas"))
    profile.observe("second", closure, seen(PANDAS, "pandas.plotting"), inherited=closure)
    assert profile.modules_for([PANDAS]) == ["pandas", "pandas.plotting"]


def test_the_order_of_a_start_is_the_functions_own_as_far_as_it_was_seen() -> None:
    profile, zygote = ImportProfile(), ["numpy", "pandas.b", "pandas.late", "pandas.a"]
    assert profile.order_of("f", zygote) == zygote
    closure, own = frozenset({NUMPY, PANDAS}), seen(PANDAS, "pandas.a", "pandas.b", "pandas.c")
    profile.observe("from its root", closure, own)
    assert profile.order_of("from its root", zygote) == ["pandas.a", "pandas.b", "pandas.c", "numpy", "pandas.late"]
    profile.observe("from a Zygote with numpy", closure, own, inherited=frozenset({NUMPY}))
    expected = ["numpy", "pandas.a", "pandas.late", "pandas.b", "pandas.c"]
    assert profile.order_of("from a Zygote with numpy", zygote) == expected


def test_a_function_seen_again_from_a_zygote_keeps_what_it_showed_before() -> None:
    profile = ImportProfile()
    closure = frozenset({PANDAS})
    profile.observe("f", closure, seen(PANDAS, "pandas", "pandas.core"))
    profile.observe("f", closure, seen(PANDAS, "pandas.plotting"), inherited=closure)
    assert profile.modules_for([PANDAS]) == ["pandas", "pandas.core", "pandas.plotting"]


def test_a_function_seen_again_counts_once() -> None:
    profile = ImportProfile()
    closure = frozenset({PANDAS})
    for _ in range(5):
        profile.observe("f", closure, seen(PANDAS, "pandas", "pandas.plotting"))
    for name in "abc":
        profile.observe(name, closure, seen(PANDAS, "pandas"))
    assert profile.modules_for([PANDAS]) == ["pandas"]


def test_the_most_frequently_seen_are_kept_within_the_bound() -> None:
    profile = ImportProfile(max_modules=2, share=0.0)
    closure = frozenset({PANDAS})
    profile.observe("a", closure, seen(PANDAS, "pandas.rare", "pandas"))
    profile.observe("b", closure, seen(PANDAS, "pandas", "pandas.core"))
    profile.observe("c", closure, seen(PANDAS, "pandas", "pandas.core"))
    assert profile.modules_for([PANDAS]) == ["pandas", "pandas.core"]


def test_a_module_that_failed_in_a_zygote_is_tried_again_only_in_larger_sets() -> None:
    profile = ImportProfile()
    profile.observe("f", frozenset({PANDAS, NUMPY}), seen(PANDAS, "pandas", "pandas.plotting"))
    profile.failed(frozenset({PANDAS}), ["pandas.plotting"])
    assert profile.modules_for([PANDAS]) == ["pandas"]
    assert profile.modules_for([PANDAS, NUMPY]) == ["pandas", "pandas.plotting"]


def test_a_forgotten_distribution_is_gone() -> None:
    profile = ImportProfile()
    profile.observe("f", frozenset({PANDAS, NUMPY}), [*seen(PANDAS, "pandas"), *seen(NUMPY, "numpy")])
    profile.forget(PANDAS)
    assert profile.modules_for([PANDAS]) == []
    assert profile.modules_for([NUMPY]) == ["numpy"]


def test_observations_are_bounded() -> None:
    profile = ImportProfile(max_functions=10, max_alike=2)
    for index in range(50):
        profile.observe(f"same-{index}", frozenset({NUMPY}), seen(NUMPY, "numpy"))
        profile.observe(f"other-{index}", frozenset({FLASK, f"package-{index}"}), seen(FLASK, "flask"))
    functions = profile.to_json()["functions"]
    assert len(functions) <= 10
    assert sum(item["function"].startswith("same") for item in functions) <= 2


def test_the_function_that_could_tell_is_not_forgotten_for_many_that_inherited_everything() -> None:
    """Else what its distribution costs is unknown, and no Zygote is made above the one that holds it."""
    profile = ImportProfile(max_alike=2)
    closure = frozenset({NUMPY})
    profile.observe("told", closure, seen(NUMPY, "numpy", seconds=0.02))
    for index in range(10):
        profile.observe(f"inherited-{index}", closure, [], inherited=closure)
    assert profile.seconds_by_key() == pytest.approx({NUMPY: 0.02}) and profile.modules_for([NUMPY]) == ["numpy"]
    for index in range(2):
        profile.observe(f"later-{index}", closure, seen(NUMPY, "numpy", seconds=0.04))
    assert profile.seconds_by_key() == pytest.approx({NUMPY: 0.04}), "of those that tell something the oldest goes"


def test_import_seconds_are_the_mean_over_functions_that_could_tell() -> None:
    profile = ImportProfile()
    closure = frozenset({NUMPY})
    profile.observe("a", closure, seen(NUMPY, "numpy", "numpy.core", seconds=0.02))
    profile.observe("b", closure, seen(NUMPY, "numpy", seconds=0.02))
    profile.observe("c", closure, seen(NUMPY, "numpy.fft", seconds=0.001), inherited=closure)
    assert profile.seconds_by_key() == pytest.approx({NUMPY: 0.03})


names = st.sampled_from(["p", "p.a", "p.a.b", "p.c", "q", "q.x"])


@given(st.lists(st.lists(names, unique=True), max_size=6), st.floats(0, 1), st.integers(1, 6))
def test_parents_come_first_and_nothing_unseen_is_listed(
    functions: list[list[str]], share: float, max_modules: int
) -> None:
    profile = ImportProfile(share=share, max_modules=max_modules)
    for index, modules in enumerate(functions):
        profile.observe(str(index), frozenset({NUMPY}), seen(NUMPY, *modules))
    listed = profile.modules_for([NUMPY])
    assert len(listed) == len(set(listed)) <= max_modules
    assert set(listed) <= {module for modules in functions for module in modules}
    for position, module in enumerate(listed):
        parent = module.rpartition(".")[0]
        assert parent not in listed[position:]


def test_what_was_learned_survives_a_restart(tmp_path: Path) -> None:
    profile, refused = ImportProfile(), Refusals()
    profile.observe(
        "f", frozenset({PANDAS, NUMPY}), seen(PANDAS, "pandas", "pandas.core"), inherited=frozenset({NUMPY})
    )
    profile.failed(frozenset({NUMPY}), ["numpy.bad"])
    refused.refuse(FLASK, "canary: no answer in 2 s", module="flask", node="flask", by_deadline=True)
    save_learned(tmp_path / "learned.json", profile, refused)
    again, refused_again, problem = load_learned(tmp_path / "learned.json")
    assert problem is None
    assert again.to_json() == profile.to_json()
    assert refused_again.list() == refused.list()
    assert [path.name for path in tmp_path.iterdir()] == ["learned.json"]


def test_a_first_start_has_nothing_to_say(tmp_path: Path) -> None:
    profile, refused, problem = load_learned(tmp_path / "learned.json", max_modules=7)
    assert (profile.max_modules, profile.modules_for([]), refused.list(), problem) == (7, [], [], None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"format": 99}',
        b'{"format": 1, "imports": {"names": ["a"], "functions": [{}], "failed": {}}, "refused": []}',
        b'{"format": 1, "imports": {"names": [1], "functions": [], "failed": {}}, "refused": []}',
        b'{"format": 3, "worker": %b, "imports": {"names": [], "functions": [], "failed": {}}, "refused": [["a"]]}'
        % json.dumps(WORKER).encode(),
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_an_empty_start_that_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "learned.json"
    path.write_bytes(content)
    profile, refused, problem = load_learned(path)
    assert problem is not None
    assert str(path) in problem
    assert profile.to_json()["functions"] == []
    assert refused.list() == []


@pytest.mark.parametrize("older", [{"format": 1}, {"format": 2, "worker": None}, {"worker": "0.0.1 3.11.0"}])
def test_of_an_older_workers_file_what_functions_imported_is_taken_over_and_nothing_else(
    tmp_path: Path, older: dict[str, object]
) -> None:
    path = tmp_path / "learned.json"
    profile, refused = ImportProfile(), Refusals()
    profile.observe("f", frozenset({NUMPY}), seen(NUMPY, "numpy", "numpy.bad"))
    profile.failed(frozenset({NUMPY}), ["numpy.bad"])
    refused.refuse(FLASK, "its plan was not closed")
    save_learned(path, profile, refused)
    path.write_text(json.dumps({**json.loads(path.read_text()), **older}))
    again, refused_again, problem = load_learned(path)
    assert problem is None and refused_again.list() == []
    assert again.modules_for([NUMPY]) == ["numpy", "numpy.bad"]


def test_a_torn_file_never_starts_half_full(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    profile, refused = ImportProfile(), Refusals()
    profile.observe("f", frozenset({NUMPY}), seen(NUMPY, "numpy"))
    save_learned(path, profile, refused)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        again, _, problem = load_learned(path)
        assert problem is not None
        assert again.to_json()["functions"] == []


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    save_learned(path, ImportProfile(), Refusals())
    before = path.read_bytes()
    refused = Refusals()
    refused._failed["key"] = object()  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        save_learned(path, ImportProfile(), refused)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["learned.json"]


def test_the_file_is_json(tmp_path: Path) -> None:
    save_learned(tmp_path / "learned.json", ImportProfile(), Refusals())
    assert json.loads((tmp_path / "learned.json").read_text())["format"] == FORMAT
