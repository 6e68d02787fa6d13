"""The reference client: what a user's SDK should do with a pinned region, and the tool to debug it with.

Pure: `alt_svc` (field values), `cache` (what is remembered), `routes` (what is tried, in which order). I/O: `cache_file`, `names`
(pre-resolution), `tcp` (HTTP/1.1 and HTTP/2), `http3`, `race` (happy eyeballs); `fetch` puts them together.
"""
