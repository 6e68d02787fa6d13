"""Error codes of QUIC, TLS and HTTP/3 in words. Pure.

A CONNECTION_CLOSE frame of type 0x1c carries QUIC's codes (RFC 9000 section 20.1), TLS alerts among them as 0x0100 to 0x01ff (RFC
9001 section 4.8); one of type 0x1d, RESET_STREAM and STOP_SENDING carry HTTP/3's (RFC 9114 section 8.1, RFC 9204 section 6). The
ranges overlap, so the kind of frame must be known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isochrone.probing.quic_link import LinkClosed

INVALID_TOKEN = 0x0B
CRYPTO_ERROR = 0x100
NO_APPLICATION_PROTOCOL = CRYPTO_ERROR + 120

#: RFC 9000 section 20.1, RFC 9368 section 8.3
TRANSPORT = {
    0x00: "NO_ERROR", 0x01: "INTERNAL_ERROR", 0x02: "CONNECTION_REFUSED", 0x03: "FLOW_CONTROL_ERROR", 0x04: "STREAM_LIMIT_ERROR",
    0x05: "STREAM_STATE_ERROR", 0x06: "FINAL_SIZE_ERROR", 0x07: "FRAME_ENCODING_ERROR", 0x08: "TRANSPORT_PARAMETER_ERROR",
    0x09: "CONNECTION_ID_LIMIT_ERROR", 0x0A: "PROTOCOL_VIOLATION", 0x0B: "INVALID_TOKEN", 0x0C: "APPLICATION_ERROR",
    0x0D: "CRYPTO_BUFFER_EXCEEDED", 0x0E: "KEY_UPDATE_ERROR", 0x0F: "AEAD_LIMIT_REACHED", 0x10: "NO_VIABLE_PATH",
    0x11: "VERSION_NEGOTIATION_ERROR",
}  # fmt: skip

#: RFC 8446 section 6, RFC 7301 section 3.2
ALERTS = {
    0: "close_notify", 10: "unexpected_message", 20: "bad_record_mac", 22: "record_overflow", 40: "handshake_failure",
    42: "bad_certificate", 43: "unsupported_certificate", 44: "certificate_revoked", 45: "certificate_expired",
    46: "certificate_unknown", 47: "illegal_parameter", 48: "unknown_ca", 49: "access_denied", 50: "decode_error",
    51: "decrypt_error", 70: "protocol_version", 71: "insufficient_security", 80: "internal_error", 86: "inappropriate_fallback",
    90: "user_canceled", 109: "missing_extension", 110: "unsupported_extension", 112: "unrecognized_name",
    113: "bad_certificate_status_response", 115: "unknown_psk_identity", 116: "certificate_required",
    120: "no_application_protocol",
}  # fmt: skip

#: RFC 9114 section 8.1, RFC 9204 section 6, RFC 9297 section 5.2
HTTP3 = {
    0x33: "H3_DATAGRAM_ERROR", 0x100: "H3_NO_ERROR", 0x101: "H3_GENERAL_PROTOCOL_ERROR", 0x102: "H3_INTERNAL_ERROR",
    0x103: "H3_STREAM_CREATION_ERROR", 0x104: "H3_CLOSED_CRITICAL_STREAM", 0x105: "H3_FRAME_UNEXPECTED", 0x106: "H3_FRAME_ERROR",
    0x107: "H3_EXCESSIVE_LOAD", 0x108: "H3_ID_ERROR", 0x109: "H3_SETTINGS_ERROR", 0x10A: "H3_MISSING_SETTINGS",
    0x10B: "H3_REQUEST_REJECTED", 0x10C: "H3_REQUEST_CANCELLED", 0x10D: "H3_REQUEST_INCOMPLETE", 0x10E: "H3_MESSAGE_ERROR",
    0x10F: "H3_CONNECT_ERROR", 0x110: "H3_VERSION_FALLBACK", 0x200: "QPACK_DECOMPRESSION_FAILED",
    0x201: "QPACK_ENCODER_STREAM_ERROR", 0x202: "QPACK_DECODER_STREAM_ERROR",
}  # fmt: skip
VERSION_FALLBACK = 0x110


def transport_code(code: int) -> str:
    """A code of QUIC's own, e.g. `0x178 (TLS alert no_application_protocol)`."""
    if CRYPTO_ERROR <= code < CRYPTO_ERROR + 0x100:
        alert = code - CRYPTO_ERROR
        return f"0x{code:x} (TLS alert {ALERTS.get(alert, alert)})"
    return _named(code, TRANSPORT)


def http3_code(code: int) -> str:
    """A code of HTTP/3's, e.g. `0x10b (H3_REQUEST_REJECTED)`; reserved ones mean nothing (RFC 9114 section 8.1)."""
    if code >= 0x21 and (code - 0x21) % 0x1F == 0:
        return f"0x{code:x} (reserved: no error)"
    return _named(code, HTTP3)


def closed_in_words(closed: LinkClosed) -> str:
    """Why a connection ended: the code's name and what the peer said."""
    if closed.error_code is None:
        return str(closed) or "no reason given"
    code = http3_code(closed.error_code) if closed.application else transport_code(closed.error_code)
    return f"error {code}" + (f": {closed}" if str(closed) else "")


def _named(code: int, names: dict[int, str]) -> str:
    return f"0x{code:x} ({names[code]})" if code in names else f"0x{code:x}"
