// What a Worker fetches passes two Workers of this process, miniflare's interceptor and the one that looks up the host. Where
// one origin answers for all hosts the second is left out: in a benchmark its garbage collector pauses what is measured.

/** Every fetch of the Worker goes to `service` (workerd's `external`), whatever its host. `plugin` is miniflare's core. */
export function connectDirectly(plugin, { type, ...external }) {
  const { getServices } = plugin;
  plugin.getServices = async (options) => {
    const found = await getServices.call(plugin, options);
    const services = Array.isArray(found) ? found : found.services;
    const interceptor = services.find(({ name }) => name === "outbound:0");
    if (interceptor) {
      services.push({ name: "origin", [type]: external });
      interceptor.worker.globalOutbound = { name: "origin" };
    }
    return found;
  };
}
