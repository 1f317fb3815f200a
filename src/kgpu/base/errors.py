"""The root of every error that a user may see.

A user-facing error has three parts: what failed, what was expected, what to do. Each layer has its own subclass, so
that a caller can catch one layer's trouble; an error of a foreign library is only ever its ``__cause__``.
"""

from __future__ import annotations


class UserError(Exception):
    """An error told to the user in three parts; command lines turn it into exit code 2, never a traceback."""

    def __init__(self, what: str, expected: str, todo: str) -> None:
        super().__init__(what, expected, todo)
        self.what = what
        self.expected = expected
        self.todo = todo

    def __str__(self) -> str:
        return f"{self.what}\n  expected: {self.expected}\n  to do: {self.todo}"

    def one_line(self) -> str:
        """The same three parts on one line, for log lines and Events."""
        return f"{self.what}; expected {self.expected}; to do: {self.todo}".replace("\n", " ")


class ConfigError(UserError):
    """A config file, flag or environment variable says something that kgpu can't accept."""


class HwError(UserError):
    """The accelerator driver, its libraries or its simulated state can't be used."""


class KubeError(UserError):
    """The API server refused or could not be reached."""


class KubeletError(UserError):
    """The kubelet's sockets refused or could not be reached."""


class HostError(UserError):
    """The node's own files or programs are not as they must be."""


class LabError(UserError):
    """The lab can't be brought up, changed or taken down."""
