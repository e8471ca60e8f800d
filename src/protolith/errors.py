"""Every error a user can meet, in one tree.

    ProtolithError                      what the CLI prints in three lines, the API sends, Python raises
    ├── UsageError                 2    the command or call itself is wrong
    ├── ConfigError                2    a config that cannot be run as written
    │   ├── UnknownKeyError             a key nobody reads, with the nearest one that exists
    │   ├── InvalidValueError           right key, impossible value
    │   └── NotAvailableError           valid, but not built yet
    ├── MissingExtraError          2    an optional package is needed; the hint is the install line
    ├── DataError                  2    text or shards that would train the wrong thing
    │   ├── CorpusTooSmallError         fewer tokens than one row
    │   ├── BadRecordError              a text record that cannot be read
    │   └── ShardError                  a token shard that disagrees with itself
    ├── TokenizerError             2    no tokenizer, no end-of-text token, wrong vocabulary
    ├── ModelError                 2    an architecture or weights that cannot be used
    ├── NotFoundError              3    a named file, folder, run or checkpoint does not exist
    ├── NotAllowedError            4    the system or the server says no
    ├── ConflictError              5    something else is in the way
    │   ├── OutputInUseError            the output folder holds a run, or a live one
    │   └── ResumeMismatchError         what is resumed is not what was saved
    ├── UnreachableError           6    a server or storage does not answer
    ├── NoSpaceError               7    disk or quota
    └── RunFailedError             1    the run started and could not go on
        ├── NonFiniteError              loss or gradient is nan or inf
        ├── OutOfMemoryError            the device's memory is full
        ├── WorkerLostError             another process of the run is gone
        └── CheckpointError             a checkpoint is torn, or does not fit

A stop that was asked for is not an error: see ``EXIT_STOPPED``. Exit codes stand behind each name
and are part of the public contract.
"""

from __future__ import annotations

from typing import Any, ClassVar

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_NOT_ALLOWED = 4
EXIT_CONFLICT = 5
EXIT_UNREACHABLE = 6
EXIT_NO_SPACE = 7
EXIT_STOPPED = 8
EXIT_WAIT_TIMEOUT = 124
EXIT_INTERRUPTED = 130


class ProtolithError(Exception):
    """Base of all errors meant for a person.

    Args:
        message: one sentence that says what is wrong, with the numbers and names at fault.
        hint: what to do next; may be empty.
        where: the place, such as ``corpus.jsonl:17``, ``trainer.batch_size`` or a shard's path.

    Attributes:
        code: stable slug of the kind, for programs.
        exit_code: what a command ends with.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = EXIT_FAILED

    def __init__(self, message: str, *, hint: str = "", where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.where = where

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, the same in files, in the API and under ``-o json``."""
        return {"code": self.code, "message": self.message, "hint": self.hint, "where": self.where}

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        tail = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.message}{tail}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.hint, self.where, self.__dict__.copy())


def _rebuild(
    kind: type[ProtolithError], message: str, hint: str, where: str, state: dict[str, Any]
) -> ProtolithError:
    """Errors cross process borders (workers), so they must survive a pickle with all their parts."""
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    return error


class UsageError(ProtolithError):
    """The command line or the Python call is wrong."""

    code = "usage"
    exit_code = EXIT_USAGE


class ConfigError(ProtolithError):
    """The config cannot be run as written. ``problems`` holds every fault found, this one first."""

    code = "config_invalid"
    exit_code = EXIT_USAGE

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        where: str = "",
        problems: tuple[ConfigError, ...] = (),
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.problems = problems

    def to_dict(self) -> dict[str, Any]:
        own = super().to_dict()
        if len(self.problems) > 1:
            own["problems"] = [problem.to_dict() for problem in self.problems[1:]]
        return own


class UnknownKeyError(ConfigError):
    """A key that nothing reads."""

    code = "config_unknown_key"


class InvalidValueError(ConfigError):
    """A value of the wrong type or out of range."""

    code = "config_invalid_value"


class NotAvailableError(ConfigError):
    """A setting that is part of the schema but does not work yet."""

    code = "not_available"


class MissingExtraError(ProtolithError):
    """An optional dependency is not installed."""

    code = "missing_extra"
    exit_code = EXIT_USAGE


class DataError(ProtolithError):
    """Data that cannot be trained on, or would train the wrong thing."""

    code = "data_invalid"
    exit_code = EXIT_USAGE


class CorpusTooSmallError(DataError):
    """Fewer tokens than one row needs."""

    code = "corpus_too_small"


class BadRecordError(DataError):
    """A text record that cannot be read, with its file and line."""

    code = "bad_record"


class ShardError(DataError):
    """A token shard whose files disagree. ``problems`` lists every bad shard found."""

    code = "bad_shard"

    def __init__(
        self, message: str, *, hint: str = "", where: str = "", problems: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.problems = problems

    def to_dict(self) -> dict[str, Any]:
        own = super().to_dict()
        if self.problems:
            own["problems"] = list(self.problems)
        return own


class TokenizerError(ProtolithError):
    """No usable tokenizer, or one that does not fit model or data."""

    code = "tokenizer_invalid"
    exit_code = EXIT_USAGE


class ModelError(ProtolithError):
    """An architecture or weights that cannot be used."""

    code = "model_invalid"
    exit_code = EXIT_USAGE


class NotFoundError(ProtolithError):
    """A named thing does not exist."""

    code = "not_found"
    exit_code = EXIT_NOT_FOUND


class NotAllowedError(ProtolithError):
    """Reading or writing was refused."""

    code = "not_allowed"
    exit_code = EXIT_NOT_ALLOWED


class ConflictError(ProtolithError):
    """Something else is in the way."""

    code = "conflict"
    exit_code = EXIT_CONFLICT


class OutputInUseError(ConflictError):
    """The output folder holds a run, and nobody said what to do with it."""

    code = "output_in_use"


class ResumeMismatchError(ConflictError):
    """What is to be resumed differs from what was saved. ``differences`` are one line each."""

    code = "resume_mismatch"

    def __init__(
        self, message: str, *, hint: str = "", where: str = "", differences: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint, where=where)
        self.differences = differences

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "differences": list(self.differences)}

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *self.differences])


class UnreachableError(ProtolithError):
    """A server or remote storage did not answer for as long as was waited."""

    code = "unreachable"
    exit_code = EXIT_UNREACHABLE


class NoSpaceError(ProtolithError):
    """The disk or the quota is full."""

    code = "no_space"
    exit_code = EXIT_NO_SPACE


class RunFailedError(ProtolithError):
    """The run started and could not go on."""

    code = "run_failed"
    exit_code = EXIT_FAILED


class NonFiniteError(RunFailedError):
    """Loss or gradient is nan or inf; the weights were not touched."""

    code = "non_finite"


class OutOfMemoryError(RunFailedError):
    """The memory of the device or of the machine is full."""

    code = "out_of_memory"


class WorkerLostError(RunFailedError):
    """Another process of the run was killed or cannot be reached; the run can go on from a checkpoint."""

    code = "worker_lost"


class CheckpointError(RunFailedError):
    """A checkpoint is incomplete, damaged, or does not fit this model."""

    code = "checkpoint_invalid"
