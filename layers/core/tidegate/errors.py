"""Every error of the product: its code, its HTTP status, and whether a retry may help.

State machines name these classes in Retry and Catch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict


class FieldError(TypedDict):
    loc: list[str | int]
    msg: str


class DomainError(Exception):
    code = "internal"
    status = 500
    title = "Internal error"
    retryable = False
    # Set if the failed attempt got further than the previous one: it does not count as a retry.
    progressed = False
    # Set if the attempt was postponed before it sent anything: it does not count as a retry.
    put_off = False
    # CPU milliseconds, peak megabytes and bytes that the attempt had used when it failed, if that was measured.
    used: tuple[int, int, int] = (0, 0, 0)
    # Set if the first retry may start at once, without the policy's delay.
    at_once = False

    def __init__(
        self, detail: str = "", *, errors: Sequence[FieldError] = (), retry_after: float | None = None
    ) -> None:
        super().__init__(detail or self.title)
        self.detail = detail or self.title
        self.errors = tuple(errors)
        self.retry_after = retry_after


# --- errors of the caller


class BrokenJson(DomainError):
    code, status, title = "broken_json", 400, "The body is not valid JSON"


class BadPath(DomainError):
    code, status, title = "bad_path", 400, "The path is not valid"


class Unauthenticated(DomainError):
    code, status, title = "unauthenticated", 401, "A valid key is required"


class ScopeMissing(DomainError):
    code, status, title = "scope_missing", 403, "The key does not have the required scope"


class TargetNotGranted(DomainError):
    """Through GSE, the project may not send files to this target, into this directory or as this user."""

    code, status, title = "target_not_granted", 403, "The project may not send files there"


class SourceNotGranted(DomainError):
    """The operator, or the project's `read_from`, does not allow an export or a batch to read from this source."""

    code, status, title = "source_not_granted", 403, "The project may not read there"


class TokenRefused(DomainError):
    code, status, title = "token_refused", 401, "The enrolment token is not valid"


class IdentityRefused(DomainError):
    code, status, title = "identity_refused", 401, "The AWS identity is not accepted"


class AgentExists(DomainError):
    code, status, title = "agent_exists", 409, "An agent with this id already exists"


class AgentRemoved(DomainError):
    code, status, title = "agent_removed", 403, "The host was deleted or replaced"


class AgentDuplicate(DomainError):
    code, status, title = "agent_duplicate", 409, "Another host uses this agent id"


class RecordNotFound(DomainError):
    code, status, title = "not_found", 404, "Not found"


class RouteNotFound(DomainError):
    code, status, title = "route_not_found", 404, "No such route"


class MethodNotAllowed(DomainError):
    code, status, title = "method_not_allowed", 405, "The route does not accept this method"


class FileNotFound(DomainError):
    code, status, title = "file_not_found", 404, "No stored file has this signature"


class WrongState(DomainError):
    code, status, title = "wrong_state", 409, "Not allowed in the current state of the record"


class NewerJob(DomainError):
    code, status, title = "newer_job", 409, "Newer content was sent to the same path"


class PathTaken(DomainError):
    """A release already uses the path on a host."""

    code, status, title = "path_taken", 409, "A release has this path"


class HookNotAllowed(DomainError):
    code, status, title = "hook_not_allowed", 409, "A host does not allow the hook or the check"


class InUse(DomainError):
    code, status, title = "in_use", 409, "The record is still in use"


class ProjectExists(DomainError):
    code, status, title = "project_exists", 409, "A project with this name already exists"


class IdempotencyConflict(DomainError):
    code, status, title = "idempotency_conflict", 409, "The Idempotency-Key was used with another request"


class AlreadyCreated(DomainError):
    """The request is a repeat, and its first answer cannot be given again.

    The first answer had a secret, which is not stored, or it was lost and can no longer be made. This error has
    `created_ids`.
    """

    code, status, title = "already_created", 409, "Created by an earlier request, whose answer is not shown again"

    def __init__(self, detail: str = "", *, created_ids: Mapping[str, str]) -> None:
        super().__init__(detail)
        self.created_ids = dict(created_ids)


class IdempotencyInProgress(DomainError):
    code, status, title = "idempotency_in_progress", 409, "The first request with this Idempotency-Key is still running"


class BodyTooLarge(DomainError):
    code, status, title = "body_too_large", 413, "The body is larger than 1 MiB"


class QuotaExceeded(DomainError):
    code, status, title = "quota_exceeded", 429, "A quota of the project is used up"

    @classmethod
    def for_limit(cls, name: str, limit: int | None, retry_after: float) -> QuotaExceeded:
        """Returns the error for one quota. Only an error for the quota `queued` is retryable.

        Such a retry can succeed, because waiting requests leave the queue by themselves.
        """
        error = cls(
            f"the project's quota {name} is {limit}: try later, or ask an admin to raise it", retry_after=retry_after
        )
        error.retryable = name == "queued"
        return error


class RateLimited(DomainError):
    code, status, title = "rate_limited", 429, "Too many requests"


class Invalid(DomainError):
    code, status, title = "invalid", 422, "The request is not valid"


class SignatureMismatch(DomainError):
    code, status, title = "signature_mismatch", 422, "The content does not match its announced size or SHA-256"


