"""Why an endpoint could not be used."""

from __future__ import annotations


class ClientError(Exception):
    """The endpoint could not be used. `authority`: host:port; `phase`: alt_svc, resolve, handshake or request."""

    phase = "request"

    def __init__(self, authority: str, problem: str, *, own: bool = False) -> None:
        super().__init__(f"{authority}: {problem}")
        self.authority = authority
        self.problem = problem
        self.own = own  # this host could not try: nothing was learnt about the endpoint


class NoAlternativeError(ClientError):
    """The field offers no HTTP/3 alternative."""

    phase = "alt_svc"


class UnresolvedError(ClientError):
    """The host has no address that is known."""

    phase = "resolve"


class UnreachableError(ClientError):
    """No connection in time, or a refused one."""

    phase = "handshake"


class CertificateRefusedError(ClientError):
    """The certificate is not valid for the server name, has expired, or nobody trusted issued it."""

    phase = "handshake"


class HandshakeRefusedError(ClientError):
    """One side ended the handshake for another reason, such as no common ALPN."""

    phase = "handshake"


class RequestFailedError(ClientError):
    """The handshake was good, the request was not answered."""
