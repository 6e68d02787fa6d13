"""docs/FINDINGS.md names the same findings as the code."""

from __future__ import annotations

import re
from pathlib import Path

from isochrone.verification.dns_faults import FAULTS

DOC = Path(__file__).parents[2] / "docs" / "FINDINGS.md"


def rows(prefix):
    """id -> the other cells, of the table rows whose id has the prefix."""
    found = {}
    for line in DOC.read_text().splitlines():
        match = re.match(rf"\| `{prefix}\.(\w+)` \|(.*)\|$", line)
        if match:
            assert match[1] not in found, f"{match[1]} is there twice"
            found[match[1]] = [cell.strip() for cell in re.split(r"(?<!\\)\|", match[2])]
    return found


def test_dns_findings_are_documented_as_they_are():
    documented = rows("dns")
    assert list(documented) == list(FAULTS)
    for kind, (meaning, severity, source, advice) in documented.items():
        fault = FAULTS[kind]
        assert (meaning, source, advice) == (fault.meaning, fault.source or "-", fault.advice), kind
        assert severity == fault.severity.value + (", withdraws" if fault.broken else ""), kind
