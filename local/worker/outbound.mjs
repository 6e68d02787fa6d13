// The internet as the Worker sees it: hosts that the document maps, and nothing else.
export default {
  fetch(request, env) {
    const { host, hostname } = new URL(request.url);
    const binding = env.ROUTES[host] ?? env.ROUTES[hostname];
    if (binding === undefined) throw new Error(`no origin is mapped for ${host}`);
    return env[binding].fetch(request);
  },
};
