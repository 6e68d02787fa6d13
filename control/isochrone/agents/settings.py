"""agent.toml -> AgentSettings. Every problem is told at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field, ValidationError

from isochrone.checks import Problems, http_url, read_toml, tell
from isochrone.settings import (
    Address,
    Flag,
    Network,
    RegionId,
    Seconds,
    Section,
    SettingsError,
    Whole,
    is_local,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def control_plane(value: str) -> str:
    """The URL under which the control plane's `/agents/` is found; plain HTTP only where nobody can listen in."""
    url = http_url(value)
    if url.startswith("http:") and not is_local(url):
        raise ValueError(f"{value!r} would send the token in clear; use https")
    return url.rstrip("/")


class AgentSettings(Section):
    """The whole of agent.toml."""

    control_plane: Annotated[str, AfterValidator(control_plane)]
    origin: RegionId  # whose region this is
    token_env: str = Field("ISOCHRONE_AGENT_TOKEN", min_length=1)
    spool_dir: Path = Path("spool")
    spool_max_bytes: Whole = Field(256 << 20, ge=1 << 16)
    batch_seconds: Annotated[Seconds, Field(le=300)] = 10  # a batch is made of what came within these
    poll_seconds: Seconds = (
        60  # between two looks at the plan; the longest pause while the control plane is away
    )
    timeout_seconds: Seconds = 30  # of a request to the control plane
    source_address: Address | None = None  # what probes bind to
    trust_store: Path | None = None  # PEM, for the control plane's certificate; the system's when not given
    never_probe: tuple[Network, ...] = ()  # beside the plan's
    lab: Flag = False  # special-purpose addresses may be probed when the plan says so too


def load(path: str | Path, environ: Mapping[str, str] = os.environ) -> tuple[AgentSettings, str]:
    """The settings, and the token from the environment.

    Raises:
        SettingsError: with every problem.
    """
    path = Path(path)
    problems: Problems = []
    document = read_toml(path, problems)
    settings: AgentSettings | None = None
    if document is not None:
        for key in ("spool_dir", "trust_store"):
            if isinstance(document.get(key), str):
                document[key] = str(path.parent / document[key])
        document.setdefault("spool_dir", str(path.parent / "spool"))
        try:
            settings = AgentSettings.model_validate(document)
        except ValidationError as error:
            problems += tell(error, AgentSettings)
    token = ""
    if settings is not None:
        token = environ.get(settings.token_env, "").strip()
        if not token:
            problems.append(
                f"token_env: the environment variable {settings.token_env} is not set; put the agent's token in it"
            )
        elif not (token.isascii() and token.isprintable() and " " not in token):
            problems.append(
                f"token_env: what {settings.token_env} holds is no token; make one with `isochrone agent --new-token`"
            )
        if settings.trust_store is not None and not settings.trust_store.is_file():
            problems.append(f"trust_store: there is no file {settings.trust_store}")
    if settings is None or problems:
        raise SettingsError(path, problems)
    return settings, token
