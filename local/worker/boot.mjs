// Boots CPython (Pyodide) inside the isolate, in global scope, and mounts the Worker's files where
// production mounts them.
import * as cloudflareWorkers from "cloudflare:workers";
import * as cloudflareSockets from "cloudflare:sockets";
import createPyodideModule from "./pyodide.asm.mjs";
import { loadPyodide } from "./pyodide.mjs";
import { dispatcher, files, sdkFiles } from "./files.mjs";
import lockfile from "./lockfile.txt";

const METADATA = "/session/metadata";
const PACKAGES = `${METADATA}/python_modules`;
const DISPATCH = "/lib/isochrone_local";

// Pyodide would share one MessageChannel between requests, and workerd ties I/O to the request that made
// it. Without one it falls back to setTimeout, which belongs to the request that calls it.
async function withoutGlobals(names, work) {
  const saved = names.map((name) => [name, Object.getOwnPropertyDescriptor(globalThis, name)]);
  for (const name of names) delete globalThis[name];
  try {
    return await work();
  } finally {
    for (const [name, descriptor] of saved) {
      if (descriptor) Object.defineProperty(globalThis, name, descriptor);
    }
  }
}

/** `ctx.waitUntil` that takes a Python awaitable: the argument of a call from Python dies with the call. */
function patchWaitUntil(ctx) {
  if (Object.hasOwn(ctx, "waitUntil") || typeof ctx.waitUntil !== "function") return;
  const waitUntil = ctx.waitUntil.bind(ctx);
  ctx.waitUntil = (awaitable) => {
    const kept = typeof awaitable?.copy === "function" ? awaitable.copy() : awaitable;
    const settled = Promise.resolve(kept).finally(() => kept !== awaitable && kept.destroy());
    // workerd says nothing of work that fails after the response; production's logs do.
    waitUntil(settled.catch((error) => console.error(`Uncaught (in waitUntil) ${error}`)));
  };
}

// What the workers SDK asks of the runtime.
const helper = {
  cloudflareWorkersModule: cloudflareWorkers,
  cloudflareSocketsModule: cloudflareSockets,
  doAnImport: (name) => import(name),
  patch_env_helper: () => {
    throw new Error("patch_env is not available at the local edge");
  },
  patchWaitUntil,
};
const compatFlags = {
  python_workflows_implicit_dependencies: true,
  python_request_headers_preserve_commas: true,
};
const named = { helper, compatFlags, cloudflareWorkers, cloudflareSockets };

function write(fs, path, contents) {
  fs.mkdirTree(path.slice(0, path.lastIndexOf("/")));
  fs.writeFile(path, new Uint8Array(contents));
}

function mount(fs) {
  write(fs, `${DISPATCH}/isochrone_dispatch.py`, dispatcher);
  for (const [name, contents] of sdkFiles) write(fs, `${PACKAGES}/${name}`, contents);
}

/**
 * @param {{snapshot?: ArrayBuffer, makeSnapshot?: boolean}} options
 *   `snapshot`: a memory image taken with `makeSnapshot`: Python and the SDK, without the Worker's own code.
 */
export async function bootPython({ snapshot, makeSnapshot } = {}) {
  const pyodide = await withoutGlobals(["process", "MessageChannel"], () =>
    loadPyodide({
      indexURL: "file:///pyodide/",
      lockFileContents: lockfile,
      packageBaseUrl: "file:///pyodide/",
      createPyodideModule,
      env: { HOME: "/session", PYTHONDONTWRITEBYTECODE: "1" },
      fsInit: (fs) => mount(fs),
      stdout: (line) => console.log(line),
      stderr: (line) => console.error(line),
      _makeSnapshot: makeSnapshot,
      _loadSnapshot: snapshot,
      _snapshotDeserializer: (name) => named[name],
    }),
  );
  if (!snapshot) {
    pyodide.registerJsModule("_pyodide_entrypoint_helper", helper);
    pyodide.registerJsModule("_cloudflare_compat_flags", compatFlags);
    pyodide.runPython(
      `import sys; sys.path[:0] = ["${METADATA}", "${PACKAGES}", "${DISPATCH}"]; import isochrone_dispatch`,
    );
  }
  return pyodide;
}

/** A memory image of Python with the SDK imported. */
export function memoryImage(pyodide) {
  const serializer = (object) => Object.keys(named).find((name) => named[name] === object);
  return pyodide.makeMemorySnapshot({ serializer });
}

/** The Worker's handlers, as one Python object with a method per kind of event. */
export function loadWorker(pyodide, entry) {
  for (const [name, contents] of files) write(pyodide.FS, `${METADATA}/${name}`, contents);
  return pyodide.pyimport("isochrone_dispatch").load(entry);
}
