"""A batch as it travels and as it lies in the spool: gzip of JSON lines, first a header, then one line for each sample.

Reading is bounded in memory and takes nothing that is not exactly of this form; docs/AGENTS.md gives it for other languages.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

MAX_BODY_BYTES = 1 << 20  # as it travels
MAX_PLAIN_BYTES = 8 << 20  # unpacked
MAX_SAMPLES = 20_000  # of one batch

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Line(BaseModel):
    """Types as they stand: "1" and true are no numbers. Unknown keys are refused, or a mistyped one would mean nothing."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Header(Line):
    """The first line."""

    isochrone: int = Field(ge=1, le=1)  # the version of this form; Literal[1] would take true for 1
    batch: str = Field(pattern=r"^[0-9a-f]{32}$")  # the batch's id: 128 random bits
    origin: str = Field(min_length=1, max_length=64)
    plan: str = Field(pattern=r"^[0-9a-f]{64}$")  # the id of the plan by which was measured
    samples: int = Field(ge=1, le=MAX_SAMPLES)  # how many lines follow
    clock: str = Field("", max_length=100)  # the agent's own note; see clock.py


class Row(Line):
    """One sample's line."""

    at: Finite  # Unix seconds at which the probe began
    address: str = Field(max_length=45)
    port: int = Field(ge=1, le=65_535)
    method: str = Field(max_length=16)
    outcome: Literal["ok", "target_failed", "prober_failed"] = "ok"
    rtt_ms: Finite | None = None  # for ok, and only then


class Batch(NamedTuple):
    """A batch of the right form; whether it can be true is checks.py's question."""

    header: Header
    rows: list[Row]


class MalformedError(Exception):
    """Not a batch; the sentence says where it breaks off from the form. `too_large`: for its size alone."""

    def __init__(self, sentence: str, *, too_large: bool = False) -> None:
        super().__init__(sentence)
        self.too_large = too_large


def encode(header: Header, rows: list[Row]) -> bytes:
    """The body of a batch. `header.samples` must be the number of rows."""
    lines = [header.model_dump_json(exclude_defaults=True)]
    lines += [row.model_dump_json(exclude_defaults=True) for row in rows]
    # No time in gzip's header: the same batch is the same bytes.
    return gzip.compress("\n".join(lines).encode() + b"\n", compresslevel=6, mtime=0)


def decode(body: bytes) -> Batch:
    """The batch in a body.

    Raises:
        MalformedError: it is none.
    """
    header, lines = _open(body)
    rows = []
    for number, line in enumerate(lines, 2):
        try:
            rows.append(Row.model_validate_json(line))
        except ValidationError as error:
            raise MalformedError(f"line {number}: {_told(error)}") from None
    return Batch(header, rows)


def peek(body: bytes) -> Header:
    """The header of a body whose bytes are intact; its samples are counted and not read, which costs far less.

    Raises:
        MalformedError: it is no batch.
    """
    return _open(body)[0]


def _open(body: bytes) -> tuple[Header, list[bytes]]:
    if len(body) > MAX_BODY_BYTES:
        raise MalformedError(f"larger than {MAX_BODY_BYTES} bytes", too_large=True)
    plain = unpack(body)
    count = plain.count(b"\n")
    if count > MAX_SAMPLES + 1:  # before anything is made of the lines
        raise MalformedError(f"{count} lines; a batch has at most {MAX_SAMPLES} samples", too_large=True)
    if not plain.endswith(b"\n"):
        raise MalformedError("the last line is not ended; each line must end with a line feed")
    first, *rest = plain[:-1].split(b"\n")
    try:
        header = Header.model_validate_json(first)
    except ValidationError as error:
        raise MalformedError(f"line 1, the header: {_told(error)}") from None
    if header.samples != len(rest):
        raise MalformedError(f"the header promises {header.samples} samples and {len(rest)} lines follow")
    return header, rest


def unpack(body: bytes, most: int = MAX_PLAIN_BYTES) -> bytes:
    """The plain bytes of one gzip member (RFC 1952); never much more than `most` bytes are held in memory.

    Raises:
        MalformedError: it is no intact gzip member, something follows it, or it is too large.
    """
    unpacker = zlib.decompressobj(wbits=31)
    try:
        plain = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        raise MalformedError(f"not gzip ({error})") from None
    if len(plain) > most:
        raise MalformedError(f"larger than {most} bytes when unpacked", too_large=True)
    if not unpacker.eof:
        raise MalformedError("gzip that breaks off before its end")
    if unpacker.unused_data:
        raise MalformedError("something follows the end of the gzip member")
    return plain


def _told(error: ValidationError) -> str:
    """The first thing that is wrong, without what the sender wrote."""
    item = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part)[:40] for part in item["loc"])
    return f"{where}: {item['msg']}" if where else item["msg"]
