"""The KV client against a real local KV API, and against an API that refuses."""

from __future__ import annotations

import socket
import time

import pytest
from publishing_support import Refusal, RefusingApi, client, local_kv

from isochrone.publishing import kv as kv_module
from isochrone.publishing import kv_errors as errors
from isochrone.publishing.kv import Kv

pytestmark = pytest.mark.system


async def test_values_come_back_as_written_and_keys_are_listed_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(kv_module, "LIST_PAGE", 10)
    async with local_kv(tmp_path) as base_url, client(base_url) as kv:
        assert await kv.get("map/current") is None
        await kv.put("map/current", b'{"version": "1"}')
        every_byte = bytes(range(256)) * 3
        await kv.put("map/every-byte", every_byte)
        assert await kv.get("map/every-byte") == every_byte
        await kv.put("map/every-byte", b"shorter")
        assert await kv.get("map/every-byte") == b"shorter"
        await kv.put("map/empty", b"")
        assert await kv.get("map/empty") == b""
        for number in range(23):
            await kv.put(f"map/v{number:03}", b"x")
        await kv.put("other", b"x")
        names = await kv.keys("map/")
        assert names == sorted(names)
        assert len(names) == 26
        assert await kv.keys("map/", limit=5) == names[:5]
        assert await kv.keys("nothing/") == []
        await kv.delete([f"map/v{number:03}" for number in range(22)] + ["map/never"])
        assert await kv.keys("map/v") == ["map/v022"]
        await kv.delete([])


async def test_a_map_of_real_size_is_written_and_read_back(tmp_path):
    async with local_kv(tmp_path) as base_url, client(base_url) as kv:
        value = bytes(range(256)) * 4 * 1024  # 1 MiB
        await kv.put("map/large", value)
        assert await kv.get("map/large") == value


async def test_what_does_not_fit_is_refused_before_it_is_sent():
    async with RefusingApi() as api, client(api.base_url) as kv:
        with pytest.raises(errors.KvSizeError, match="26,214,401 bytes and KV takes 26,214,400"):
            await kv.put("map/huge", bytes((25 << 20) + 1))
        with pytest.raises(errors.KvSizeError, match="key"):
            await kv.put("k" * 513, b"")
        assert api.asked == []


@pytest.mark.parametrize(
    ("refusal", "kind", "says"),
    [
        (Refusal(401, 1000, "Invalid API Token"), errors.KvTokenError, "ISOCHRONE_TOKEN"),
        (Refusal(403, 10000, "Authentication error"), errors.KvTokenError, "Authentication error"),
        (Refusal(400, 6003, "Invalid request headers"), errors.KvTokenError, "6003"),
        (Refusal(404, 10013, "namespace not found"), errors.KvNamespaceError, "kv.namespace_id"),
        (
            Refusal(400, 7003, "Could not route to /accounts/account"),
            errors.KvNamespaceError,
            "kv.account_id",
        ),
        (Refusal(404, 0, "", text="<html>nothing here</html>"), errors.KvAnswerError, "kv.base_url"),
        (Refusal(405, 0, "", text=""), errors.KvAnswerError, "405"),
        (Refusal(413, 10000, "too large"), errors.KvAnswerError, "too large"),
        (Refusal(429, 10000, "slow down", {"retry-after": "17"}), errors.KvRateError, "17 s"),
        (Refusal(503, 0, "", text="busy"), errors.KvUnreachableError, "503"),
    ],
)
async def test_each_refusal_is_one_sentence_of_its_own_kind(refusal, kind, says, monkeypatch):
    monkeypatch.setattr(kv_module, "RETRY_PAUSE_SECONDS", 0.01)
    async with RefusingApi() as api, client(api.base_url) as kv:
        api.refusal = refusal
        for call in (
            kv.get("map/current"),
            kv.put("map/current", b"1"),
            kv.keys("map/"),
            kv.delete(["map/old"]),
        ):
            with pytest.raises(kind) as caught:
                await call
            assert says in str(caught.value)
            assert "\n" not in str(caught.value)
        assert {request.headers["Authorization"] for request in api.asked} == {"Bearer token"}


async def test_a_short_wait_asked_for_is_kept_and_the_request_sent_again():
    async with RefusingApi() as api, client(api.base_url) as kv:
        api.refusal = Refusal(429, 10000, "slow down", {"retry-after": "0.2"})
        begun = time.monotonic()
        with pytest.raises(errors.KvRateError):
            await kv.get("map/current")
        assert len(api.asked) == 2
        assert time.monotonic() - begun >= 0.2


async def test_success_that_is_no_answer_of_the_api_is_no_success():
    async with RefusingApi() as api, client(api.base_url) as kv:
        api.refusal = Refusal(200, 0, "", text="<html>a login page</html>")
        for call in (kv.put("map/current", b"1"), kv.keys("map/"), kv.delete(["map/old"])):
            with pytest.raises(errors.KvAnswerError, match=r"\(not an answer of the KV API\)") as caught:
                await call
            assert "attribute" not in str(caught.value)


async def test_nobody_listening_and_nobody_answering_end_in_time():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    async with client(f"http://127.0.0.1:{port}") as kv:
        with pytest.raises(
            errors.KvUnreachableError, match=rf"not reachable at 127.0.0.1:{port} \(connection refused\)"
        ):
            await kv.get("map/current")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        begun = time.monotonic()
        async with client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=0.5) as kv:
            with pytest.raises(errors.KvUnreachableError, match="no answer in"):
                await kv.get("map/current")
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("token", ["", "  \n", "two words\nlines", "t\u00f6ken"])
def test_what_can_be_no_token_is_told_at_once(token):
    with pytest.raises(errors.KvTokenError, match="ISOCHRONE_TOKEN"):
        client("http://127.0.0.1:1", token=token)


async def test_other_credentials_of_the_environment_are_never_sent(monkeypatch):
    monkeypatch.setenv("CLOUDFLARE_EMAIL", "someone@example.test")
    monkeypatch.setenv("CLOUDFLARE_API_KEY", "account-wide")
    monkeypatch.setenv("CLOUDFLARE_API_USER_SERVICE_KEY", "service")
    async with RefusingApi() as api, client(api.base_url) as kv:
        api.refusal = Refusal(429, 0, "", {"retry-after": "60"})
        with pytest.raises(errors.KvRateError):
            await kv.get("map/current")
        sent = api.asked[0].headers
        assert sent["Authorization"] == "Bearer token"
        assert not any(name.lower().startswith("x-auth") for name in sent)


async def test_accounts_stay_in_the_path_of_the_real_api():
    async with Kv(
        account_id="account", namespace_id="n", token="t", token_env="T", base_url=None, timeout_seconds=1
    ) as kv:
        assert kv.base_url == "https://api.cloudflare.com/client/v4"
        assert type(kv._client).__name__ == "AsyncCloudflare"
