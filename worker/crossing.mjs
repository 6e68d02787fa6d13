// One crossing between Python and JavaScript where rim.py would need many: reading a request, sending it within a
// deadline, and dressing the answer cost a third this way. Nothing is decided here; rim.py does the same without this
// module where a runtime does not offer it.
import { waitUntil } from "cloudflare:workers";

// Fields that must be looked at one by one before a request can go on: the same names as in headers.py.
const marked = /[^\0-\x7f]|"(x-isochrone-|proxy-|content-length"|transfer-encoding"|upgrade"|expect"|te"|keep-alive"|trailer")/;
const bound = /"connection":(?!"keep-alive")/i;
const continued = /"(via|traceparent)":/;

/**
 * The request that was glanced at last, for `sendAlong` right after it: nothing else runs between the two. Not a property of
 * the request, nor a WeakMap: both hold on to it until a full collection.
 */
let seen;

/**
 * Of a request that can go on as it is, one line each: scheme and host, Host field, facts (JSON), CF-Connecting-IP,
 * X-Forwarded-For. Such a request is a GET or HEAD without a body, for no URL of our own, with no field that must be looked
 * at or continued. Of any other: "". The fields stay here for `sendAlong`: they need not cross twice.
 */
export function glance(request) {
  const { url, method, headers, cf } = request;
  const end = url.indexOf("/", 8);
  if ((method !== "GET" && method !== "HEAD") || end < 0 || url.includes(".isochrone")) return "";
  const fields = fieldsOf(headers);
  if (fields.cookie?.includes(", ")) return ""; // several Cookie fields, perhaps
  const text = JSON.stringify(fields);
  if (marked.test(text) || bound.test(text) || continued.test(text)) return "";
  seen = { request, url, end, method, fields };
  const client = fields["cf-connecting-ip"] ?? "";
  return `${url.slice(0, end)}\n${fields.host ?? ""}\n${factsOf(cf)}\n${client}\n${fields["x-forwarded-for"] ?? ""}`;
}

/**
 * Of any request, one line each: 0 when its fields must be looked at, 1 when they can go on as they are; URL, method, facts
 * and fields, the last two as JSON.
 */
export function read(request) {
  const { url, method, headers, cf } = request;
  const fields = JSON.stringify(fieldsOf(headers));
  const plain = marked.test(fields) || bound.test(fields) ? 0 : 1;
  return `${plain}\n${url}\n${method}\n${factsOf(cf)}\n${fields}`;
}

// Not by an iterator, which holds a copy of all fields until it is collected. And a field may be named __proto__.
function fieldsOf(headers) {
  const fields = Object.create(null);
  headers.forEach((value, name) => {
    fields[name] = value;
  });
  return fields;
}

function factsOf(cf) {
  return cf
    ? JSON.stringify([cf.asn, cf.country, cf.colo, cf.continent, cf.latitude, cf.longitude, cf.httpProtocol])
    : "[]";
}

/**
 * Fetches, and gives up after `ms`: an answer that has begun by then is not cut. With `abort` what is given up is let go
 * at once, not only when the whole request ends; that costs as much as all of steering. `moving`, if there is one, says
 * when the request's body last moved: the clock stands still for as long as it does. Where it is the client that brings
 * nothing more, or has left, the error is a ClientBodyStalled or ClientBodyBroken.
 */
function within(ms, abort, input, init, moving) {
  return new Promise((resolve, reject) => {
    let timer;
    const late = () => {
      const left = moving ? moving.at + ms - Date.now() : 0;
      if (left > 0) {
        timer = setTimeout(late, left);
        return;
      }
      const error = named(moving?.awaited ? "ClientBodyStalled" : "TimeoutError", "no answer in time");
      reject(error);
      abort?.abort(error);
    };
    timer = setTimeout(late, ms);
    if (abort) init.signal = abort.signal;
    fetch(input, init).then(
      (response) => {
        clearTimeout(timer);
        resolve(response);
      },
      (error) => {
        clearTimeout(timer);
        reject(moving?.broken || moving?.signal.aborted ? named("ClientBodyBroken", error.message) : error);
      },
    );
  });
}

