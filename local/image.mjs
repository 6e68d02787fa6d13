// The memory image of Python with the SDK imported: made by workerd once, kept by content hash.
import { createHash, randomBytes } from "node:crypto";
import { mkdirSync, readFileSync, readdirSync, renameSync, rmSync, statSync, utimesSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { crc32 } from "node:zlib";
import { Miniflare } from "miniflare";
import { imageModules } from "./modules.mjs";
import { imageOptions } from "./options.mjs";

const KEPT = 4; // 15 MB each
const STALE_MS = 10 * 60 * 1000; // a temporary file this old belongs to nobody
const WORKERD = createRequire(import.meta.url)("workerd/package.json").version;

function keyOf(document, manifest) {
  const hash = createHash("sha256");
  hash.update(JSON.stringify([WORKERD, document.compatibilityDate, document.compatibilityFlags]));
  for (const [name, { contents }] of Object.entries(manifest.modules)) {
    hash.update(`\n${name} ${contents.length}\n`).update(contents);
  }
  return hash.digest("hex").slice(0, 32);
}

/** The image's bytes, or undefined when the file is not there, cut short or altered. */
function load(file) {
  try {
    const bytes = readFileSync(file);
    const image = bytes.subarray(0, -4);
    if (bytes.length < 1024 || crc32(image) !== bytes.readUInt32LE(image.length)) return undefined;
    const now = new Date();
    utimesSync(file, now, now); // newest = last used
    return new Uint8Array(image);
  } catch {
    return undefined;
  }
}

// Written beside and renamed: another edge that starts at the same time reads all of it or nothing.
function store(file, image) {
  mkdirSync(path.dirname(file), { recursive: true });
  const temporary = `${file}.${process.pid}-${randomBytes(4).toString("hex")}.tmp`;
  const trailer = Buffer.alloc(4);
  trailer.writeUInt32LE(crc32(image));
  try {
    writeFileSync(temporary, Buffer.concat([image, trailer]));
    renameSync(temporary, file);
  } finally {
    rmSync(temporary, { force: true });
  }
}

function prune(folder) {
  const aged = readdirSync(folder)
    .map((name) => path.join(folder, name))
    .map((file) => ({ file, at: statSync(file, { throwIfNoEntry: false })?.mtimeMs ?? 0 }))
    .sort((a, b) => b.at - a.at);
  const images = aged.filter(({ file }) => file.endsWith(".image")).slice(KEPT);
  const leftovers = aged.filter(({ file, at }) => file.endsWith(".tmp") && Date.now() - at > STALE_MS);
  for (const { file } of [...images, ...leftovers]) rmSync(file, { force: true });
}

async function make(document, manifest) {
  const miniflare = new Miniflare(imageOptions(document, manifest));
  try {
    const response = await fetch(await miniflare.unsafeGetDirectURL());
    return new Uint8Array(await response.arrayBuffer());
  } finally {
    await miniflare.dispose();
  }
}

/** The memory image for this document: from the cache, else made and kept. A cache that cannot be written is no error. */
export async function memoryImage(document, base) {
  const manifest = imageModules(base);
  const file = path.join(document.cache, `python-${keyOf(document, manifest)}.image`);
  const kept = load(file);
  if (kept) return kept;
  const image = await make(document, manifest);
  try {
    store(file, image);
    prune(document.cache);
  } catch (error) {
    process.stderr.write(`The local edge starts slowly, its cache cannot be written: ${error.message}\n`);
  }
  return image;
}
