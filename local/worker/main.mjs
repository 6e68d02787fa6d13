// The Worker's main module: what workerd calls, handed on to Python.
import { bootPython, loadWorker } from "./boot.mjs";
import { entry } from "./files.mjs";
import { firstEvent } from "./shims.mjs";
import { packedImage } from "./packed.mjs";
import { unpack } from "./sparse.mjs";

const pyodide = await bootPython({ snapshot: packedImage && unpack(packedImage) });
const handlers = loadWorker(pyodide, entry);

let started = false;

function call(handler, ...args) {
  if (!started) {
    started = true;
    firstEvent();
    handlers.reseed();
  }
  return new Promise((resolve, reject) => {
    const done = (failure, result) => (failure === undefined ? resolve(result) : reject(new Error(failure)));
    // "Promising": Python may wait for JavaScript inside a plain function (run_sync), as in production.
    handler.callPromising(...args, done).catch(reject);
  });
}

const { fetch: onFetch, scheduled: onScheduled } = handlers;

export default {
  fetch: (request, env, ctx) => call(onFetch, request, env, ctx),
  scheduled: (controller, env, ctx) => call(onScheduled, controller, env, ctx),
};