class UrlNotAllowed(DomainError):
    code, status, title = "url_not_allowed", 422, "The URL is not allowed"


class BadTable(DomainError):
    code, status, title = "bad_table", 422, "The template or the rows are not valid"


class BadArchive(DomainError):
    code, status, title = "bad_archive", 422, "The archive cannot be extracted"


class NotReady(DomainError):
    code, status, title = "not_ready", 409, "The file is not ready yet"


class Expired(DomainError):
    code, status, title = "expired", 410, "The file has expired"


class UseAsync(DomainError):
    code, status, title = "use_async", 413, "Too large or too slow for a synchronous download"


# --- errors of remote servers: distinguished by class, never by message


class FetchError(DomainError):
    """A remote server refused the request, failed, or did not answer."""

    code, status, title = "fetch_failed", 502, "The request to the remote server failed"

    def __init__(
        self, detail: str = "", *, retry_after: float | None = None, upstream_status: int | None = None
    ) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.upstream_status = upstream_status


class FetchTimeout(FetchError):
    code, status, title, retryable = "fetch_timeout", 504, "The remote server took too long", True


class ConnectionFailed(FetchError):
    code, title, retryable = (
        "connection_failed",
        "The remote server could not be reached, or closed the connection",
        True,
    )


class TooManyRequests(FetchError):
    code, title, retryable = "upstream_too_many_requests", "The remote server answered 429", True


class ServiceUnavailable(FetchError):
    code, title, retryable = "upstream_unavailable", "The remote server answered 503", True


class UpstreamError(FetchError):
    code, title, retryable = "upstream_error", "The remote server failed", True


class BadRequest(FetchError):
    code, title = "upstream_bad_request", "The remote server answered 400"


class Unauthorized(FetchError):
    code, title = "upstream_unauthorized", "The remote server answered 401"


class Forbidden(FetchError):
    code, title = "upstream_forbidden", "The remote server answered 403"


class NotFound(FetchError):
    code, title = "upstream_not_found", "The remote server answered 404"


class Gone(FetchError):
    code, title = "upstream_gone", "The remote server answered 410"


class RequestRefused(FetchError):
    code, title = "upstream_refused", "The remote server refused the request"


class RedirectRefused(FetchError):
    code, title = "redirect_refused", "The remote server's redirect is not followed"


class ContentTooLarge(FetchError):
    code, title = "content_too_large", "The remote server's answer is too large"


class NotSent(FetchError):
    """Tidegate did not send the request, because of a limit of its own. The remote server did not fail."""

    code, status, title, retryable = "not_sent", 503, "The request was not sent to the remote server yet", True


class SourceBroken(DomainError):
    """A source answered, but not in the documented format."""

    code, status, title = "source_broken", 502, "The answer of the source cannot be used"


# --- errors of transfer providers


class NotAccepted(DomainError):
    """The provider certainly did not accept the transfer, and may accept it later."""

    code, status, title, retryable = "transfer_not_accepted", 502, "The provider did not accept the transfer", True


class WaveFailed(DomainError):
    """Too many targets of a wave failed, so the Job stops."""

    code, status, title = "wave_failed", 502, "Too many targets of a wave failed"


class TransferRefused(DomainError):
    code, status, title = "transfer_refused", 502, "The provider refused the transfer"


class AnswerLost(DomainError):
    """The provider may have accepted the transfer. Sending it again could start a second one."""

    code, status, title = "transfer_answer_lost", 502, "The provider's answer was lost"


# --- conflicts, throttling and leases


class Conflict(DomainError):
    """The condition of a write was not met."""

    code, status, title = "conflict", 409, "The record was changed by another request"


class Busy(DomainError):
    code, status, title, retryable = "busy", 503, "Try again in a moment", True


class Frozen(DomainError):
    """An operator has frozen the system.

    Work that the freeze interrupts goes back to the queue and uses up no retry.
    """

    code, status, title, retryable, put_off = "frozen", 503, "The system is frozen", True, True


class LeaseLost(DomainError):
    code, status, title = "lease_lost", 409, "Another owner holds the lease"


# --- reasons why a queued request failed


class RequestTimedOut(DomainError):
    code, status, title, retryable = "request_timeout", 504, "The request ran longer than its type allows", True


class WorkerLost(DomainError):
    code, status, title, retryable = "worker_lost", 500, "The function that ran the request died", True


class NoSpace(DomainError):
    code, status, title = "no_space", 507, "The content exceeds the project's storage quota"


class CredentialMissing(DomainError):
    code, status, title = "credential_missing", 422, "No credential has this name"


class CredentialUnbound(DomainError):
    code, status, title = "credential_without_origins", 422, "The credential has no origins"


class CredentialElsewhere(DomainError):
    code, status, title = "credential_not_for_origin", 422, "The credential is not for this URL's origin"


# --- reasons why a batch was refused or stopped


class BusinessRefused(DomainError):
    code, status, title = "business_refused", 422, "The business refused the batch"


class WrongAuthCode(DomainError):
    code, status, title = "wrong_auth_code", 403, "Wrong auth_code"


class BatchStopped(DomainError):
    code, status, title = "batch_stopped", 409, "The batch stopped before it was finished"
