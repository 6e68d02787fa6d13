"""Who is never probed."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probing_support import probe

from isochrone.model import Outcome
from isochrone.probing import methods
from isochrone.probing.manners import Manners
from isochrone.settings import Probing


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("10.1.2.3", "private"), ("172.31.0.1", "private"), ("192.168.1.1", "private"), ("127.0.0.1", "loopback"),
        ("169.254.169.254", "link-local"), ("100.64.0.1", "carrier"), ("224.0.0.1", "multicast"), ("255.255.255.255", "reserved"),
        ("0.0.0.0", "this network"), ("192.0.2.1", "documentation"), ("198.18.0.1", "benchmarking"), ("::1", "loopback"),
        ("::", "unspecified"), ("fe80::1", "link-local"), ("fe80::1%eth0", "link-local"), ("fd00::1", "private"),
        ("ff02::1", "multicast"), ("2001:db8::1", "documentation"), ("2002:a00:1::", "6to4"), ("4000::1", "reserved"),
        ("::ffff:10.0.0.1", "private"), ("64:ff9b::7f00:1", "loopback"), ("::ffff:8.8.8.8.", "not an IP address"),
        ("www.example.com", "not an IP address"),
    ],
)  # fmt: skip
def test_special_purpose_addresses_are_refused(address, kind):
    assert kind in Manners().refusal(address)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "172.32.0.1", "::ffff:8.8.8.8", "100.128.0.1"]
)
def test_global_addresses_are_not(address):
    assert Manners().refusal(address) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "::1", "198.18.0.1"])
def test_a_lab_may_probe_them(address):
    assert Manners(lab=True).refusal(address) is None


def test_never_means_never():
    manners = Manners(["203.0.112.0/22", "2606:4700::/32", "8.8.8.8/32"], lab=True)
    for address in ("203.0.113.7", "2606:4700:1::1", "8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::808:808"):
        assert "never_probe" in manners.refusal(address)
    for address in ("203.0.116.1", "2606:4701::1", "8.8.8.9"):
        assert manners.refusal(address) is None


@given(
    st.ip_addresses(v=4),
    st.lists(st.ip_addresses(v=4, network="192.0.0.0/8"), max_size=3),
    st.integers(8, 32),
)
def test_never_probe_is_set_membership(address, bases, length):
    networks = [ipaddress.ip_network((base, length), strict=False) for base in bases]
    refused = Manners(map(str, networks), lab=True).refusal(str(address)) is not None
    assert refused == any(address in network for network in networks)


@given(st.ip_addresses())
def test_nothing_that_python_calls_private_is_probed(address):
    if address.is_private or address.is_multicast or address.is_loopback or address.is_link_local:
        # Not all that is private to Python is special to the registry: it has exceptions inside 192.0.0.0/24 and 2001::/23.
        assert Manners().refusal(str(address)) is not None


@given(st.text(max_size=30))
def test_any_text_is_judged(text):
    Manners().refusal(text)


@pytest.mark.parametrize("method", ["icmp", "tcp", "quic", "quic-vn", "http", "h1", "h2", "h3"])
async def test_every_method_asks_before_it_sends(method):
    prober = methods.make(method, gate=Manners())
    result = await probe(prober)
    assert result.outcome is Outcome.PROBER_FAILED
    assert "loopback" in result.detail


async def test_a_name_is_judged_by_its_address():
    result = await probe(methods.make("tcp", gate=Manners()), "localhost")
    assert (result.outcome, "loopback" in result.detail) == (Outcome.PROBER_FAILED, True)


def test_the_configuration_decides():
    probing = Probing(methods=("icmp", "quic-vn"), never_probe=("8.8.8.0/24",), agent_rate=5)
    assert [prober.method for prober in methods.probers_of(probing)] == ["icmp", "quic-vn"]
    assert methods.manners_of(probing).refusal("8.8.8.8")
    assert methods.limiter_of(probing).agent_ready_at(7.0) == 7.0
    with pytest.raises(ValueError, match="not a network"):
        Probing(never_probe=("8.8.8.8/240",))
