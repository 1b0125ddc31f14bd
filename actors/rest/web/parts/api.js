// Asks the REST server that this page came from. The token is in this tab's session storage and nowhere else; it goes
// into the Authorization header, never into a URL.

import { useEffect, useState } from "./html.js";

const TOKEN = "headrace.token";

/** What the server has said of itself since the token was accepted: its configuration, and the paths it answers. */
export const server = { config: null, paths: new Set() };

const listeners = new Set();

/** Calls `listener` whenever the token is given, refused or forgotten; returns what ends that. */
export function onToken(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

export function forgetToken() {
  sessionStorage.removeItem(TOKEN);
  server.config = null;
  listeners.forEach((listener) => listener());
}

/** An answer that is no success: `status` of HTTP, 0 if there was none. */
export class RestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** A path of parts, each quoted: ids may hold anything. */
export const path = (...parts) => "/" + parts.map((part) => encodeURIComponent(part)).join("/");

/** Asks a path of the server, and gives its JSON, or its text. */
export const ask = async (where, options) => (await respond(where, options)).answer;

/** The same, with the milliseconds of processor time that the server says the answer took. */
async function respond(where, { method = "GET", body, form, signal, token } = {}) {
  const headers = { Authorization: `Bearer ${token ?? sessionStorage.getItem(TOKEN) ?? ""}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const url = new URL(where.replace(/^\/+/, ""), document.baseURI);
  const content = form ?? (body === undefined ? undefined : JSON.stringify(body));
  let response;
  try {
    response = await fetch(url, { method, headers, body: content, signal, credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RestError(0, "the server does not answer");
  }
  const isText = response.headers.get("Content-Type")?.startsWith("text/plain");
  const answer = isText ? await response.text() : await response.json().catch(() => ({}));
  if (response.ok) return { answer, worked: Number(/^work;dur=([\d.]+)$/.exec(response.headers.get("Server-Timing"))?.[1] ?? 0) };
  if (response.status === 401 && token === undefined) forgetToken();
  throw new RestError(response.status, answer.errors?.[0] ?? `the server answers ${response.status}`);
}

/** Tries a token; keeps it if the server accepts it. */
export async function signIn(token) {
  await learn(token);
  sessionStorage.setItem(TOKEN, token);
  listeners.forEach((listener) => listener());
}

/** Asks what pages need to know of the server. */
export async function learn(token) {
  const [config, description] = await Promise.all([ask("/config", { token }), ask("/openapi.json", { token })]);
  server.paths = new Set(Object.keys(description.paths));
  server.config = config;
}

/** Whether the server answers a path, as its description writes it: pages link what exists. */
export const answers = (where) => server.paths.has(where);

/** Whether the token allows changing jobs. */
export const mayChange = () => server.config?.features["web-cancel"] === true;

const pollers = new Set();

/** Has everything on the page asked anew, as after a change. */
export const refresh = () => pollers.forEach((poll) => poll());

/** A page asks so seldom that answers to one of its questions take no more than this share of a processor. */
const MOST_SHARE = 0.01;

/**
 * When to ask next: at a multiple of the interval, so that what one page asks comes to the server at once and is one
 * question to the job; of a job whose answers take the server long, at one of the next but one.
 */
export function pause(now, interval, worked) {
  const least = Math.max(interval / 2, worked / MOST_SHARE);
  return Math.ceil((now + least) / interval) * interval - now;
}

/**
 * Asks a path again and again while the page is seen. Gives the newest answer (`data`) and why there is none (`error`);
 * an answer stays while a later question fails. Nothing is asked for an empty path.
 */
export function usePoll(where, interval = server.config?.["refresh-interval"] ?? 3000) {
  const [state, setState] = useState({ where, data: null, error: null });
  useEffect(() => {
    if (!where) return undefined;
    const control = new AbortController();
    let timer = 0;
    let isAsking = false;
    const poll = async () => {
      clearTimeout(timer);
      if (document.hidden || isAsking) return;
      isAsking = true;
      let worked = 0;
      try {
        const found = await respond(where, { signal: control.signal });
        worked = found.worked;
        setState({ where, data: found.answer, error: null });
      } catch (error) {
        if (control.signal.aborted) return;
        setState((before) => ({ where, data: before.where === where ? before.data : null, error }));
      } finally {
        isAsking = false;
      }
      if (!control.signal.aborted) timer = setTimeout(poll, pause(performance.now(), interval, worked));
    };
    poll();
    pollers.add(poll);
    document.addEventListener("visibilitychange", poll);
    return () => {
      clearTimeout(timer);
      control.abort();
      pollers.delete(poll);
      document.removeEventListener("visibilitychange", poll);
    };
  }, [where, interval]);
  return state.where === where ? state : { where, data: null, error: null };
}
