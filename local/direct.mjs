// What a Worker fetches passes two more Workers of this process: miniflare's interceptor, and the one that looks up the host.
// Where one origin answers for all hosts both are left out, as in production: their garbage collectors would pause what a
// benchmark measures, and for longer the more fields a request has.

/** Every fetch of the Worker goes to `service` (workerd's `external`), whatever its host. `plugin` is miniflare's core. */
export function connectDirectly(plugin, worker, { type, ...external }) {
  const { getServices } = plugin;
  plugin.getServices = async (options) => {
    const found = await getServices.call(plugin, options);
    const services = Array.isArray(found) ? found : found.services;
    const ours = services.find(({ name }) => name === `core:user:${worker}`);
    if (ours) {
      services.push({ name: "origin", [type]: external });
      ours.worker.globalOutbound = { name: "origin" };
    }
    return found;
  };
}
