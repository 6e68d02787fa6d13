"""isochrone.toml -> Settings. Every problem is found and told at once; nothing starts on a half-right file."""

from __future__ import annotations

import difflib
import ipaddress
import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from isochrone.checks import (
    Problems,
    authority,
    header_name,
    host_name,
    http_url,
    ip_address,
    listen_address,
    read_toml,
    region_id,
    request_path,
    same_authority,
    tell,
)
from isochrone.model import AltSvcEndpoint, Method, Origin, Target
from isochrone.nameserver import NameServer, parse

if TYPE_CHECKING:
    from collections.abc import Mapping


def expiry(value: object) -> object:
    """The Unix time of a TOML date-time (UTC when it names no zone), or of the end of a TOML date's day in UTC."""
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp() + 86_400
    raise ValueError(
        f"{value!r} is not a date: write expires = 2027-01-31 or 2027-01-31T12:00:00Z, without quotes"
    )


def resolver(value: object) -> object:
    """A DNS server that resolves, as nameserver.py writes it down."""
    return parse(value) if isinstance(value, str) else value


def authoritative(value: object) -> object:
    """A DNS server that answers from its own zone."""
    return parse(value, authoritative=True) if isinstance(value, str) else value


def network(value: str) -> str:
    """An IPv4 or IPv6 network."""
    try:
        return str(ipaddress.ip_network(value, strict=False))
    except ValueError:
        raise ValueError(f"{value!r} is not a network; write it as 203.0.113.0/24") from None


def distinct(values: tuple[Method, ...]) -> tuple[Method, ...]:
    """Each once."""
    twice = [value for place, value in enumerate(values) if value in values[:place]]
    if twice:
        raise ValueError(f"{twice[0]!r} is named twice")
    return values


def as_written(value: object, info: ValidationInfo) -> object:
    """What a typed document holds must be of the right type by itself; a CSV file has text only, which is read.

    Truth values are numbers nowhere, although Python takes them for such.
    """
    wanted = "true or false" if info.field_name == "draining" else "a number"
    if isinstance(value, bool) != (wanted != "a number") and (
        isinstance(value, bool) or (info.context or {}).get("typed")
    ):
        raise ValueError(
            f"must be {wanted} (it is {str(value).lower() if isinstance(value, bool) else repr(value)})"
        )
    if wanted == "a number" and isinstance(value, str) and (info.context or {}).get("typed"):
        raise ValueError(f"must be a number, without quotes (it is {value!r})")
    return value


ASN_MAX = 4_294_967_294

