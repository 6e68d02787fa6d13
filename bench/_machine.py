"""What every benchmark says about where it ran."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """The machine, briefly."""
    model = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }


def bar(name: str, value: float, bar: float, better: str = "lower") -> dict[str, Any]:
    """One line of the `bars` list."""
    ok = value <= bar if better == "lower" else value >= bar
    return {"name": name, "value": round(value, 4), "bar": bar, "better": better, "ok": ok}
