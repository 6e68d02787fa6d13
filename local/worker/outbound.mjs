// The internet as the Worker sees it: hosts that the document maps, and nothing else.
const HOST = /^\w+:\/\/([^/?#]*)/; // not URL: this runs for every fetch, and a URL is one more object of the runtime's

export default {
  fetch(request, env) {
    const host = HOST.exec(request.url)[1];
    const binding = env.ROUTES[host] ?? env.ROUTES[host.replace(/:\d+$/, "")];
    if (binding === undefined) throw new Error(`no origin is mapped for ${host}`);
    return env[binding].fetch(request);
  },
};
