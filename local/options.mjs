// From the document to miniflare's options: one Worker, one more that stands for the internet.
import { readFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const WORKER = "isochrone";
const OUTBOUND = "outbound";

/** What every instance has in common; nothing here reaches beyond this machine. */
export const QUIET = {
  host: "127.0.0.1",
  port: 0,
  cf: false, // no look-up of this machine's own facts
  enableDevRegistry: false,
  logRequests: false,
  unsafeTriggerHandlers: true, // cron, beside the REST API of KV: /cdn-cgi/local/scheduled?cron=...
  handleStructuredLogs: ({ message }) => process.stderr.write(`${message}\n`),
};

const compatibility = ({ compatibilityDate, compatibilityFlags, runtime, language }) => ({
  compatibilityDate,
  compatibilityFlags:
    language === "python" && runtime === "native" && !compatibilityFlags.includes("python_workers")
      ? [...compatibilityFlags, "python_workers"]
      : compatibilityFlags.filter((flag) => runtime === "native" || flag !== "python_workers"),
});

/** Options of the instance that takes the memory image. */
export function imageOptions(document, manifest) {
  const config = { name: "image", ...compatibility(document), manifest };
  return { ...QUIET, workers: [{ config, dev: { unsafeDirectSockets: [{ host: "127.0.0.1", port: 0 }] } }] };
}

function bindings({ vars, secrets, kvNamespaces }) {
  const env = {};
  for (const [name, value] of Object.entries({ ...vars, ...secrets })) {
    env[name] = typeof value === "string" ? { type: "text", value } : { type: "json", value };
  }
  for (const [name, id] of Object.entries(kvNamespaces)) env[name] = { type: "kv", id };
  return env;
}

// An `external` service is workerd's own HTTP client: bodies, upgrades and refusals pass without Node between.
function external({ address, tls, ca, certificateHost }, host) {
  if (!tls) return { type: "external", address, http: {} };
  const tlsOptions = ca ? { trustedCertificates: [ca] } : { trustBrowserCas: true };
  const name = certificateHost ?? host.replace(/:\d+$/, "");
  return { type: "external", address, https: { options: {}, tlsOptions, certificateHost: name } };
}

function outbound({ origins, compatibilityDate }) {
  const routes = {};
  const env = { ROUTES: { type: "json", value: routes } };
  Object.entries(origins).forEach(([host, origin], index) => {
    routes[host] = `ORIGIN_${index}`;
    env[routes[host]] = external(origin, host);
  });
  const contents = readFileSync(path.join(HERE, "worker/outbound.mjs"), "utf8");
  const manifest = { mainModule: "outbound.mjs", modules: { "outbound.mjs": { type: "esm", contents } } };
  return { config: { name: OUTBOUND, compatibilityDate, compatibilityFlags: [], manifest, env } };
}

/** Options of the edge itself. The first Worker is reached through its own socket, without miniflare's front. */
export function edgeOptions(document, manifest) {
  const config = { name: WORKER, ...compatibility(document), manifest, env: bindings(document) };
  const dev = {
    outboundService: { type: "worker", worker: OUTBOUND },
    unsafeDirectSockets: [{ host: document.host, port: document.port }],
  };
  return {
    ...QUIET,
    unsafeLocalExplorer: Object.keys(document.kvNamespaces).length > 0, // the REST API of KV; costs 0.2 s of start
    ...(document.kvPersist && { resourcePersistencePath: path.resolve(document.kvPersist) }),
    workers: [{ config, dev }, outbound(document)],
  };
}

/**
 * What miniflare has no option for. The Worker's fetches go straight to `outbound.mjs`: miniflare puts a Worker of its own before
 * it, for things not needed here (`cf.image`, `CF-Worker`): 0.1 ms for each fetch, and its pauses. And a KV namespace may be on
 * a server of the caller's.
 */
export function rewire(corePlugin, { kvServers }) {
  const { getServices } = corePlugin;
  corePlugin.getServices = async (options) => {
    const made = await getServices.call(corePlugin, options);
    const edge = made.services.find(({ name }) => name === `core:user:${WORKER}`);
    if (!edge) return made;
    edge.worker.globalOutbound = { name: `core:user:${OUTBOUND}` };
    for (const [name, address] of Object.entries(kvServers)) {
      const service = `kv-server:${name}`;
      edge.worker.bindings.find((binding) => binding.name === name).kvNamespace = { name: service };
      made.services.push({ name: service, external: { address, http: {} } });
    }
    return made;
  };
}

/** The options as JSON can hold them: contents of modules as sizes, secrets hidden. */
export function describe(options, document) {
  const hidden = new Set(Object.keys(document.secrets));
  const plain = JSON.stringify(options, (key, value) => {
    if (key === "modules") {
      return Object.entries(value).map(([name, { type, contents }]) => ({ name, type, size: contents.length }));
    }
    if (typeof value === "function") return undefined;
    return hidden.has(key) ? { type: "text", value: "(secret)" } : value;
  });
  return JSON.parse(plain);
}
