"""Codes of errors, and the page that explains each of them, against the tree itself."""

from __future__ import annotations

import inspect
import pickle
import re
from pathlib import Path

import pytest

from headrace.connectors.http.client import HttpAwayError
from headrace.state import errors
from headrace.state.errors import ExternalError, HeadraceError, JobFailedError, UserFunctionError, codes_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "errors.md"
TREE = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, HeadraceError) and kind.__module__ == errors.__name__
}
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \| (.*)\|$", re.MULTILINE)


def sections():
    """For each section of the page: its text up to the table, and the rows of that."""
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        yield section.partition("\n| code")[0], ROW.findall(section)


def test_every_error_of_the_tree_is_explained_once_and_nothing_else_is():
    explained = [row[0] for _, rows in sections() for row in rows]
    assert sorted(explained) == sorted(TREE)
    assert set(TREE) == {name for name in errors.__all__ if name[0].isupper()}


def test_the_page_says_the_domain_and_what_to_do():
    for text, rows in sections():
        said = re.findall(r"[Dd]omain `(\w+)`", text)
        for name, cause, advice in rows:
            kind = TREE[name]
            if said:
                assert kind.domain == said[0] or f"`{kind.domain}` for `{name}`" in text, name
            assert len(cause) > 15, name
            assert advice.strip() or kind.__subclasses__(), f"{name}: what is to be done?"


def test_the_tree_is_drawn_as_it_is():
    """Under its parent, and indented by its depth."""
    drawn = re.findall(r"^    ((?:[|`][ -]{2} |    )*)(\w+Error)\b", errors.__doc__, re.MULTILINE)
    assert sorted(name for _, name in drawn) == sorted(TREE)
    above: list[str] = []
    for indent, name in drawn:
        del above[len(indent) // 4 :]
        assert [kind.__name__ for kind in reversed(TREE[name].__mro__[1:]) if kind.__name__ in TREE] == above, name
        above.append(name)


@pytest.mark.parametrize("name", sorted(TREE))
def test_the_code_is_the_name_and_survives_pickling(name):
    error = pickle.loads(pickle.dumps(TREE[name]("what was wrong", operator="map")))
    assert error.code == name
    assert codes_of(error) == name


def test_a_connectors_own_kind_has_the_code_of_what_it_is():
    assert HttpAwayError("no answer").code == ExternalError.__name__


def test_the_codes_of_a_failed_job_name_the_cause():
    failed = JobFailedError("job 'a' failed: user function raised KeyError: 'b'")
    failed.__cause__ = UserFunctionError("user function raised KeyError: 'b'")
    failed.__cause__.__cause__ = KeyError("b")
    assert codes_of(failed) == "JobFailedError: UserFunctionError"
    assert codes_of(KeyError("b")) == ""