function named(name, message) {
  const error = new Error(message);
  error.name = name;
  return error;
}

/** What all plain requests of one network from one place have in common; `text` is from lane.py. Times in milliseconds. */
export function lane(text) {
  return JSON.parse(text);
}

/**
 * The request that was glanced at, along its lane, and its answer dressed. What somebody must look at, an answer or an error,
 * goes on in Python. `began` is when the request came, in seconds. Of a name that is there twice the later one counts: ours.
 * The promise is a property since one that is the result of a call gets a Python future of its own.
 */
export function sendAlong(lane, traceparent, forwardedFor, began, ctx) {
  const { request, url, end, method, fields } = seen;
  seen = undefined;
  const host = url.indexOf("/") + 2;
  const headers = {
    ...fields,
    ...lane.fields,
    traceparent,
    "x-forwarded-proto": url.slice(0, host - 3),
    "x-forwarded-host": url.slice(host, end),
  };
  if (forwardedFor) headers["x-forwarded-for"] = forwardedFor;
  const asked = Date.now();
  const promise = new Promise((resolve, reject) => {
    let settled = false;
    const odd = (outcome) => {
      if (settled) return;
      settled = true;
      try {
        const answer = goOn(ctx, request, began, lane.origin, outcome);
        resolve(Promise.resolve(answer).finally(() => answer.destroy()));
      } catch (error) {
        reject(error); // else the client would wait for ever
      }
    };
    // Not cleared: it ends with the request, and to clear it costs as much as to set it.
    setTimeout(() => settled || odd(named("TimeoutError", "no answer in time")), lane.within);
    fetch(lane.base + url.slice(end), { method, redirect: "manual", headers }).then((response) => {
      if (settled) return;
      const now = Date.now();
      const { status } = response;
      if (status < 200 || status >= 500 || status === 421 || now - asked >= lane.slow || now > lane.until) {
        odd(response);
        return;
      }
      const edge = Math.max(0, asked - began * 1000).toFixed(1);
      const timing = `${lane.timing}${(now - asked).toFixed(1)}, edge;dur=${edge}${lane.reason}`;
      resolve(dress(response, lane.alt_svc, timing, lane.origin, request));
      settled = true;
    }).catch(odd);
  });
  return { promise };
}

/** A request without a body; `init` as JSON. */
export function send(url, init, ms, abort) {
  return within(ms, abort, url, JSON.parse(init));
}

/** A small body, whole. It takes all the time it needs, as long as it never stands still for `ms`. */
export async function gather(request, ms) {
  const reader = request.body.getReader();
  const chunks = [];
  for (;;) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(named("ClientBodyStalled", "the body stands still")), ms);
    });
    try {
      const { done, value } = await Promise.race([reader.read(), late]);
      if (done) return new Blob(chunks).arrayBuffer();
      chunks.push(value);
    } catch (error) {
      reader.cancel(error).catch(() => {});
      throw error.name === "ClientBodyStalled" ? error : named("ClientBodyBroken", error.message);
    } finally {
      clearTimeout(timer);
    }
  }
}

/**
 * A request with its body: fields taken out, then fields set (JSON, both). The body is `kept`, if there is one, else it is
 * streamed: then it takes all the time it needs, as long as it moves. That of a GET or HEAD can only be copied.
 */
