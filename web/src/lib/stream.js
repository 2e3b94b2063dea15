/* Server-sent events over fetch: EventSource cannot carry a token. Hands over each event, and says
 * whether there is a connection and since when. */
import { open } from "./api.js";

const SILENT_MS = 40000; /* the server says something at least every 15 s */
const PAUSE_MIN_MS = 500;
const PAUSE_MAX_MS = 10000;

/* The events that are whole in `text`, and what is left of it. */
export function splitEvents(text, take) {
  let at = 0;
  for (;;) {
    const end = text.indexOf("\n\n", at);
    if (end < 0) return text.slice(at);
    let name = "message";
    let data = "";
    let id = null;
    for (const line of text.slice(at, end).split("\n")) {
      if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data += line.slice(6);
      else if (line.startsWith("id: ")) id = line.slice(4);
    }
    if (data) take(name, data, id);
    at = end + 2;
  }
}

async function readAll(answer, take, heard) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    rest = splitEvents(rest + value, take);
  }
}

/* Follows the stream for ever. link: {up(), down(error, pauseMs), event(name, data)}. Returns a function
 * that ends the pause before the next try; without a good token only that does. */
export function follow(path, link) {
  let wake = () => {};
  let seen = null; /* id of the last event: the server tells what followed */

  function take(name, data, id) {
    seen = id || seen;
    link.event(name, data);
  }

  async function once() {
    const stop = new AbortController();
    let heard = Date.now();
    const watch = setInterval(() => Date.now() - heard > SILENT_MS && stop.abort(), 5000);
    try {
      const headers = { Accept: "text/event-stream", ...(seen && { "Last-Event-ID": seen }) };
      const answer = await open(path, { signal: stop.signal, headers });
      link.up();
      await readAll(answer, take, () => (heard = Date.now()));
    } finally {
      clearInterval(watch);
      stop.abort();
    }
  }

  async function run() {
    let pause = PAUSE_MIN_MS;
    for (;;) {
      const begun = Date.now();
      let error = null;
      try {
        await once();
      } catch (reason) {
        error = reason;
      }
      if (Date.now() - begun > 5000) pause = PAUSE_MIN_MS;
      link.down(error, pause);
      await new Promise((go) => {
        const shut = error && (error.status === 401 || error.status === 403);
        const timer = shut ? 0 : setTimeout(go, pause);
        wake = () => {
          clearTimeout(timer);
          go();
        };
      });
      pause = Math.min(pause * 2, PAUSE_MAX_MS);
    }
  }

  run();
  return () => wake();
}
