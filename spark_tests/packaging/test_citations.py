"""What the code cites is in the repository: every document, and the sections of docs/rules.md by title."""

from __future__ import annotations

import pathlib
import re

import pytest

from spark_tests.support.tree import PROJECT, shown, sources

RULES = PROJECT / "docs" / "rules.md"
#: A document that is named in a comment or docstring, and what is quoted behind it.
_NAMED = re.compile(r"(?<![\w/.-])((?:\w+/)*\w+\.md)\b")
_CITED = re.compile(r'docs/rules\.md,\s+((?:(?:,\s+|\s+and\s+)?"[^"]+")+)')
#: Where documents are looked for.
_FOLDERS = (PROJECT, PROJECT / "proto", PROJECT / "spark_tests")


def others() -> list[pathlib.Path]:
    """Every file but this one, which is about citations."""
    return [path for path in sources() if path != pathlib.Path(__file__).resolve()]


def titles() -> set[str]:
    return set(re.findall(r"^## (.+)$", RULES.read_text(encoding="utf-8"), re.MULTILINE))


def cited(text: str) -> list[str]:
    """The titles that a text cites. A title may go on in the next line, of a comment too."""
    plain = re.sub(r"\n\s*#?:?\s*", " ", text)
    return [title for many in _CITED.findall(plain) for title in re.findall(r'"([^"]+)"', many)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('(docs/rules.md, "Priority")', ["Priority"]),
        (
            '# (docs/rules.md,\n#: "Staged sets" and "Commit\n    # markers")',
            ["Staged sets", "Commit markers"],
        ),
        ("docs/rules.md", []),
    ],
)
def test_citations_are_found(text: str, found: list[str]) -> None:
    assert cited(text) == found


def test_every_cited_section_is_there() -> None:
    known, used = titles(), set[str]()
    for path in others():
        found = cited(path.read_text(encoding="utf-8"))
        assert set(found) <= known, f"{shown(path)} cites what docs/rules.md has not: {set(found) - known}"
        used |= set(found)
    assert used == known, f"nothing cites {known - used}"


def test_every_document_that_is_named_is_there() -> None:
    for path in others():
        for name in _NAMED.findall(path.read_text(encoding="utf-8")):
            assert any((folder / name).exists() for folder in _FOLDERS), f"{shown(path)} names {name}"
