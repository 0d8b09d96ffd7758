"""Bugs that are planted into the product for the time of one test run. The product itself knows nothing of
them.

A bug is one change or several of the text of functions. Each change quotes what it replaces, and fails where
that text does not stand there exactly once: whoever rewrites the function is told, and no bug is disarmed in
silence.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any


@dataclass(frozen=True, slots=True)
class Change:
    """Text `before` of a function becomes `after`; both without the function's indentation.

    `function` is a plain function, a method, or what classmethod, staticmethod or property wrap around one.
    """

    function: Any
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Bug:
    """One planted bug.

    Attributes:
        name: few words.
        wrong: what the product does now, in one line.
        changes: of its text.
        run: name of the run that should catch it.
        is_rare: it takes many histories; only `make bugs` plants it.
    """

    name: str
    wrong: str
    changes: tuple[Change, ...]
    run: str
    is_rare: bool = False

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """The product with this bug, until the end of the block."""
        with contextlib.ExitStack() as stack:
            for function, changes in self._by_function():
                stack.enter_context(_changed(function, changes))
            yield

    def _by_function(self) -> list[tuple[FunctionType, list[Change]]]:
        found: dict[int, tuple[FunctionType, list[Change]]] = {}
        for change in self.changes:
            function = _function(change.function)
            found.setdefault(id(function), (function, []))[1].append(change)
        return list(found.values())


@contextlib.contextmanager
def _changed(function: FunctionType, changes: list[Change]) -> Iterator[None]:
    original = function.__code__
    # The code object is what is exchanged: it takes effect wherever the function is known, also under
    # imported names and in tables.
    function.__code__ = _compiled(function, changes)
    try:
        yield
    finally:
        function.__code__ = original


def _compiled(function: FunctionType, changes: list[Change]) -> CodeType:
    where = f"{function.__module__}.{function.__qualname__}"
    source = _source(function)
    for change in changes:
        before, after = textwrap.dedent(change.before).strip("\n"), textwrap.dedent(change.after).strip("\n")
        assert before != after, f"{where}: nothing is changed"
        found = list(_found(source, before))
        assert len(found) == 1, (
            f"{where} has {len(found)} times what a planted bug replaces: write the bug anew for\n{before}"
        )
        start, stop, indentation = found[0]
        source = source[:start] + _indented(after, indentation) + source[stop:]
    name = f"<{where} with a planted bug>"
    linecache.cache[name] = (
        len(source),
        None,
        source.splitlines(True),
        name,
    )  # tracebacks show the changed text
    code = compile(source, name, "exec", flags=_future_flags(function), dont_inherit=True)
    found_code = next(
        constant
        for constant in code.co_consts
        if isinstance(constant, CodeType) and constant.co_name == function.__name__
    )
    assert found_code.co_freevars == function.__code__.co_freevars == (), (
        f"{where} is a closure: it cannot be exchanged"
    )
    return found_code


def _source(function: FunctionType) -> str:
    """Returns the function's text without decorators, against the left margin."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines(True)
    start = next(number for number, line in enumerate(lines) if line.startswith(("def ", "async def ")))
    return "".join(lines[start:])


def _found(source: str, text: str) -> Iterator[tuple[int, int, str]]:
    """Yields where `text` stands, whatever its line breaks: start, end, and the indentation of the line where
    it begins.

    Before a closing bracket the source may have a comma more, as formatters put one where they break a list.
    """
    words = [
        f",?\\s*{re.escape(word)}" if word in ")]}" else re.escape(word)
        for word in re.findall(r"\w+|[^\w\s]", text)
    ]
    for match in re.finditer(r"\s*".join(words), source):
        line = source[source.rfind("\n", 0, match.start()) + 1 : match.start()]
        yield match.start(), match.end(), line[: len(line) - len(line.lstrip())]


def _indented(text: str, indentation: str) -> str:
    first, *rest = text.split("\n")
    return "\n".join([first, *(indentation + line if line else line for line in rest)])


def _future_flags(function: FunctionType) -> int:
    import __future__

    return function.__code__.co_flags & __future__.annotations.compiler_flag


def _function(wrapped: Any) -> FunctionType:
    if isinstance(wrapped, property):
        wrapped = wrapped.fget
    function: Callable[..., Any] = inspect.unwrap(getattr(wrapped, "__func__", wrapped))
    assert isinstance(function, FunctionType), f"{wrapped!r} is no function whose code can be exchanged"
    return function
