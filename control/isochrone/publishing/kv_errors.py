"""What can go wrong with Workers KV, as one typed family: one sentence each, mapped from the SDK at the rim."""

from __future__ import annotations

import errno
import os
import socket
import ssl

import cloudflare
import httpx

#: Cloudflare's error codes, from the API's own answers
KEY_NOT_FOUND = 10009
NAMESPACE_NOT_FOUND = 10013
_NAMESPACE = {
    NAMESPACE_NOT_FOUND,
    10011,
    7003,
    7000,
}  # 7003 and 7000: no such account or malformed id in the path
#: what the operating system says of a connection, as it is
_SAID = {
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ENETDOWN,
    errno.EACCES,
    errno.EPERM,
    errno.EMFILE,
    errno.EADDRNOTAVAIL,
}
_TOKEN = {1000, 6003, 6111, 9106, 9109, 9103, 10001}  # refused or malformed credentials, whatever the status


class KvError(Exception):
    """Base of the family."""

    #: a stable word for it, in `/status` and metrics
    code = "error"
    #: a pause may mend it without anybody doing something
    temporary = False


class KvUnreachableError(KvError):
    """No answer, a broken one, or an error of the API's own (5xx)."""

    code = "unreachable"
    temporary = True

    def __init__(self, host: str, why: str) -> None:
        self.host = host
        self.why = why
        super().__init__(f"KV is not reachable at {host} ({why}); check the network and kv.base_url")


class KvTokenError(KvError):
    """401 or 403."""

    code = "token_refused"

    def __init__(self, token_env: str, why: str) -> None:
        self.token_env = token_env
        super().__init__(
            f"the KV API refused the token in {token_env} ({why}); give it the permission Workers KV Storage: Edit for this account"
        )


class KvNamespaceError(KvError):
    """The namespace or its account is not there."""

    code = "namespace_missing"

    def __init__(self, namespace_id: str, account_id: str, why: str) -> None:
        self.namespace_id = namespace_id
        self.account_id = account_id
        super().__init__(
            f"there is no KV namespace {namespace_id} in account {account_id} ({why}); check kv.namespace_id and kv.account_id"
        )


class KvRateError(KvError):
    """429: more than one write a second to a key, or more than 1,200 requests in five minutes."""

    code = "rate_limited"
    temporary = True

    def __init__(self, subject: str, retry_after: float | None) -> None:
        self.subject = subject
        self.retry_after = retry_after  # seconds
        wait = f"in {retry_after:.0f} s" if retry_after is not None else "later"
        super().__init__(f"the KV API limits the rate of requests for {subject}; try again {wait}")


class KvSizeError(KvError):
    """The value or key does not fit KV."""

    code = "too_large"

    def __init__(self, key: str, size: int, limit: int, what: str = "value") -> None:
        self.key = key
        self.size = size
        super().__init__(
            f"the {what} for {key[:80]} has {size:,} bytes and KV takes {limit:,}; build a smaller map"
        )


class KvReadBackError(KvError):
    """What was written is not what is read."""

    code = "read_back_differs"
    temporary = True

    def __init__(self, key: str, written: int, read: int | None) -> None:
        self.key = key
        found = (
            "nothing" if read is None else f"{read:,} other bytes" if read == written else f"{read:,} bytes"
        )
        super().__init__(f"{key} was written with {written:,} bytes and reads back {found}")


class KvAnswerError(KvError):
    """Any other answer."""

    def __init__(self, subject: str, status: int, why: str) -> None:
        self.status = status
        super().__init__(
            f"the KV API answered {status} for {subject} ({why}); check kv.base_url and the ids in [kv]"
        )


def mapped(
    error: cloudflare.APIError, *, subject: str, host: str, token_env: str, namespace_id: str, account_id: str
) -> KvError:
    """The SDK's error as one of the family."""
    if isinstance(error, cloudflare.APIStatusError):
        status = error.status_code
        codes = {int(item.code) for item in error.errors or () if item.code is not None}
        why = _why(error)
        if status == 429:
            return KvRateError(subject, retry_after(error.response))
        if status == 413:
            return KvAnswerError(subject, status, why)
        if status in {401, 403} or codes & _TOKEN:
            return KvTokenError(token_env, why)
        if codes & _NAMESPACE:
            return KvNamespaceError(namespace_id, account_id, why)
        if status >= 500:
            return KvUnreachableError(host, f"it answered {status}")
        return KvAnswerError(subject, status, why)
    if isinstance(error, cloudflare.APIResponseValidationError):
        return KvAnswerError(subject, error.status_code, "not an answer of the KV API")
    return KvUnreachableError(host, why_unreachable(error))


def why_unreachable(error: BaseException) -> str:
    """Why there is no connection or no whole answer, from the operating system's error below those of the libraries.

    The HTTP transport takes some errors of the connection for a time that ran out, so the error's own class says little.
    """
    last, timed_out = error, False
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        if isinstance(at, ssl.SSLError):
            return _short(f"TLS: {getattr(at, 'verify_message', '') or at.reason or 'handshake failed'}")
        if isinstance(at, ConnectionRefusedError) or getattr(at, "errno", None) == errno.ECONNREFUSED:
            return "connection refused"
        if isinstance(at, ConnectionResetError | BrokenPipeError):
            return "connection reset"
        if isinstance(at, socket.gaierror):
            return "there is no such host"
        if isinstance(at, OSError) and at.errno in _SAID:
            return os.strerror(at.errno).lower()
        timed_out |= isinstance(at, TimeoutError | httpx.TimeoutException | cloudflare.APITimeoutError)
        last, at = at, at.__cause__ or at.__context__
    if timed_out:
        return "no answer in time"
    return _short(str(last)) or "connection failed"


def is_missing_key(error: cloudflare.APIError) -> bool:
    """Whether this says only that the key is absent."""
    return isinstance(error, cloudflare.NotFoundError) and any(
        item.code == KEY_NOT_FOUND for item in error.errors or ()
    )


def retry_after(response: httpx.Response) -> float | None:
    """Seconds from Retry-After when it is a number (RFC 9110 section 10.2.3); a date is left to the caller's own pause."""
    try:
        return max(0.0, float(response.headers.get("retry-after", "")))
    except ValueError:
        return None


def _why(error: cloudflare.APIStatusError) -> str:
    first = next(iter(error.errors or ()), None)
    if first is not None and first.message:
        return _short(f"{error.status_code}, {first.code}: {first.message}")
    return f"{error.status_code} {error.response.reason_phrase}".strip()


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else line[:157] + "..."
