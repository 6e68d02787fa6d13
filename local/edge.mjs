// The edge on this machine. Reads one JSON document (a line) from standard input, starts the Worker in workerd,
// prints one JSON line, and ends when standard input closes: it cannot outlive the process that started it.
import childProcess from "node:child_process";
import { existsSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { createInterface } from "node:readline";

const started = performance.now();

// Standard output is for the one JSON line.
console.log = console.info = console.debug = console.error;

// miniflare keeps its child to itself; the caller wants the process id. And where util-linux is there, the kernel ends
// workerd with this process, however that ends: nothing here runs any more after a SIGKILL.
let workerd;
const { spawn } = childProcess;
const setpriv = ["/usr/bin/setpriv", "/bin/setpriv"].find((file) => process.platform === "linux" && existsSync(file));
childProcess.spawn = (command, args, options) => {
  const whole = setpriv ? [setpriv, "--pdeathsig", "KILL", "--", command, ...args] : [command, ...args];
  return (workerd = spawn(whole[0], whole.slice(1), options));
};
syncBuiltinESMExports();

// V8's young generation stays small: left to itself it grows to 16 MB, and frees the runtime's objects of 2,000 requests at once,
// 30 ms in which all connections stand still.
process.env.MINIFLARE_WORKERD_V8_FLAGS ??= "--max-semi-space-size=4";

let miniflare;
let ready = false;
let ending = false;

process.stdout.on("error", (error) => {
  process.stderr.write(`Standard output can't be written to: ${error.message}.\n`);
  end(1);
});

function print(value, then = () => {}) {
  process.stdout.write(`${JSON.stringify(value)}\n`, (error) => error || then());
}

function end(status) {
  ending = true;
  workerd?.kill("SIGKILL");
  // Removes miniflare's temporary folder; the process ends either way.
  setTimeout(() => process.exit(status), 2000).unref();
  Promise.resolve(miniflare?.dispose())
    .catch(() => {})
    .finally(() => process.exit(status));
}

function fail(sentence, detail) {
  ending = true;
  if (detail) process.stderr.write(`${detail}\n`);
  process.stdout.write(`${JSON.stringify({ error: sentence })}\n`, () => end(1));
}

/** One sentence from what workerd wrote: for Python the exception, the traceback's last line; else the first line. */
function sentenceOf(error, document) {
  if (error?.code === "ERR_ADDRESS_IN_USE") {
    return `Something listens on ${document.host} port ${document.port} already.`;
  }
  const text = String(error?.message ?? error).split("Runtime stderr:\n").at(-1);
  const messages = [...text.matchAll(/"message":("(?:[^"\\]|\\.)*")/g)].map((match) => JSON.parse(match[1]));
  const lines = (messages[0] ?? text).split("\n").filter((line) => line.trim() && !/^(\s+at |\*\*\*)/.test(line));
  const python = lines.some((line) => line.startsWith("Traceback") || line.includes("PythonError"));
  const line = (python ? lines.at(-1) : lines[0]) ?? "it wrote nothing.";
  return `The Worker could not be started: ${line.trim().replace(/^service core:user:\S+ /, "")}`;
}

async function manifestOf(document) {
  const modules = await import("./modules.mjs");
  if (document.language === "javascript") return modules.javascriptModules(document);
  if (document.runtime === "native") return modules.nativeModules(document);
  const base = modules.pythonBase(document.sdk);
  if (document.dryRun) return modules.pyodideModules(base, document);
  const { memoryImage } = await import("./image.mjs");
  return modules.pyodideModules(base, { ...document, image: await memoryImage(document, base) });
}

async function start(document) {
  const { edgeOptions, describe, rewire } = await import("./options.mjs");
  const options = edgeOptions(document, await manifestOf(document));
  if (document.dryRun) {
    return print({ options: describe(options, document) }, () => end(0));
  }
  const { Miniflare, CORE_PLUGIN } = await import("miniflare");
  rewire(CORE_PLUGIN, document);
  miniflare = new Miniflare(options);
  const front = await miniflare.ready;
  const url = await miniflare.unsafeGetDirectURL();
  if (ending) return;
  ready = true;
  print({
    url: url.origin,
    kvApi: options.unsafeLocalExplorer ? new URL("/cdn-cgi/local/explorer/api", front).href : null,
    pid: workerd.pid,
    readyMs: Math.round(performance.now() - started),
  });
}

process.on("SIGTERM", () => end(0));
process.on("SIGINT", () => end(0));

async function begin(line) {
  const { readDocument, DocumentError } = await import("./document.mjs");
  let document;
  try {
    document = readDocument(line);
    await start(document);
  } catch (error) {
    if (ending) return;
    if (error instanceof DocumentError) fail(error.message);
    else fail(sentenceOf(error, document), error.stack);
  }
}

let seen = false;
createInterface({ input: process.stdin, terminal: false })
  .on("line", (line) => {
    if (!seen) begin(line);
    seen = true;
  })
  .on("close", () => {
    if (ready) end(0);
    else if (!ending) {
      const what = seen ? "the edge was ready: keep it open for as long as the edge shall run" : "a document came";
      fail(`Standard input ended before ${what}.`);
    }
  });
