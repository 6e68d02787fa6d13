// Names that Pyodide's modules look up as globals. `modules.mjs` prepends one import of them to
// each Pyodide module, so that they shadow what workerd lacks or forbids; no Pyodide code is changed.
import compiled from "pyodide.asm.wasm";
import stdlib from "python_stdlib.zip";

const realCrypto = globalThis.crypto;
const RealWebAssembly = globalThis.WebAssembly;

let inEvent = false;

/** Until the first event there is no entropy and there are no timers; from then on both are the real ones. */
export function firstEvent() {
  inEvent = true;
}

// workerd lists the members of WebAssembly as non-enumerable, so a spread would miss them.
export const WebAssembly = Object.fromEntries(
  Object.getOwnPropertyNames(RealWebAssembly).map((name) => [name, RealWebAssembly[name]]),
);
// Compiled at once: workerd waits for no background compilation while a Worker starts.
WebAssembly.compile = async (bytes) => new RealWebAssembly.Module(bytes);
WebAssembly.instantiate = async (source, imports) => {
  if (source instanceof RealWebAssembly.Module) return new RealWebAssembly.Instance(source, imports);
  const module = new RealWebAssembly.Module(source);
  return { module, instance: new RealWebAssembly.Instance(module, imports) };
};
WebAssembly.instantiateStreaming = async (_response, imports) => ({
  module: compiled,
  instance: new RealWebAssembly.Instance(compiled, imports),
});

export const location = "file:///pyodide/";

/** Only what Pyodide itself asks for while it boots. */
export async function fetch(url) {
  if (String(url).endsWith("python_stdlib.zip")) return { ok: true, arrayBuffer: async () => stdlib };
  if (String(url).endsWith("pyodide.asm.wasm")) return { ok: true };
  throw new Error(`Pyodide asked for ${url}, which the local edge does not hold`);
}

// A fixed xorshift: boot must not depend on chance, or no memory image of it would be worth keeping.
let state = 0x9e3779b9;
function deterministic(view) {
  const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  for (let i = 0; i < bytes.length; i++) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    bytes[i] = state & 0xff;
  }
  return view;
}

export const crypto = {
  getRandomValues: (view) => (inEvent ? realCrypto.getRandomValues(view) : deterministic(view)),
};

// Pyodide installs a message listener that only a browser's main thread needs; workerd's throws.
export function addEventListener() {}

// Undefined, else Emscripten takes workerd for Node.
export const process = undefined;
