"""The whole error tree of the bridge.

Above it: everybody. Below it: nothing. Each error's text is one plain sentence that a person may be told; none holds a
token, a JSON-RPC id or the harness's own session id (design.md, rules 10 and 21).

Foreign exceptions (nio, sqlite3, OSError) become one of these at the edge of the package that meets them.
"""

from typing import ClassVar


class BridgeError(Exception):
    """The root. `exit_code` is what the command line ends with when this error ends it (interface.md, Commands)."""

    exit_code: ClassVar[int] = 1


class ConfigError(BridgeError):
    """The config or the command line cannot be used; the sentence names key, fault and line."""

    exit_code = 2


class MatrixError(BridgeError):
    """The homeserver did not do what was asked."""

    exit_code = 3


class HomeserverUnreachable(MatrixError):
    """A passing failure: no connection, a timeout, a torn body, a 5xx or an answer that is no JSON.

    `perhaps_done`: the request may have been carried out all the same, only its answer did not come back.
    """

    def __init__(self, message: str, *, perhaps_done: bool = False) -> None:
        super().__init__(message)
        self.perhaps_done = perhaps_done


class RateLimited(MatrixError):
    """The homeserver asks for patience: `retry_after` seconds, already capped."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class CredentialsRefused(MatrixError):
    """The access token or password does not count (any more).

    `soft`: only the token has run out; the device and its keys live on, and a new token for it mends this.
    """

    def __init__(self, message: str, *, soft: bool = False) -> None:
        super().__init__(message)
        self.soft = soft


class RequestRefused(MatrixError):
    """A 4xx that repeating will not change; `errcode` is Matrix's, or empty."""

    def __init__(self, message: str, *, status: int, errcode: str) -> None:
        super().__init__(message)
        self.status = status
        self.errcode = errcode


class ProofNeeded(MatrixError):
    """The homeserver does this only for somebody who shows once more who they are.

    `session` belongs into the proof; `flows` are the ways that it offers, each a sequence of stages, any of them enough.
    `page`: where a person can do it in a browser; None where the homeserver names no such page.
    """

    def __init__(
        self, message: str, *, session: str, flows: tuple[tuple[str, ...], ...], page: str | None = None
    ) -> None:
        super().__init__(message)
        self.session = session
        self.flows = flows
        self.page = page


class KeysLost(MatrixError):
    """The private keys of our device are not in the state folder, or are not those that the homeserver has."""


class KeysDamaged(MatrixError):
    """The private keys of our device are there and cannot be read."""


class IdentityUnusable(MatrixError):
    """The bridge cannot sign its device with the account's cross-signing identity; the sentence says what can be done."""


class RecoveryRefused(IdentityUnusable):
    """A recovery key or passphrase that opens nothing, or a secret storage in which nothing can be read."""


class EventTooLarge(RequestRefused):
    """The homeserver takes no event (or file) of this size."""


class AgentError(BridgeError):
    """The harness could not be started or used."""

    exit_code = 4


class AgentStartFailed(AgentError):
    """The harness did not start, or did not get as far as a session."""


class AgentClosed(AgentError):
    """The harness's stdin is closed: what should have been written was not."""

    exit_code = 1


class CallFailed(AgentError):
    """The harness answered a request of ours with a JSON-RPC error."""

    exit_code = 1

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class LedgerError(BridgeError):
    """The ledger could not store or read; nothing of the transaction was kept."""


class LedgerBusy(LedgerError):
    """A passing failure: the database is locked by somebody else."""


class LedgerFull(LedgerError):
    """No space is left where the ledger lies."""


class LedgerDamaged(LedgerError):
    """The database file is damaged or is of a later version of the bridge."""


class AlreadyDecided(LedgerError):
    """The conditional update met a request that has its decision already (design.md, rule 17)."""


class DemoFailed(BridgeError):
    """Something that the demo starts on this machine did not start, or ended by itself."""


class AnswerRefused(BridgeError):
    """An answer over the control socket that counts for nothing and consumes nothing; `code` is its `data.code`."""

    code: ClassVar[str] = "invalid_params"


class InvalidOption(AnswerRefused):
    """The option is not one of those offered (requirements.md, AO-15)."""

    code = "invalid_permission_option"

    def __init__(self, offered: tuple[str, ...]) -> None:
        super().__init__("This option was not offered.")
        self.offered = offered


class InvalidRevision(AnswerRefused):
    """The answer names another revision than the one that waits (requirements.md, AC-19)."""


class InvalidAgent(AnswerRefused):
    """No agent of this name has a room here."""


class SessionNotFound(AnswerRefused):
    """No session of this id was ever started here."""

    code = "session_not_found"


class LocalAnswersOff(AnswerRefused):
    """Over the control socket only a refusal counts for this agent (design.md, rule 13)."""

    code = "local_answers_off"


class ControlError(BridgeError):
    """The running bridge did not do what a command on this machine asked of it."""


class NotRunning(ControlError):
    """Nothing listens on the control socket."""


class CommandRefused(ControlError):
    """The running bridge answered with an error; `code` is its `data.code`, `offered` its `data.offered`."""

    def __init__(self, message: str, *, code: str, offered: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.offered = offered
