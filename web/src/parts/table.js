/* A table of any length: only the rows in sight exist. Rows are reached with the arrow keys and opened
 * with Enter. */
import { Component } from "preact";
import { useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";
import { html } from "../lib/html.js";

const ROW = 38; /* px, as in table.css */
const MARGIN = 8; /* rows kept beyond each edge */

class Row extends Component {
  shouldComponentUpdate(next) {
    const now = this.props;
    return next.row !== now.row || next.columns !== now.columns || next.tab !== now.tab || next.tick !== now.tick;
  }

  render({ row, columns, at, tab, tone, open }) {
    return html`<tr data-at=${at} tabindex=${tab ? 0 : -1} class=${tone ? tone(row) : ""} onClick=${(event) => open(event, row)}>
      ${columns.map((column) => html`<td class=${column.class}>${column.cell(row)}</td>`)}
    </tr>`;
  }
}

/* Rows that are out of sight, as the room they would take. */
function Gap({ rows }) {
  return html`<tr class="gap" aria-hidden="true"><td style=${{ height: `${rows * ROW}px` }}></td></tr>`;
}

function inSight(body, count) {
  if (!body) return [0, Math.min(count, 40)];
  const top = -body.getBoundingClientRect().top;
  const first = Math.max(0, Math.floor(top / ROW) - MARGIN);
  const last = Math.min(count, Math.ceil((top + innerHeight) / ROW) + MARGIN);
  return [Math.min(first, Math.max(0, last)), Math.max(0, last)];
}

function sorted(rows, columns, order) {
  const column = columns.find((one) => one.key === order.key);
  if (!column || !column.sort) return rows;
  const sign = order.down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const x = column.sort(a);
    const y = column.sort(b);
    return (x < y ? -1 : x > y ? 1 : 0) * sign;
  });
}

const KEYS = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 15, PageUp: -15, Home: -1e9, End: 1e9 };

/* columns: [{key, title, cell(row), class, sort(row)}] and must stay the same object between draws;
 * open(row) is what a click or Enter does. */
export function Table({ label, rows, columns, keyOf, open, tone, first = {}, empty, tick }) {
  const body = useRef(null);
  const [, redraw] = useReducer((n) => n + 1, 0);
  const [order, setOrder] = useState(first);
  const [focus, setFocus] = useState(0);
  const wanted = useRef(-1);
  const list = sorted(rows, columns, order);
  const [from, to] = inSight(body.current, list.length);

  useEffect(() => {
    let last = "";
    const look = () => {
      const now = inSight(body.current, list.length).join();
      if (now !== last) redraw();
      last = now;
    };
    addEventListener("scroll", look, { passive: true });
    addEventListener("resize", look);
    return () => {
      removeEventListener("scroll", look);
      removeEventListener("resize", look);
    };
  }, [list.length]);
  useLayoutEffect(() => {
    if (wanted.current >= 0) reach(wanted.current);
  });

  /* Focuses a row, at once or, when it is far off, once it exists. */
  function reach(at) {
    const row = body.current.querySelector(`[data-at="${at}"]`);
    wanted.current = row ? -1 : at;
    if (!row) return;
    row.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  }

  function moveTo(at) {
    const next = Math.max(0, Math.min(list.length - 1, at));
    reach(next);
    if (wanted.current >= 0) scrollBy(0, body.current.getBoundingClientRect().top + next * ROW - innerHeight / 2);
    setFocus(next);
    redraw();
  }

  function orderBy(key) {
    setOrder({ key, down: order.key === key && !order.down });
  }

  function onKey(event) {
    if (event.target.dataset.at === undefined) return;
    const at = wanted.current >= 0 ? wanted.current : Number(event.target.dataset.at);
    if (event.key === "Enter") open(list[at]);
    else if (event.key in KEYS) moveTo(at + KEYS[event.key]);
    else return;
    event.preventDefault();
  }

  function onOpen(event, row) {
    if (!event.target.closest("a, button, input")) open(row);
  }

  if (!rows.length && empty) return html`<div class="empty">${empty}</div>`;
  return html`<table class="rows" aria-label=${label} aria-rowcount=${list.length} onKeyDown=${onKey}>
    <thead><tr>${columns.map(
      (column) => html`<th class=${column.class} scope="col"
      aria-sort=${order.key === column.key ? (order.down ? "descending" : "ascending") : undefined}>
      ${
        column.sort
          ? html`<button class="plain" onClick=${() => orderBy(column.key)}>${column.title}</button>`
          : column.title
      }
    </th>`,
    )}</tr></thead>
    <tbody ref=${body}>
      ${from > 0 && html`<${Gap} key="above" rows=${from} />`}
      ${list.slice(from, to).map(
        (row, at) => html`<${Row} key=${keyOf(row, from + at)} row=${row} columns=${columns} at=${from + at}
        tab=${from + at === Math.min(Math.max(focus, from), to - 1)} tone=${tone} open=${onOpen} tick=${tick} />`,
      )}
      ${to < list.length && html`<${Gap} key="below" rows=${list.length - to} />`}
    </tbody>
  </table>`;
}
