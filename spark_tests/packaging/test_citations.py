"""What the code cites is in the repository: every document, and the sections of docs/rules.md by title. What
documents cite is there too: every path, and the names in files that CONTRIBUTING.md gives as `path::name`.
"""

from __future__ import annotations

import pathlib
import re
from typing import Final

import pytest

from spark_tests.support.tree import PROJECT, shown, sources

RULES = PROJECT / "docs" / "rules.md"
#: A document that is named in a comment or docstring, and what is quoted behind it.
_NAMED = re.compile(r"(?<![\w/.-])((?:\w+/)*\w+\.md)\b")
_CITED = re.compile(r'docs/rules\.md,\s+((?:(?:,\s+|\s+and\s+)?"[^"]+")+)')
#: A path in backticks, with a name in that file.
_PATH: Final = re.compile(r"`((?:[\w.*-]+/)+[\w.*-]*)(?:::(\w+))?`")
#: Where documents are looked for.
_FOLDERS = (PROJECT, PROJECT / "proto", PROJECT / "spark_tests")
#: Documents that tell where things are today. CHANGELOG.md tells of what was.
DOCUMENTS: Final = tuple(
    PROJECT / name
    for name in ("CONTRIBUTING.md", "README.md", "ARCHITECTURE.md", "proto/PROTOCOL.md", "docs/rules.md")
)
#: Folders at the top: only what begins with one of them is a path of the repository.
_TOP: Final = frozenset(path.name for path in PROJECT.iterdir() if path.is_dir())


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


def cited_paths(text: str) -> list[tuple[str, str]]:
    """The (path, name) that a document gives in backticks; "" = no name."""
    return [(path, name) for path, name in _PATH.findall(text) if path.split("/")[0] in _TOP]


def test_paths_are_found() -> None:
    text = "`spark_tests/core` and `proto/generate.py::main`, `query/target`, spark_tests/x and `make test`"
    assert cited_paths(text) == [("spark_tests/core", ""), ("proto/generate.py", "main")]


@pytest.mark.parametrize("document", DOCUMENTS, ids=shown)
def test_every_path_that_a_document_cites_is_there(document: pathlib.Path) -> None:
    for path, name in cited_paths(document.read_text(encoding="utf-8")):
        found = PROJECT / path
        assert found.exists(), f"{shown(document)} cites {path}"
        assert not name or re.search(rf"\b(def|class) {name}\b|^{name}\b", found.read_text(), re.MULTILINE), (
            f"{shown(document)} cites {name} in {path}"
        )
