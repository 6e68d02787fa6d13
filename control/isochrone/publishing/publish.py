"""Carry out a plan: the map first, read back; the manifest last. A crash in between leaves the old manifest, and its map, valid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from isochrone.publishing.kv_errors import KvError
from isochrone.publishing.manifest import (
    MANIFEST_KEY,
    MAP_PREFIX,
    DamagedMapError,
    ManifestError,
    encode,
    map_key,
    parse,
    verified,
)
from isochrone.publishing.plan import Live, Plan, plan_rollback
from isochrone_edge.latency_map import LatencyMap, MapError


class Store(Protocol):
    """What publishing asks of KV."""

    async def get(self, key: str) -> bytes | None:
        """The value, None when absent."""

    async def put(self, key: str, value: bytes, *, read_back: bool = True) -> None:
        """Write, and read back unless told otherwise."""

    async def delete(self, keys: list[str]) -> None:
        """Delete keys; absent ones are no error."""

    async def keys(self, prefix: str) -> list[str]:
        """Names of keys in order."""


class PublishError(Exception):
    """A publish that could not be carried out; what was live stays live."""


class OutdatedPlanError(PublishError):
    """KV changed between the plan and its application."""

    def __init__(self, planned: str | None, found: str) -> None:
        self.planned = planned
        self.found = found
        super().__init__(
            f"the plan was made when {planned or 'nothing'} was live, and now {found} is: somebody else published; make the plan again"
        )


class UnknownVersionError(PublishError):
    """There is no such map to roll back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What was done."""

    version: str
    confirmed: (
        bool  # the manifest read back as written; else KV still serves the older one, as it may for a minute
    )
    deleted: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


async def look(kv: Store) -> Live:
    """What is live, with the map checked against its manifest.

    Raises:
        KvError: KV can't be read.
    """
    raw = await kv.get(MANIFEST_KEY)
    if raw is None:
        return Live()
    try:
        manifest = parse(raw)
    except ManifestError as error:
        return Live(raw=raw, damage=str(error))
    try:
        return Live(raw=raw, manifest=manifest, map=verified(manifest, await kv.get(manifest.key)))
    except DamagedMapError as error:
        return Live(raw=raw, manifest=manifest, damage=str(error))


async def apply(kv: Store, plan: Plan, *, keep: int) -> Published:
    """Make the plan's map live and delete maps that are no longer kept.

    Args:
        kv: where to.
        plan: one that writes.
        keep: how many maps stay, the live one among them.

    Raises:
        OutdatedPlanError: what is live is not what the plan was made for.
        KvError: a step failed. Before the manifest was written, what was live still is.
    """
    manifest, raw = plan.manifest, encode(plan.manifest)
    await kv.put(manifest.key, plan.data)
    found = await kv.get(MANIFEST_KEY)
    if found != plan.live.raw:
        raise OutdatedPlanError(plan.live.version, _name(found))
    await kv.put(MANIFEST_KEY, raw, read_back=False)
    found = await kv.get(MANIFEST_KEY)
    if found not in {raw, plan.live.raw}:
        raise OutdatedPlanError(plan.live.version, _name(found))
    warnings: list[str] = []
    deleted: tuple[str, ...] = ()
    try:
        deleted = await prune(
            kv, keep=keep, spare={manifest.version, plan.live.version, *_canary(manifest.canary)}
        )
    except KvError as error:  # the map is live all the same
        warnings.append(f"older maps were not deleted: {error}")
    return Published(
        version=manifest.version, confirmed=found == raw, deleted=deleted, warnings=tuple(warnings)
    )


async def versions(kv: Store) -> list[str]:
    """The versions that KV holds, oldest first: their names begin with the time they were built."""
    names = (key.removeprefix(MAP_PREFIX) for key in await kv.keys(MAP_PREFIX) if key != MANIFEST_KEY)
    return sorted(names)


async def prune(kv: Store, *, keep: int, spare: set[str | None]) -> tuple[str, ...]:
    """Delete all but the newest `keep` maps; those in `spare` stay and count. Gives the versions deleted."""
    held = await versions(kv)
    spared = [version for version in held if version in spare]
    others = [version for version in held if version not in spare]
    room = max(0, keep - len(spared))
    old = others[: max(0, len(others) - room)]
    await kv.delete([MAP_PREFIX + version for version in old])
    return tuple(old)


async def rollback_plan(kv: Store, version: str | None = None) -> Plan:
    """The plan for going back to a version, or to the newest intact one older than what is live.

    Raises:
        UnknownVersionError: there is none, or it is damaged.
        KvError: KV can't be read.
    """
    live = await look(kv)
    held = await versions(kv)
    if version is not None:
        if version not in held:
            raise UnknownVersionError(f"KV holds no map {version}; it holds {', '.join(held) or 'none'}")
        data, fault = await _intact(kv, version)
        if data is None:
            raise UnknownVersionError(f"the map {version} {fault}; choose another of {', '.join(held)}")
        return plan_rollback(data, live)
    for older in reversed(held):
        if live.version is None or older < live.version:
            data, _ = await _intact(kv, older)
            if data is not None:
                return plan_rollback(data, live)
    raise UnknownVersionError(
        f"KV holds no intact map older than {live.version or 'the live one'}: nothing to go back to"
    )


async def _intact(kv: Store, version: str) -> tuple[bytes | None, str]:
    """The map's bytes when they are that map, else why not. Without its manifest, its own checksum has to do."""
    try:
        data = await kv.get(map_key(version))
        if data is None:
            return None, "is gone"
        found = LatencyMap(data).version
    except (MapError, ManifestError) as error:
        return None, f"is damaged ({error})"
    return (data, "") if found == version else (None, f"is damaged (it says {found})")


def _name(raw: bytes | None) -> str:
    if raw is None:
        return "nothing"
    try:
        return parse(raw).version
    except ManifestError:
        return "a damaged manifest"


def _canary(canary: dict[str, object] | None) -> set[str]:
    version = (canary or {}).get("version")
    return {version} if isinstance(version, str) else set()
