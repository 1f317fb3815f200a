"""Reading exceptions that task groups have wrapped: is it an obstacle that is understood, and how to say it shortly.

Apart from ``supervise`` so that the command line can ask without loading asyncio.
"""

from __future__ import annotations

from collections.abc import Iterator

from kgpu.base.errors import UserError


def leaves(problem: BaseException) -> Iterator[BaseException]:
    """The exceptions inside nested groups; a plain exception is its own only leaf."""
    if isinstance(problem, BaseExceptionGroup):
        for inner in problem.exceptions:
            yield from leaves(inner)
    else:
        yield problem


def obstacle_in(problem: BaseException) -> UserError | None:
    """The first ``UserError`` when there is nothing else in it, however deeply task groups have wrapped it."""
    problems = list(leaves(problem))
    if problems and all(isinstance(leaf, UserError) for leaf in problems):
        first = problems[0]
        return first if isinstance(first, UserError) else None
    return None


def describe(problem: BaseException) -> str:
    """One line that says which exceptions, for people."""
    parts: list[str] = []
    for leaf in leaves(problem):
        text = " ".join(str(leaf).split())
        name = type(leaf).__name__
        part = f"{name}: {text}" if text else name
        if part not in parts:
            parts.append(part)
    return "; ".join(parts)
