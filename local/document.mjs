// The JSON document that describes one edge: read, checked in full, and completed with defaults.
import { existsSync, globSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

const REPOSITORY = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "..");

/** Something the caller can put right; its message is one sentence. */
export class DocumentError extends Error {}

const isText = (value) => typeof value === "string" && value !== "";
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isPort = (value) => Number.isInteger(value) && value >= 0 && value <= 65535;
const isTextMap = (value) => isObject(value) && Object.values(value).every((item) => typeof item === "string");
const isAddress = (value) => isText(value) && /:\d+$/.test(value);
const isTextList = (value) => Array.isArray(value) && value.every(isText);

const KEYS = {
  main: { check: isText, says: "a path", fallback: path.join(REPOSITORY, "worker/entry.py") },
  root: { check: isText, says: "a path" },
  host: { check: isText, says: "an address", fallback: "127.0.0.1" },
  port: { check: isPort, says: "a port number", fallback: 0 },
  vars: { check: isObject, says: "an object", fallback: {} },
  secrets: { check: isTextMap, says: "an object of strings", fallback: {} },
  kvNamespaces: { check: isTextMap, says: "an object of namespace ids by binding", fallback: {} },
  kvServers: { check: (v) => isObject(v) && Object.values(v).every(isAddress), says: "an object of ADDRESS:PORT by binding", fallback: {} },
  kvPersist: { check: (value) => value === null || isText(value), says: "a folder or null", fallback: null },
  compatibilityDate: { check: (v) => /^\d{4}-\d\d-\d\d$/.test(v), says: "a date", fallback: "2026-09-08" },
  compatibilityFlags: { check: isTextList, says: "a list of flags", fallback: ["enable_request_signal"] },
  origins: { check: isObject, says: "an object of origins by host", fallback: {} },
  runtime: { check: (v) => ["pyodide", "native"].includes(v), says: '"pyodide" or "native"', fallback: "pyodide" },
  sdk: { check: isText, says: "the folder that holds the workers SDK" },
  cache: { check: isText, says: "a folder", fallback: path.join(REPOSITORY, ".cache/local-edge") },
  dryRun: { check: (value) => typeof value === "boolean", says: "true or false", fallback: false },
};

const ORIGIN_KEYS = {
  address: { check: isAddress, says: "ADDRESS:PORT" },
  tls: { check: (value) => typeof value === "boolean", says: "true or false", fallback: false },
  ca: { check: (value) => value === null || isText(value), says: "PEM text or null", fallback: null },
  certificateHost: { check: (v) => v === null || isText(v), says: "a host name or null", fallback: null },
};

function complete(object, keys, where) {
  const result = {};
  for (const name of Object.keys(object)) {
    if (!Object.hasOwn(keys, name)) throw new DocumentError(`${where} has an unknown key "${name}".`);
  }
  for (const [name, { check, says, fallback }] of Object.entries(keys)) {
    const value = object[name] ?? fallback;
    if (value !== undefined && !check(value)) throw new DocumentError(`${where}: "${name}" must be ${says}.`);
    result[name] = value;
  }
  return result;
}

function origin(host, value) {
  const where = `The origin ${host}`;
  if (!isObject(value)) throw new DocumentError(`${where} must be an object.`);
  const result = complete(value, ORIGIN_KEYS, where);
  if (result.address === undefined) throw new DocumentError(`${where}: "address" is missing.`);
  return result;
}

/** @param {string} text one JSON document */
export function readDocument(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new DocumentError(`The document is not JSON: ${error.message}.`);
  }
  if (!isObject(value)) throw new DocumentError("The document must be a JSON object.");
  const document = complete(value, KEYS, "The document");
  document.main = path.resolve(document.main);
  document.root = path.resolve(document.root ?? path.dirname(document.main));
  if (!existsSync(document.main)) throw new DocumentError(`There is no Worker at ${document.main}.`);
  const relative = path.relative(document.root, document.main);
  if (relative.startsWith("..")) throw new DocumentError(`${document.main} is not below its root ${document.root}.`);
  document.language = { ".py": "python", ".js": "javascript", ".mjs": "javascript" }[path.extname(document.main)];
  if (!document.language) throw new DocumentError(`${document.main} is neither Python nor JavaScript.`);
  if (document.language === "python") document.sdk = findSdk(document);
  for (const name of Object.keys(document.kvServers)) {
    if (!Object.hasOwn(document.kvNamespaces, name)) {
      throw new DocumentError(`The document: "kvServers" names ${name}, which is not in "kvNamespaces".`);
    }
  }
  document.origins = Object.fromEntries(
    Object.entries(document.origins).map(([host, item]) => [host.toLowerCase(), origin(host, item)]),
  );
  return document;
}

// A vendored SDK beside the sources is what production would use, so it comes first; then the caller's, then `make setup`'s.
function findSdk({ root, sdk }) {
  const installed = globSync(".venv/lib/*/site-packages", { cwd: REPOSITORY });
  const own = installed.map((folder) => path.join(REPOSITORY, folder));
  const candidates = [path.join(root, "python_modules"), ...(sdk ? [sdk] : own)];
  const found = candidates.find((folder) => existsSync(path.join(folder, "workers/__init__.py")));
  if (!found) throw new DocumentError(`The workers SDK is in none of: ${candidates.join(", ")}.`);
  return path.resolve(found);
}
