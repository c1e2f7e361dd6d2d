"""Names and numbers as AWS makes them, from one seed, so that a test sees the same ones each time."""

from __future__ import annotations

import hashlib
import itertools
import uuid


class Ids:
    """A source of ids.

    :param seed: the same seed gives the same ids in the same order.
    """

    def __init__(self, seed: str, *, account: str, region: str) -> None:
        self._seed = seed
        self._count = itertools.count(1)
        self.account = account
        self.region = region

    def hex(self, length: int) -> str:
        """Return so many hexadecimal digits."""
        return hashlib.sha256(f"{self._seed}/{next(self._count)}".encode()).hexdigest()[:length]

    def uuid(self) -> str:
        """Return an id of the form of a UUID."""
        return str(uuid.UUID(hex=self.hex(32)))

    def arn(self, service: str, resource: str) -> str:
        """Return the ARN of a resource of this account and region."""
        return f"arn:aws:{service}:{self.region}:{self.account}:{resource}"
