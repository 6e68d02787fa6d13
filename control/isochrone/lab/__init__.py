"""A small internet on this machine: real servers on loopback, real round-trip times of January 2023 replayed.

`world` holds the data, `internet.SmallInternet` runs it, `client` is a user inside one of its networks. Everything
stays on 127.0.0.0/8 and needs no root; Linux only, since all of 127.0.0.0/8 must be usable without set-up.
"""
