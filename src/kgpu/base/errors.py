"""The root of every error that a user may see.

A user-facing error has three parts: what failed, what was expected, what to do. Each layer has its own subclass, so
that a caller can catch one layer's trouble; an error of a foreign library is only ever its ``__cause__``.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias


def to_do(statement: str, remedy: str) -> str:
    """The statement, followed by the remedy if there is one."""
    return f"{statement}; to do: {remedy}" if remedy else statement


class UserError(Exception):
    """An error told to the user in three parts; command lines turn it into exit code 2, never a traceback."""

    def __init__(self, what: str, expected: str, remedy: str) -> None:
        super().__init__(what, expected, remedy)
        self.what = what
        self.expected = expected
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what}\n  expected: {self.expected}\n  to do: {self.remedy}"

    @property
    def statement(self) -> str:
        """What failed and what was expected, on one line; what to do stands beside it."""
        return f"{self.what}; expected {self.expected}".replace("\n", " ")

    def one_line(self) -> str:
        """The same three parts on one line, for log lines and Events."""
        return to_do(self.statement, self.remedy).replace("\n", " ")


Reason: TypeAlias = str | UserError
"""Why something is as it is: words, or an error that knows what to do about it."""


def line_of(reason: Reason) -> str:
    """All of a reason on one line."""
    return reason.one_line() if isinstance(reason, UserError) else reason


def first_of_several(errors: Sequence[UserError]) -> UserError:
    """The first error, which says how many there are besides it: what the state of a component has room for."""
    first, more = errors[0], len(errors) - 1
    return UserError(f"{first.what} (and {more} more)", first.expected, first.remedy) if more else first


class ConfigError(UserError):
    """A config file, flag or environment variable says something that kgpu can't accept."""


class PlacedError(ConfigError):
    """One about a place, such as a file: ``what`` is the place and ``said``, what is wrong there."""

    def __init__(self, place: str, said: str, expected: str, remedy: str, *, lead: str = "") -> None:
        super().__init__(f"{lead}{place}: {said}", expected, remedy)
        self.place = place
        self.said = said


class DriverFault(enum.StrEnum):
    """Why a driver can't be used at all, for programs: the words of an error are for people, and change.

    A value that this version does not know is OTHER, so that whoever reads it from another version goes on.
    """

    LIBRARY_NOT_FOUND = "library-not-found"
    NOT_LOADED = "driver-not-loaded"  # no kernel module, or no device files
    INCOMPLETE = "incomplete"  # loaded without the part that programs compute with
    VERSION_MISMATCH = "version-mismatch"  # of kernel module and library
    NO_PERMISSION = "no-permission"
    HUNG = "hung"  # it did not answer in time
    CRASHED = "crashed"  # the library killed the process that called it
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> DriverFault | None:
        return cls.OTHER if isinstance(value, str) else None


class HwError(UserError):
    """The accelerator driver, its libraries or its simulated state can't be used; ``fault`` says why for programs."""

    def __init__(self, what: str, expected: str, remedy: str, *, fault: DriverFault = DriverFault.OTHER) -> None:
        super().__init__(what, expected, remedy)
        self.fault = fault


class KubeError(UserError):
    """The API server refused or could not be reached."""


class KubeletError(UserError):
    """The kubelet's sockets refused or could not be reached."""


class HostError(UserError):
    """The node's own files or programs are not as they must be."""


class LabError(UserError):
    """The lab can't be brought up, changed or taken down."""
