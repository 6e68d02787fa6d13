// The internet as the Worker sees it: hosts that the document maps, and nothing else.
const HOST = /^\w+:\/\/([^/?#]*)/; // not URL: this runs for every fetch, and a URL is one more object of the runtime's

// V8 sees only a few bytes of each of the runtime's objects: it lets those of 4,000 fetches pile up, and then all connections
// stand still for as long as it takes to free them, up to 50 ms. With this much more for each fetch it does so sooner.
const BALLAST = 500;
let ballast;

export default {
  fetch(request, env) {
    const host = HOST.exec(request.url)[1];
    const binding = env.ROUTES[host] ?? env.ROUTES[host.replace(/:\d+$/, "")];
    if (binding === undefined) throw new Error(`no origin is mapped for ${host}`);
    ballast = new Array(BALLAST).fill(host);
    return env[binding].fetch(request);
  },
};
