"""Workers KV through the official SDK: get, put with read-back, delete, list. Thin; every error is a `KvError`."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Self, TypeVar
from urllib.parse import urlsplit

import cloudflare
import httpx
from cloudflare import AsyncCloudflare, DefaultAioHttpClient

from isochrone.publishing.kv_errors import (
    KvAnswerError,
    KvError,
    KvRateError,
    KvReadBackError,
    KvSizeError,
    KvTokenError,
    KvUnreachableError,
    is_missing_key,
    mapped,
    why_unreachable,
)
from isochrone.settings import is_local

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from cloudflare._models import FinalRequestOptions

    from isochrone.settings import Kv as KvSettings

DEFAULT_BASE_URL = "https://api.cloudflare.com/client/v4"
MAX_VALUE_BYTES = 25 << 20
MAX_KEY_BYTES = 512
BULK_DELETE_KEYS = 10_000
RETRY_PAUSE_SECONDS = 0.5
WRITE_PAUSE_SECONDS = 1.1  # a key takes one write a second
LONGEST_PAUSE_SECONDS = 3.0  # longer waits are the caller's to plan
READ_BACK_PAUSES = (0.2, 0.5, 1.0)  # KV may serve the older value for a moment
LIST_PAGE = 1000

Answer = TypeVar("Answer")


class _LocalClient(AsyncCloudflare):
    """The local API has no accounts: their prefix goes. For local addresses only."""

    async def _prepare_options(self, options: FinalRequestOptions) -> FinalRequestOptions:
        _, accounts, rest = options.url.partition("/accounts/")
        if accounts:
            options.url = "/" + rest.partition("/")[2]
        return options


class Kv:
    """One namespace. An async context manager; every call ends within `timeout_seconds`."""

    def __init__(
        self,
        *,
        account_id: str,
        namespace_id: str,
        token: str,
        token_env: str,
        base_url: str | None,
        timeout_seconds: float,
    ) -> None:
        self.account_id = account_id
        self.namespace_id = namespace_id
        self.base_url = base_url or DEFAULT_BASE_URL
        self.host = urlsplit(self.base_url).netloc
        self._token_env = token_env
        self._timeout = timeout_seconds
        local = is_local(self.base_url)
        self._client = (_LocalClient if local else AsyncCloudflare)(
            api_token=_usable(token, token_env),
            base_url=self.base_url,
            timeout=timeout_seconds,
            max_retries=0,  # one policy of retries, here and in the daemon
            http_client=DefaultAioHttpClient(trust_env=not local),
        )
        # From the environment the SDK would take an account-wide key or an e-mail address and send that in the token's place.
        self._client.api_email = self._client.api_key = self._client.user_service_key = None

    @classmethod
    def of(cls, settings: KvSettings, environ: Mapping[str, str] = os.environ) -> Self:
        """The namespace that the settings name. Raises KvTokenError when the token's variable holds none."""
        return cls(
            account_id=settings.account_id,
            namespace_id=settings.namespace_id,
            token=token_of(settings, environ),
            token_env=settings.token_env,
            base_url=settings.base_url,
            timeout_seconds=settings.timeout_seconds,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def get(self, key: str) -> bytes | None:
        """The value's bytes; None when the key is absent."""

        async def read() -> bytes:
            response = await self._client.kv.namespaces.values.get(
                _checked(key), account_id=self.account_id, namespace_id=self.namespace_id
            )
            return await response.read()

        try:
            return await self._call(key, read)
        except _KeyAbsentError:
            return None

    async def put(self, key: str, value: bytes, *, read_back: bool = True) -> None:
        """Write the value and read it back.

        Raises:
            KvReadBackError: what is read is not what was written, after a few looks.
            KvSizeError: before anything is sent.
        """
        if len(value) > MAX_VALUE_BYTES:
            raise KvSizeError(key, len(value), MAX_VALUE_BYTES)
        # Bytes: a str raises in the SDK. No metadata: a known bug of the SDK stores it inside the value.
        await self._call(
            key,
            lambda: self._client.kv.namespaces.values.update(
                _checked(key), value=value, account_id=self.account_id, namespace_id=self.namespace_id
            ),
        )
        found = await self.get(key) if read_back else value
        for pause in READ_BACK_PAUSES:
            if found == value:
                return
            await asyncio.sleep(pause)
            found = await self.get(key)
        if found != value:
            raise KvReadBackError(key, len(value), None if found is None else len(found))

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete keys, in bulk; absent ones are no error. Keys that the API left are asked for once more."""
        left = [_checked(key) for key in keys]
        for _ in range(2):
            if not left:
                return
            left = await self._delete_some(left)
        if left:
            raise KvAnswerError(left[0], 200, f"{len(left)} keys were not deleted")

    async def _delete_some(self, keys: list[str]) -> list[str]:
        left: list[str] = []
        for start in range(0, len(keys), BULK_DELETE_KEYS):
            some = keys[start : start + BULK_DELETE_KEYS]
            result = await self._call(
                some[0],
                lambda some=some: self._client.kv.namespaces.bulk_delete(  # type: ignore[misc]
                    self.namespace_id, account_id=self.account_id, body=some
                ),
            )
            left += (result.unsuccessful_keys if result else None) or []
        return left

    async def keys(self, prefix: str, limit: int = 5000) -> list[str]:
        """At most `limit` names of keys that begin with `prefix`, in order."""

        async def read() -> list[str]:
            names: dict[str, None] = {}
            page = await self._client.kv.namespaces.keys.list(
                self.namespace_id, account_id=self.account_id, prefix=prefix, limit=LIST_PAGE
            )
            while True:
                before = len(names)
                names.update((key.name, None) for key in page.result)
                # A page that brings nothing new ends it: an API that never says "last" must not keep us here.
                if len(names) == before or len(names) >= limit or not page.has_next_page():
                    return list(names)[:limit]
                page = await page.get_next_page()

        return await self._call(prefix, read)

    async def _call(self, subject: str, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """One request within the deadline; sent once more when that may help within it."""
        try:
            async with asyncio.timeout(self._timeout):
                try:
                    return await self._once(subject, call)
                except KvUnreachableError:
                    await asyncio.sleep(RETRY_PAUSE_SECONDS)
                except KvRateError as error:
                    pause = WRITE_PAUSE_SECONDS if error.retry_after is None else error.retry_after
                    if pause > LONGEST_PAUSE_SECONDS:
                        raise
                    await asyncio.sleep(pause)
                return await self._once(subject, call)
        except TimeoutError:
            raise KvUnreachableError(self.host, f"no answer in {self._timeout:g} s") from None

    async def _once(self, subject: str, call: Callable[[], Awaitable[Answer]]) -> Answer:
        try:
            return await call()
        except cloudflare.APIError as error:
            if is_missing_key(error):
                raise _KeyAbsentError from None
            raise mapped(
                error, subject=subject, host=self.host, token_env=self._token_env,
                namespace_id=self.namespace_id, account_id=self.account_id,
            ) from error  # fmt: skip
        except httpx.HTTPError as error:  # while the body is read, outside of the SDK's own mapping
            raise KvUnreachableError(self.host, why_unreachable(error)) from error
        # The SDK takes an answer that is no JSON of the API for text, and stumbles over it.
        except (cloudflare.CloudflareError, ValueError, TypeError, AttributeError) as error:
            raise KvAnswerError(subject, 200, "not an answer of the KV API") from error


def token_of(settings: KvSettings, environ: Mapping[str, str] = os.environ) -> str:
    """The API token. Raises KvTokenError when the variable holds nothing that could be one."""
    return _usable(environ.get(settings.token_env, ""), settings.token_env)


def _usable(token: str, token_env: str) -> str:
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise KvTokenError(token_env, "it is empty or has characters that no token has")
    return token


class _KeyAbsentError(KvError):
    """Never leaves this module."""


def _checked(key: str) -> str:
    size = len(key.encode())
    if not key or size > MAX_KEY_BYTES:
        raise KvSizeError(key, size, MAX_KEY_BYTES, "key")
    return key