# TOML has types: "8.68" and true are no numbers, while 50 is as good as 50.0.
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Whole = Annotated[int, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Seconds = Annotated[float, Field(gt=0, le=1_000_000_000, strict=True, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1_000_000, strict=True, allow_inf_nan=False)]  # a second
Network = Annotated[str, AfterValidator(network)]
Host = Annotated[str, AfterValidator(host_name)]
Authority = Annotated[str, AfterValidator(authority)]
Address = Annotated[str, AfterValidator(ip_address)]
RegionId = Annotated[str, AfterValidator(region_id)]
Latitude = Annotated[float, BeforeValidator(as_written), Field(ge=-90, le=90, allow_inf_nan=False)]
Longitude = Annotated[float, BeforeValidator(as_written), Field(ge=-180, le=180, allow_inf_nan=False)]
Expiry = Annotated[float, BeforeValidator(expiry)]
Resolver = Annotated[NameServer, BeforeValidator(resolver)]
Authoritative = Annotated[NameServer, BeforeValidator(authoritative)]


def is_local(url: str) -> bool:
    """Whether a URL's host is this machine's loopback."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Section(BaseModel):
    """Keys that nobody knows are errors: a mistyped key must not silently mean its default."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OriginSettings(Section):
    """One `[[origins]]` entry."""

    id: RegionId
    host: Authority
    latitude: Latitude
    longitude: Longitude
    weight: Annotated[float, BeforeValidator(as_written)] = Field(1.0, gt=0, le=1000, allow_inf_nan=False)
    alt_svc: Authority | None = None  # the affinity endpoint's authority; offered once it is proved
    addresses: tuple[Address, ...] = ()
    source_address: Address | None = None
    draining: Annotated[bool, BeforeValidator(as_written)] = False
    asn: Whole | None = Field(None, ge=1, le=ASN_MAX)  # whose network its addresses must be in
    country: str = Field("", pattern=r"^([A-Z]{2})?$")  # where they must be


class TargetSettings(Section):
    """One `[[targets]]` entry; `asn` may be left to the ASN database."""

    address: Address
    port: Whole = Field(443, ge=1, le=65535)
    asn: Whole | None = Field(None, ge=1, le=ASN_MAX)
    country: str = Field("", pattern=r"^([A-Z]{2})?$")
    colo: str = Field("", pattern=r"^([A-Z]{3})?$")
    continent: str = Field("", pattern=r"^(AF|AN|AS|EU|NA|OC|SA)?$")
    latitude: Latitude | None = None
    longitude: Longitude | None = None


def hashes(value: object) -> object:
    """One SHA-256 or a list of them."""
    return [value] if isinstance(value, str) else value


def sha256(value: str) -> str:
    """A SHA-256 as 64 hexadecimal digits."""
    text = value.lower()
    if len(text) != 64 or not all(digit in "0123456789abcdef" for digit in text):
        raise ValueError(
            "is not a SHA-256 of 64 hexadecimal digits; `isochrone agent --new-token` prints a token and this"
        )
    return text


class RemoteAgent(Section):
    """One `[[agents]]` entry: somebody else than this daemon measures for the origin."""

    origin: RegionId
    # Of the token, which is never in a file. Two while one takes the other's place.
    token_sha256: Annotated[
        tuple[Annotated[str, AfterValidator(sha256)], ...],
        BeforeValidator(hashes),
        Field(min_length=1, max_length=4),
    ]


class Probing(Section):
    """How and how often round-trip times are measured."""

    # Each target is measured by each of them.
    methods: Annotated[tuple[Method, ...], AfterValidator(distinct)] = Field(("quic",), min_length=1)
    interval_seconds: Seconds = 300
    timeout_seconds: Seconds = 3
    concurrency: Whole = Field(32, ge=1, le=10_000)
    # Caps, each a token bucket of `burst` probes at once and `rate` a second: of one agent, of one target network, of one target.
    agent_rate: Rate = 500
    agent_burst: Whole = Field(20, ge=1, le=10_000)
    network_rate: Rate = 10
    network_burst: Whole = Field(10, ge=1, le=10_000)
    network_by: Literal["prefix", "asn"] = "prefix"  # a /24 or /48, or all of an ASN
    target_rate: Rate = 1
    target_burst: Whole = Field(2, ge=1, le=100)
    never_probe: tuple[Network, ...] = ()  # whose owners want to be left alone
    lab: Flag = False  # private, loopback and other special-purpose addresses may be probed
    targets_per_asn: Whole = Field(
        16, ge=1, le=10_000
    )  # probed in every round, spread over countries and networks
    asn_database: Path | None = None  # MaxMind format
    country_database: Path | None = None


class Estimation(Section):
    """Samples -> estimates."""

    quantile: Number = Field(0.25, gt=0, lt=1)  # Calder, IMC'15: medians or 25th percentiles predict best
    window_seconds: Seconds = 86_400
    min_samples: Whole = Field(3, ge=1)
    interval_seconds: Seconds = 300  # how often the map is built anew


class Steering(Section):
    """Estimates -> map."""

    max_candidates: Whole = Field(6, ge=1, le=256)
    # Round-trip times that differ by less than this, or by less than this share of themselves, are alike: their cells may
    # share a colour. It never changes who is first.
    tolerance_ms: Number = Field(2.0, ge=0)
    tolerance_share: Number = Field(0.05, ge=0, lt=1)
    threshold_ms: Number = Field(2.0, ge=0)  # a first choice changes only for a gain larger than this


class OverrideSettings(Section):
    """One `[[overrides]]` entry: until it expires, a cell's first choice is this origin, whatever was measured.

    The cell is an ASN (with its finer cells), an ASN in a country, a country, a colo or a continent.
    """

    asn: Whole | None = Field(None, ge=1, le=ASN_MAX)
    country: str | None = Field(None, pattern=r"^[A-Z]{2}$")
    colo: str | None = Field(None, pattern=r"^[A-Z]{3}$")
    continent: str | None = Field(None, pattern=r"^(AF|AN|AS|EU|NA|OC|SA)$")
    origin: RegionId
    reason: str = Field(min_length=1)
    expires: Expiry  # Unix seconds

    @model_validator(mode="after")
    def _one_cell(self) -> Self:
        named = tuple(
            key for key in ("asn", "country", "colo", "continent") if getattr(self, key) is not None
        )
        if named not in {("asn",), ("asn", "country"), ("country",), ("colo",), ("continent",)}:
            raise ValueError(
                f"{' and '.join(named) or 'nothing'} names no cell: give asn, asn and country, country, colo or continent"
            )
        return self


class Kv(Section):
    """Where the map is published. `base_url` is for a local API; the token comes from the environment."""

    account_id: str = Field(min_length=1)
    namespace_id: str = Field(min_length=1)
    token_env: str = "CLOUDFLARE_API_TOKEN"  # noqa: S105  the variable's name, not its value
    base_url: Annotated[str, AfterValidator(http_url)] | None = None
    timeout_seconds: Seconds = 20  # for one request, its answer read to the end

    @model_validator(mode="after")
    def _not_in_clear(self) -> Self:
        if self.base_url and self.base_url.startswith("http:") and not is_local(self.base_url):
            raise ValueError(f"base_url: {self.base_url!r} would send the token in clear; use https")
        return self


class Publishing(Section):
    """The guard in front of KV, and what stays there."""

    max_moved_share: Number = Field(0.3, gt=0, le=1)  # a map that moves more of the weight is refused
    refresh_seconds: Seconds = 3600  # a map whose routing is the same is published again after this long
    keep_maps: Whole = Field(5, ge=2, le=1000)  # the live one among them
    check_seconds: Seconds = 60  # how often the daemon reads back what is live


class AltSvc(Section):
    """What clients are promised."""

    enabled: Flag = True
    max_age_seconds: Whole = Field(300, ge=1, le=86_400)  # a pinned client bypasses the Worker for this long


class Verification(Section):
    """How the promise is proved: HTTP/3 of affinity endpoints, and whether origins answer at all."""

    interval_seconds: Seconds = 30
    timeout_seconds: Seconds = 5
    path: Annotated[str, AfterValidator(request_path)] = "/healthz"
    region_header: Annotated[str, AfterValidator(header_name)] = (
        "x-isochrone-region"  # the origin names itself in it
    )
    # The member of a JSON health document that names the region, in place of the header field.
    region_member: str = Field("", max_length=200)
    trust_store: Path | None = None  # PEM; the system's when not given
    connections: Whole = Field(5, ge=1, le=100)  # in a row, to each address, by the thorough check
    deep_interval_seconds: Seconds = 300  # between the daemon's thorough checks of an endpoint
    slow_ms: Number = Field(1000, gt=0)  # a median handshake above is told
    fall: Whole = Field(3, ge=1)
    rise: Whole = Field(5, ge=1)


class Dns(Section):
    """How regional names are proved: whom to ask, for whom, and what an answer must look like."""

    resolvers: tuple[Resolver, ...] = ()  # whose clients matter; the system's when none is given
    authoritative: tuple[Authoritative, ...] = ()  # instead of those that NS records name
    client_subnets: tuple[Network, ...] = ()  # networks to ask for by EDNS client subnet (RFC 7871)
    ttl_min_seconds: Whole = Field(20, ge=0, le=604_800)  # pre-resolution is worth nothing below
    ttl_max_seconds: Whole = Field(86_400, ge=1, le=2_147_483_647)  # a withdrawal reaches nobody sooner
    timeout_seconds: Seconds = 3  # for one question, repeats and a change to TCP included
    slow_ms: Number = Field(1000, gt=0)  # a server whose median is above is told
    interval_seconds: Seconds = 60
    trust_anchor: Path | None = None  # DS or DNSKEY records in zone file format
    trust_store: Path | None = None  # PEM, for DNS over TLS and HTTPS; the system's when not given
    # Names under these choose a region by themselves; those of the large providers are known anyway.
    balancer_suffixes: tuple[Host, ...] = ()

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.ttl_min_seconds > self.ttl_max_seconds:
            raise ValueError("ttl_min_seconds is above ttl_max_seconds")
        return self


class Edge(Section):
    """How the site itself is proved, as a client sees it."""

    port: Whole = Field(443, ge=1, le=65_535)
    addresses: tuple[Address, ...] = ()  # of the site, in place of DNS
    secret_env: str = Field("ISOCHRONE_SECRET", min_length=1)  # names what opens /.isochrone/*
    timeout_seconds: Seconds = 10  # for one request, with resolving and connecting
    lag_seconds: Seconds = 180  # within which every isolate must use the map that was published last
    max_skew_seconds: Seconds = 10  # between the edge's clock and this host's
    interval_seconds: Seconds = 60  # between the daemon's rounds


class Service(Section):
    """The daemon itself."""

    state_dir: Path = Path("state")
    listen: Annotated[str, AfterValidator(listen_address)] = "127.0.0.1:9475"
    # Where remote agents are answered, and nothing else; on `listen` when this is not given, e.g. behind a proxy.
    agents_listen: Annotated[str, AfterValidator(listen_address)] | None = None
    certificate: Path | None = None  # PEM, the chain; with it agents_listen speaks TLS
    key: Path | None = None  # PEM


class Settings(Section):
    """The whole of isochrone.toml."""

    site: Host  # the public host name that clients ask for
    origins: tuple[OriginSettings, ...] = Field(min_length=1, max_length=256)
    targets: tuple[TargetSettings, ...] = ()
    targets_file: Path | None = None
    agents: tuple[RemoteAgent, ...] = Field((), max_length=256)
    probing: Probing = Probing()
    estimation: Estimation = Estimation()
    steering: Steering = Steering()
    overrides: tuple[OverrideSettings, ...] = ()
    kv: Kv | None = None
    publishing: Publishing = Publishing()
    alt_svc: AltSvc = AltSvc()
    verification: Verification = Verification()
    dns: Dns = Dns()
    edge: Edge = Edge()
    service: Service = Service()

    @property
    def checks_dns(self) -> bool:
        """Whether the daemon proves the regional names too: it does where the file has a `[dns]` section, be it empty."""
        return "dns" in self.model_fields_set

    @property
    def checks_edge(self) -> bool:
        """Whether the daemon checks the site as clients see it: it does where the file has an `[edge]` section."""
        return "edge" in self.model_fields_set

    def model_origins(self) -> tuple[Origin, ...]:
        """The origins as the model's nouns."""
        return tuple(
            Origin(
                id=o.id, host=o.host, latitude=o.latitude, longitude=o.longitude, weight=o.weight,
                alt_svc=AltSvcEndpoint(o.alt_svc, self.alt_svc.max_age_seconds) if o.alt_svc and self.alt_svc.enabled else None,
                addresses=o.addresses, source_address=o.source_address, draining=o.draining,
            )
            for o in self.origins
        )  # fmt: skip

    def model_targets(self) -> tuple[Target, ...]:
        """The targets of the file itself; those without an ASN have 0 until the ASN database gives it."""
        return tuple(
            Target(t.address, t.port, t.asn or 0, t.country, t.colo, t.continent, t.latitude, t.longitude)
            for t in self.targets
        )


class SettingsError(Exception):
    """The file can't be used. `problems` holds one sentence for each thing that is wrong with it."""

    def __init__(self, path: str | Path, problems: list[str]) -> None:
        self.path = str(path)
        self.problems = problems
        super().__init__("\n".join(f"{self.path}: {problem}" for problem in problems))


def load(path: str | Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings in `path`; relative paths in it are taken from its folder.

    Raises:
        SettingsError: with every problem of the file, of what it names and of the environment.
    """
    path = Path(path)
    problems: Problems = []
    document = read_toml(path, problems)
    settings: Settings | None = None
    if document is not None:
        try:
            settings = Settings.model_validate(_rooted(document, path.parent), context={"typed": True})
        except ValidationError as error:
            problems += tell(error, Settings)
        problems += _across(document, environ)
    if problems or settings is None:
        raise SettingsError(path, problems)
    return settings


def _rooted(document: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Relative paths made relative to the configuration's folder."""
    for section, key in (
        ("probing", "asn_database"), ("probing", "country_database"), ("verification", "trust_store"),
        ("dns", "trust_anchor"), ("dns", "trust_store"), ("service", "state_dir"), (None, "targets_file"),
        ("service", "certificate"), ("service", "key"),
    ):  # fmt: skip
        table = document if section is None else document.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str):
            table[key] = str(folder / table[key])
    document.setdefault("service", {}) if isinstance(document.get("service", {}), dict) else None
    if isinstance(document.get("service"), dict):
        document["service"].setdefault("state_dir", str(folder / "state"))
    return document


def is_unusable_asn(asn: int) -> bool:
    """Whether samples of this ASN are set aside: reserved, and not for private use either."""
    from isochrone.estimation.samples import PRIVATE_ASNS, RESERVED_ASNS

    return any(first <= asn <= last for first, last in RESERVED_ASNS) and not any(
        first <= asn <= last for first, last in PRIVATE_ASNS
    )


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # a name that is too long, a folder that may not be searched
        return False


def _across(document: dict[str, Any], environ: Mapping[str, str]) -> Problems:
    """What no single value shows. Works on the raw document, so that it is told beside all else that is wrong."""
    problems: Problems = []
    origins = document.get("origins")
    entries = [o for o in origins if isinstance(o, dict)] if isinstance(origins, list) else []
    for key, what in (("id", "id"), ("host", "host"), ("alt_svc", "affinity endpoint")):
        seen: dict[str, int] = {}
        for index, entry in enumerate(entries):
            value = entry.get(key)
            same = same_authority(value) if isinstance(value, str) and key != "id" else value
            if isinstance(same, str) and same in seen:
                problems.append(
                    f"origins[{index}].{key}: {value!r} is already the {what} of origins[{seen[same]}]; give each origin its own"
                )
            elif isinstance(same, str):
                seen[same] = index
    targets = document.get("targets")
    for index, entry in enumerate(targets if isinstance(targets, list) else ()):
        asn = entry.get("asn") if isinstance(entry, dict) else None
        if (
            isinstance(asn, int)
            and not isinstance(asn, bool)
            and 1 <= asn <= ASN_MAX
            and is_unusable_asn(asn)
        ):
            problems.append(
                f"targets[{index}].asn: {asn} is reserved (documentation or special use), so nothing measured there would be used; "
                "give the network's own"
            )
    overrides = document.get("overrides")
    for index, entry in enumerate(overrides if isinstance(overrides, list) else ()):
        name, known = (
            entry.get("origin") if isinstance(entry, dict) else None,
            [str(o.get("id")) for o in entries],
        )
        if isinstance(name, str) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            problems.append(
                f"overrides[{index}].origin: there is no origin {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
    problems += _across_agents(document, [str(o.get("id")) for o in entries])
    kv = document.get("kv")
    if isinstance(kv, dict):
        variable = kv.get("token_env", Kv.model_fields["token_env"].default)
        if variable == "":
            problems.append("kv.token_env: is empty; name the environment variable that holds the API token")
        elif isinstance(variable, str) and not environ.get(variable):
            problems.append(
                f"kv.token_env: the environment variable {variable} is not set; put the API token in it"
            )
    for section, key in (("probing", "asn_database"), ("probing", "country_database"), ("verification", "trust_store"), ("dns", "trust_anchor"), ("dns", "trust_store"), ("service", "certificate"), ("service", "key"), (None, "targets_file")):  # fmt: skip
        table = document if section is None else document.get(section)
        value = table.get(key) if isinstance(table, dict) else None
        if isinstance(value, str) and not _is_file(value):
            where = f"{section}.{key}" if section else key
            problems.append(f"{where}: there is no file {value}")
    return problems


def _across_agents(document: dict[str, Any], origins: list[str]) -> Problems:
    problems: Problems = []
    agents = document.get("agents")
    whose: dict[str, int] = {}
    hashed: dict[str, int] = {}
    for index, entry in enumerate(agents if isinstance(agents, list) else ()):
        if not isinstance(entry, dict):
            continue
        name = entry.get("origin")
        if isinstance(name, str) and name not in origins:
            near = difflib.get_close_matches(name, origins, n=1)
            problems.append(
                f"agents[{index}].origin: there is no origin {name!r}"
                + (f"; did you mean {near[0]!r}?" if near else "")
            )
        elif isinstance(name, str) and whose.setdefault(name, index) != index:
            problems.append(
                f"agents[{index}].origin: {name!r} has an agent in agents[{whose[name]}] already; each origin has one"
            )
        tokens = hashes(entry.get("token_sha256"))
        for token in tokens if isinstance(tokens, list) else ():
            if isinstance(token, str) and hashed.setdefault(token.lower(), index) != index:
                problems.append(
                    f"agents[{index}].token_sha256: the token of agents[{hashed[token.lower()]}]; give each agent its own"
                )
    service = document.get("service")
    if isinstance(service, dict):
        if ("certificate" in service) != ("key" in service):
            problems.append("service.certificate, service.key: give both or none")
        elif "certificate" in service and "agents_listen" not in service:
            problems.append(
                "service.certificate: serves agents only; give agents_listen, the address on which they are answered"
            )
    return problems
