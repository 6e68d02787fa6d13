"""docs/FINDINGS.md names the same findings as the code."""

from __future__ import annotations

import re
from pathlib import Path

from test_dns_faults import CASES, MORE
from test_dns_knot import BY_OTHER_MEANS

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


def test_dns_faults_are_documented_as_they_are_injected():
    """What is wrong -> its finding, and whether Knot DNS serves the fault too."""
    section = DOC.read_text().partition("\n## DNS faults\n")[2].partition("\n## ")[0]
    documented = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][1:]
    at_knot = BY_OTHER_MEANS | {fault.name for fault in CASES if fault.is_content}
    injected = [(fault.name, *fault.expect) for fault in CASES] + [
        (name, kind) for name, (kind, _) in MORE.items()
    ]
    assert documented == [
        [name, f"`dns.{kind}`", "yes" if name in at_knot else "-"] for name, kind in injected
    ]
    assert {name for name, _ in injected} >= at_knot
    assert f"{len(injected)} kinds of fault" in section
