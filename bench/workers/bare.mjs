// What bench/edge.py compares with: the same forwarding in JavaScript.
export default {
  fetch(request) {
    const url = request.url;
    return fetch(new Request("https://one.origins.test" + url.slice(url.indexOf("/", 8)), request));
  },
};
