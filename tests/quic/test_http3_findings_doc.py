"""docs/FINDINGS.md says of http3 what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from isochrone.lab.h3_faults import FAULTS as INJECTED
from isochrone.lab.h3_faults import HARMLESS
from isochrone.verification.http3_faults import FAULTS

DOC = Path(__file__).parents[2] / "docs" / "FINDINGS.md"


def section(title):
    text = DOC.read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert text, f"no section {title}"
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    return text, [[cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip("| "))] for row in rows]


def advice(text):
    """The placeholders stand for what the settings say."""
    return text.format(
        site="the public host", path="the health path", header="`region_header`", member="`region_member`"
    )


def test_findings_are_documented_as_they_are():
    _, rows = section("http3")
    assert rows == [
        [
            f"`http3.{kind}`", fault.meaning, fault.severity.value + (", thorough" if fault.deep else ""),
            fault.source or "-", advice(fault.advice),
        ]
        for kind, fault in FAULTS.items()
    ]  # fmt: skip


def test_faults_are_documented_as_they_are_injected():
    text, rows = section("HTTP/3 faults")
    assert rows == [
        [fault.name, f"`http3.{fault.finding}`" if fault.finding else "none"]
        for fault in (*INJECTED, *HARMLESS)
    ]
    assert f"{len(INJECTED)} kinds of fault" in text