export function sendCopy(url, request, gone, ours, ms, kept, abort) {
  let copy;
  let moving;
  const { method, headers, signal } = request;
  if (kept) {
    copy = new Request(url, { method, headers, body: kept });
  } else if (request.body && method !== "GET" && method !== "HEAD") {
    abort ??= new AbortController();
    moving = { at: Date.now(), awaited: true, broken: false, signal, abort };
    const length = headers.get("content-length");
    if (length && !Number.isSafeInteger(Number(length))) throw named("ClientBodyBroken", "no such length");
    const body = passed(request.body, length, moving);
    copy = new Request(url, { method, headers, signal, body });
  } else {
    copy = new Request(url, request);
  }
  for (const name of JSON.parse(gone)) copy.headers.delete(name);
  for (const [name, value] of Object.entries(JSON.parse(ours))) copy.headers.set(name, value);
  return within(ms, abort, copy, { redirect: "manual" }, moving);
}

const CHUNK = 65536;

/**
 * A body handed on chunk by chunk, none held back; `moving.at` is when the last one went, `awaited` whether it is the
 * client that must bring the next one (else the origin must take this one), `broken` whether it can't any more.
 */
function passed(body, length, moving) {
  const pipe = length ? new FixedLengthStream(Number(length)) : new IdentityTransformStream();
  const reader = body.getReader({ mode: "byob" });
  const writer = pipe.writable.getWriter();
  const run = async () => {
    try {
      let buffer = new ArrayBuffer(CHUNK);
      for (;;) {
        moving.awaited = true;
        const { done, value } = await reader.read(new Uint8Array(buffer));
        moving.awaited = false;
        moving.at = Date.now();
        if (done) break;
        await writer.write(value);
        moving.at = Date.now();
        buffer = value.buffer.byteLength === CHUNK ? value.buffer : new ArrayBuffer(CHUNK);
      }
      await writer.close();
    } catch (error) {
      moving.broken = moving.awaited;
      // First: an aborted stream alone ends a body of unknown length as if it were whole.
      if (moving.broken) moving.abort.abort(error);
      reader.cancel(error).catch(() => {});
      writer.abort(error).catch(() => {});
    }
  };
  run();
  return pipe.readable;
}

let kept = [];
let watchFrom = 0;
let ended = () => {};
let goOn;

/**
 * Once: fields that no `Connection` can take away, from how many bytes on a body is watched, who is told how it ended, and
 * who has the requests for which the quick way ended.
 */
export function configure(names, bytes, onEnd, onOdd) {
  kept = JSON.parse(names);
  watchFrom = bytes;
  ended = onEnd;
  goOn = onOdd;
}

/**
 * An answer with our Alt-Svc (or none) in place of the origin's, Server-Timing added, and without what its Connection
 * field names. A long body, or one of unknown length, is watched for being cut off; with `name` "" none is.
 */
export function dress(response, altSvc, timing, name, request) {
  const { status } = response;
  const body = status === 101 ? null : response.body;
  let ours = new Response(body, response);
  let { headers } = ours;
  const length = headers.get("content-length");
  // Read through a pipe, an encoded body would be decoded.
  if (name && body && !(length && Number(length) < watchFrom) && !headers.has("content-encoding")) {
    ours = new Response(watched(body, length, name, request.signal), response);
    headers = ours.headers;
  }
  const connection = headers.get("connection");
  if (status !== 101) {
    if (connection) unbind(headers, connection);
    headers.delete("proxy-connection");
    headers.delete("proxy-authenticate");
  }
  if (altSvc) headers.set("alt-svc", altSvc);
  else headers.delete("alt-svc");
  headers.append("server-timing", timing);
  return ours;
}

function unbind(headers, connection) {
  for (const name of connection.split(",")) {
    const field = name.trim().toLowerCase();
    if (/^[!#$%&'*+.^_`|~0-9a-z-]+$/.test(field) && !kept.includes(field)) headers.delete(field);
  }
  headers.delete("connection");
}

function watched(body, length, name, signal) {
  const pipe = length ? new FixedLengthStream(Number(length)) : new IdentityTransformStream();
  const run = async () => {
    try {
      await body.pipeTo(pipe.writable);
      ended(name, true);
    } catch {
      await scheduler.wait(5);
      ended(name, signal.aborted ? undefined : false); // undefined: the client has left
    }
  };
  waitUntil(run());
  return pipe.readable;
}
