// The list of modules that workerd is given: for Pyodide under JavaScript, for the native Python runtime, or for a
// Worker that is JavaScript itself.
import { readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath } from "node:url";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const PYODIDE = path.dirname(createRequire(import.meta.url).resolve("pyodide/package.json"));
const SKIPPED = new Set(["__pycache__", "node_modules", "python_modules"]);
const SHIMS =
  'import { WebAssembly, fetch, location, crypto, addEventListener, process } from "./shims.mjs";\n';

const esm = (contents) => ({ type: "esm", contents });
const text = (contents) => ({ type: "text", contents });
const data = (file) => ({ type: "data", contents: new Uint8Array(readFileSync(file)) });

/** Files below `folder` whose name ends in one of `endings`, as relative POSIX paths, sorted. */
export function filesBelow(folder, endings) {
  return readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((item) => item.isFile() && endings.some((ending) => item.name.endsWith(ending)))
    .map((item) => path.relative(folder, path.join(item.parentPath, item.name)).split(path.sep).join("/"))
    .filter((name) => !name.split("/").slice(0, -1).some((part) => SKIPPED.has(part) || part.startsWith(".")))
    .sort();
}

/** The SDK as production vendors it; `sdk` is a folder that holds `workers/`, such as site-packages. */
function sdkFiles(sdk) {
  const names = filesBelow(path.join(sdk, "workers"), [".py"]).map((name) => `workers/${name}`);
  return ["asgi.py", ...names];
}

/** Pyodide's own list of packages, emptied: it must be there, and nothing is to be loaded from it. */
function emptyLockfile() {
  const { info } = JSON.parse(readFileSync(path.join(PYODIDE, "pyodide-lock.json"), "utf8"));
  return JSON.stringify({ info, packages: {} });
}

/** What both the memory image and the Worker boot from; depends on versions alone. */
export function pythonBase(sdk) {
  const worker = path.join(HERE, "worker");
  const pyodide = (name) => SHIMS + readFileSync(path.join(PYODIDE, name), "utf8");
  const modules = {
    "boot.mjs": esm(readFileSync(path.join(worker, "boot.mjs"), "utf8")),
    "shims.mjs": esm(readFileSync(path.join(worker, "shims.mjs"), "utf8")),
    "sparse.mjs": esm(readFileSync(path.join(worker, "sparse.mjs"), "utf8")),
    "pyodide.mjs": esm(pyodide("pyodide.mjs")),
    "pyodide.asm.mjs": esm(pyodide("pyodide.asm.mjs")),
    "pyodide.asm.wasm": { ...data(path.join(PYODIDE, "pyodide.asm.wasm")), type: "wasm" },
    "python_stdlib.zip": data(path.join(PYODIDE, "python_stdlib.zip")),
    "lockfile.txt": text(emptyLockfile()),
    "python_modules/workers/workflows.js": esm(readFileSync(path.join(sdk, "workers/workflows.js"), "utf8")),
    "dispatch.py": data(path.join(worker, "dispatch.py")),
  };
  const names = sdkFiles(sdk);
  for (const name of names) modules[`sdk/${name}`] = data(path.join(sdk, name));
  return { modules, sdkNames: names };
}

const importList = (prefix, names) =>
  names.map((name, i) => `import ${prefix}${i} from ${JSON.stringify(`./${prefix}/${name}`)};`).join("\n");
const pairs = (prefix, names) =>
  `[${names.map((name, i) => `[${JSON.stringify(name)}, ${prefix}${i}]`).join(", ")}]`;

/** The module through which boot.mjs reaches the files it mounts. */
function fileTable(sdkNames, sourceNames, entry) {
  return esm(`import dispatcher from "./dispatch.py";
${importList("sdk", sdkNames)}
${importList("source", sourceNames)}
export { dispatcher };
export const sdkFiles = ${pairs("sdk", sdkNames)};
export const files = ${pairs("source", sourceNames)};
export const entry = ${JSON.stringify(entry)};
`);
}

/** Modules that take the memory image. */
export function imageModules(base) {
  return {
    mainModule: "main.mjs",
    modulesRoot: HERE,
    modules: {
      ...base.modules,
      "main.mjs": esm(readFileSync(path.join(HERE, "worker/image.mjs"), "utf8")),
      "files.mjs": fileTable(base.sdkNames, [], ""),
    },
  };
}

/** The Worker's Python sources, unchanged, on Pyodide. `image` is null when no memory image could be had. */
export function pyodideModules(base, { root, main, image }) {
  const names = filesBelow(root, [".py"]);
  const modules = {
    ...base.modules,
    "main.mjs": esm(readFileSync(path.join(HERE, "worker/main.mjs"), "utf8")),
    "files.mjs": fileTable(base.sdkNames, names, moduleName(root, main)),
    "packed.mjs": esm("export const packedImage = undefined;"),
  };
  if (image) {
    modules["python.image"] = { type: "data", contents: image };
    modules["packed.mjs"] = esm('export { default as packedImage } from "./python.image";');
  }
  for (const name of names) modules[`source/${name}`] = data(path.join(root, name));
  return { mainModule: "main.mjs", modulesRoot: HERE, modules: { ...ownJavaScript(root), ...modules } };
}

/** JavaScript beside the Worker's Python, which imports it with `import_from_javascript`. */
function ownJavaScript(root) {
  const names = filesBelow(root, [".mjs"]);
  return Object.fromEntries(names.map((name) => [name, esm(readFileSync(path.join(root, name), "utf8"))]));
}

function moduleName(root, main) {
  return path.relative(root, main).replace(/\.py$/, "").split(path.sep).join(".");
}

/** The list that workerd's own Python runtime takes: the sources and the vendored SDK, nothing added. */
export function nativeModules({ root, main, sdk }) {
  const modules = {};
  const mainModule = path.relative(root, main).split(path.sep).join("/");
  for (const name of [mainModule, ...filesBelow(root, [".py"])]) {
    modules[name] = { type: "python", contents: readFileSync(path.join(root, name), "utf8") };
  }
  Object.assign(modules, ownJavaScript(root));
  for (const name of sdkFiles(sdk)) modules[`python_modules/${name}`] = data(path.join(sdk, name));
  modules["python_modules/workers/workflows.js"] = esm(readFileSync(path.join(sdk, "workers/workflows.js"), "utf8"));
  return { mainModule, modulesRoot: root, modules };
}

/** A Worker written in JavaScript: every module below its root. */
export function javascriptModules({ root, main }) {
  const modules = {};
  const mainModule = path.relative(root, main).split(path.sep).join("/");
  for (const name of [mainModule, ...filesBelow(root, [".js", ".mjs"])]) {
    modules[name] = esm(readFileSync(path.join(root, name), "utf8"));
  }
  return { mainModule, modulesRoot: root, modules };
}
