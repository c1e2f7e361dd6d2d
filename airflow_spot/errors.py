"""Every exception of this package. Each carries its fields, survives pickling and says what to do.

::

    SpotError
    ├── ConfigurationError (ValueError)    a wrong argument or an impossible set-up: nothing was submitted
    ├── ContractError (ValueError)         an object in the run directory that this version cannot read
    │   └── UnsafePath                     a name that would leave the run directory
    ├── StoreError (OSError)
    │   ├── StoreUnavailable               no answer, or 5xx: nothing is known, try again
    │   └── StoreDenied                    401 or 403: role, bucket policy or key policy
    ├── BatchError (RuntimeError)
    │   ├── BatchUnavailable               no answer, 5xx or throttled: no verdict, no budget spent
    │   ├── SubmitRefused                  AWS refused the request: no job exists
    │   ├── SubmitThrottled                429: no job exists, the same attempt may be sent again
    │   └── SubmitUnknown                  time-out or 5xx: a job may exist
    ├── OwnedByAnother                     a live owner holds this training run
    ├── StoppedByPerson                    a person stopped the training run
    └── CheckpointDamaged                  a file of a checkpoint is missing or altered
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BatchError",
    "BatchUnavailable",
    "CheckpointDamaged",
    "ConfigurationError",
    "ContractError",
    "OwnedByAnother",
    "SpotError",
    "StoppedByPerson",
    "StoreDenied",
    "StoreError",
    "StoreUnavailable",
    "SubmitRefused",
    "SubmitThrottled",
    "SubmitUnknown",
    "UnsafePath",
]


def _rebuild(cls: type[SpotError], message: str, fields: dict[str, Any]) -> SpotError:
    return cls(message, **fields)


class SpotError(Exception):
    """Root of all errors of this package.

    :param message: what happened, what was expected, what to do.
    :param fields: values a caller may need; each becomes an attribute.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep the fields when the error crosses a process border."""
        return _rebuild, (type(self), self.message, self.fields)


class ConfigurationError(SpotError, ValueError):
    """A wrong argument or an impossible set-up; nothing was submitted."""


class ContractError(SpotError, ValueError):
    """An object in the run directory that this version cannot read."""


class UnsafePath(ContractError):
    """A name that would leave the run directory."""


class StoreError(SpotError, OSError):
    """The object store did not do what was asked."""


class StoreUnavailable(StoreError):
    """No answer, or a 5xx: nothing is known about the effect; try again."""


class StoreDenied(StoreError):
    """401 or 403: role, bucket policy or key policy."""


class BatchError(SpotError, RuntimeError):
    """AWS Batch did not do what was asked."""


class BatchUnavailable(BatchError):
    """No answer, 5xx or throttled: no verdict, and no budget is spent."""


class SubmitRefused(BatchError):
    """AWS refused the request: no job exists, and the same request would be refused again."""


class SubmitThrottled(BatchError):
    """429: no job exists; the same attempt may be sent again after a back-off."""


class SubmitUnknown(BatchError):
    """A time-out or 5xx on SubmitJob: a job may exist."""


class OwnedByAnother(SpotError):
    """A live owner holds this training run."""


class StoppedByPerson(SpotError):
    """A person stopped the training run; the task's own retries do not undo that."""


class CheckpointDamaged(SpotError):
    """A file of a checkpoint is missing or altered."""
