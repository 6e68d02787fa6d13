"""The daemon's own page: `/status` for eyes. One file, no requests to anywhere else."""

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Isochrone</title>
<style>
 :root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
 body { max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
 table { border-collapse: collapse; width: 100%; margin: 1rem 0 }
 th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884; vertical-align: top }
 .bad { color: #c33 } .good { color: #2a7 } small { opacity: .7 }
</style>
<h1>Isochrone <small id="site"></small></h1>
<p id="problem" class="bad" role="status"></p>
<table id="facts"></table>
<table id="origins"></table>
<table id="jobs"></table>
<script>
const text = (value) => value === null || value === undefined || value === "" ? "-" : String(value);
function fill(id, head, rows) {
  const table = document.getElementById(id);
  table.replaceChildren();
  for (const [index, cells] of [head, ...rows].entries()) {
    const row = table.insertRow();
    for (const cell of cells) {
      const [value, kind] = Array.isArray(cell) ? cell : [cell, ""];
      const place = row.appendChild(document.createElement(index ? "td" : "th"));
      place.textContent = text(value);
      place.className = kind;
    }
  }
}
const age = (seconds) => seconds === null || seconds === undefined ? "never" : `${Math.round(seconds)} s ago`;
function show(s) {
  document.getElementById("site").textContent = s.site;
  document.getElementById("problem").textContent = [s.problem, s.kv.problem].filter(Boolean).join(" ");
  fill("facts", ["", ""], [
    ["live map", s.map.version], ["built", age(s.map.age_seconds)],
    ["cells, colours, bytes", [s.map.cells, s.map.colours, s.map.bytes].map(text).join(", ")],
    ["KV", [s.kv.state, s.kv.state === "ok" ? "good" : "bad"]],
    ["samples in the window", Object.entries(s.samples.window).map((pair) => pair.join(" ")).join(", ")],
    ["published, refused, found damaged", [s.kv.publishes, s.kv.refused, s.kv.damaged].join(", ")],
  ]);
  fill("origins", ["origin", "state", "endpoint", "offered", "findings"], s.origins.map((o) => [
    o.id, [o.state, o.state === "up" ? "good" : "bad"], o.endpoint?.authority,
    o.endpoint ? [o.endpoint.offered ? "yes" : "no", o.endpoint.offered ? "good" : "bad"] : "",
    [...o.health.findings, ...(o.dns?.findings ?? []), ...(o.endpoint?.findings ?? [])].map((f) => f.evidence).join("; "),
  ]));
  fill("jobs", ["job", "last good", "runs", "failed", "stopped", "skipped", "problem"], Object.entries(s.jobs).map(([name, j]) => [
    name, age(j.success_age_seconds), j.runs, j.failures, j.deadlines, j.skipped, j.problem,
  ]));
}
async function look() {
  try {
    show(await (await fetch("status")).json());
  } catch (error) {
    document.getElementById("problem").textContent = `The daemon does not answer: ${error}`;
  }
  setTimeout(look, 2000);
}
look();
</script>
</html>
"""
