/* What a process printed, followed while it runs. `read(offset)` answers {offset, total, text, ended}. */
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { html } from "../lib/html.js";
import { plural } from "../lib/format.js";

const KEEP = 400000; /* characters; the newest are kept */
const PAUSE_MS = 700;
/* What a terminal would obey: colours, titles. */
const ORDERS = /\u001b(\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(\u0007|\u001b\\))/g;

export function Logs({ read, live, label }) {
  const [log, setLog] = useState({ text: "", next: 0, cut: false, error: null, ended: false });
  const [follow, setFollow] = useState(true);
  const box = useRef(null);
  const running = useRef(live);

  running.current = live;
  useEffect(() => {
    let over = false;
    let timer = 0;
    let next = 0;

    async function ask() {
      let pause = PAUSE_MS;
      try {
        const piece = await read(next);
        if (over) return;
        const fresh = piece.next ?? piece.offset + new TextEncoder().encode(piece.text).length;
        if (fresh > next && fresh < piece.total) pause = 0;
        const from = piece.offset;
        next = Math.max(next, fresh);
        setLog((before) => {
          const text = (before.text + piece.text).replace(ORDERS, "");
          return {
            text: text.slice(-KEEP),
            next,
            cut: before.cut || text.length > KEEP || from > before.next,
            error: null,
            ended: piece.ended,
          };
        });
        if (piece.ended && next >= piece.total) return;
      } catch (error) {
        if (over) return;
        setLog((before) => ({ ...before, error: error.message }));
        if (!running.current) return;
      }
      timer = setTimeout(ask, pause);
    }
    ask();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [read]);
  useLayoutEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [log.text, follow]);

  function onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    setFollow(scrollTop + clientHeight >= scrollHeight - 8);
  }

  return html`<section class="panel logs">
    <header><h2>${label}</h2><span class="muted num">${log.text && plural(log.text.split("\n").length - 1, "line")}
      ${!log.ended && live ? " · following" : ""}</span></header>
    ${log.cut && html`<p class="muted">Only the newest part is shown.</p>`}
    ${
      log.text
        ? html`<pre ref=${box} tabindex="0" onScroll=${onScroll} aria-label=${label}>${log.text}</pre>`
        : html`<p class="muted">${log.error || (log.ended ? "It printed nothing." : "Nothing yet.")}</p>`
    }
  </section>`;
}
