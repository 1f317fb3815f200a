"""How long to wait before trying again: exponential, capped, jittered, and forgetful after a healthy time.

Jitter keeps a thousand nodes that lost the API server at one moment from coming back at one moment.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """Seconds: the n-th wait is ``first * factor**(n-1)``, at most ``cap``, of which up to ``jitter`` (0..1) is random.

    Work that ran for ``healthy_after`` seconds starts over at ``first``.
    """

    first: float = 0.5
    cap: float = 30.0
    factor: float = 2.0
    jitter: float = 0.3
    healthy_after: float = 60.0

    def __post_init__(self) -> None:
        if not (0 < self.first <= self.cap and self.factor >= 1 and 0 <= self.jitter <= 1 and self.healthy_after > 0):
            msg = f"impossible backoff: {self}"
            raise ValueError(msg)


class Backoff:
    """The waits of one piece of work. Not shared between pieces: each fails on its own account."""

    def __init__(self, policy: BackoffPolicy | None = None, *, uniform: Callable[[], float] = random.random) -> None:
        self._policy = policy or BackoffPolicy()
        self._uniform = uniform
        self.failures = 0

    def next_delay(self, *, ran_for: float = 0.0) -> float:
        """Seconds to wait after another failure of work that had run for ``ran_for`` seconds.

        Always in ``[(1 - jitter) * d, d]`` where d is the policy's wait, so ``cap`` is never exceeded.
        """
        policy = self._policy
        if ran_for >= policy.healthy_after:
            self.failures = 0
        self.failures += 1
        # Exponents beyond the cap are cut first: a float power of a month of failures would overflow.
        exponent = min(self.failures - 1, 64)
        full = min(policy.cap, policy.first * policy.factor**exponent)
        return full * (1 - policy.jitter * self._uniform())

    def reset(self) -> None:
        """The work is known to be good: the next failure waits the shortest time again."""
        self.failures = 0
