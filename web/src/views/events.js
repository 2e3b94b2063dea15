/* What happened lately, as it happens. */
import { useState } from "preact/hooks";
import { useTopics } from "../lib/frame.js";
import { count, time } from "../lib/format.js";
import { html } from "../lib/html.js";
import { known } from "../lib/known.js";
import { go, href, place } from "../lib/router.js";
import { Choices, found, Search } from "../parts/filter.js";
import { JobMark } from "../parts/mark.js";
import { Table } from "../parts/table.js";

const KINDS = [
  ["", "all"],
  ["job", "jobs"],
  ["node", "nodes"],
  ["bad", "trouble"],
];

const columns = [
  { key: "at", title: "Time", class: "w-time", cell: (e) => html`<span class="muted num">${time(e.at_ms)}</span>` },
  { key: "what", title: "What", class: "w-reason", cell: (e) => html`<span class="strong">${e.kind}</span> ${e.what}` },
  {
    key: "state",
    title: "State",
    class: "w-state wide",
    cell: (e) => (e.state ? html`<${JobMark} state=${e.state} />` : ""),
  },
  {
    key: "id",
    title: "Of",
    class: "clip",
    cell: (e) =>
      e.job_id
        ? html`<a class="mono" href=${href("jobs", e.job_id)}>${e.job_id}</a>`
        : html`<a href=${href("nodes", e.node_id)}>${e.node_id}</a>`,
  },
  {
    key: "node",
    title: "Node",
    class: "wide clip w-node",
    cell: (e) => (e.job_id && e.node_id ? html`<a href=${href("nodes", e.node_id)}>${e.node_id}</a>` : ""),
  },
  {
    key: "why",
    title: "Reason",
    class: "wide clip",
    cell: (e) => (e.reason ? html`<a class="why" href=${href("jobs", e.job_id)}>${e.reason}</a>` : ""),
  },
];

function bad(event) {
  return event.reason || event.state === "FAILED" || event.what === "left" || event.what === "lost";
}

export function Events() {
  const [held, setHeld] = useState(null);
  const kind = place.query.get("kind") || "";
  const all = held || known.events;

  useTopics("events", "place");
  const rows = all
    .filter(
      (event) =>
        (!kind || (kind === "bad" ? bad(event) : event.kind === kind)) &&
        found([event.job_id, event.node_id, event.what, event.reason]),
    )
    .reverse();
  return html`
    <div class="tools"><h1>Events <span class="muted num">${count(known.eventCount)} since this page was opened</span></h1>
      <${Search} of="events" by="job, node, reason" />
      <${Choices} field="kind" options=${KINDS} />
      <button aria-pressed=${held !== null} onClick=${() => setHeld(held ? null : [...known.events])}>
        ${held ? "Go on" : "Hold"}
      </button>
    </div>
    ${/* rows are places, not events: it is cheaper to write into those that are there */ ""}
    <${Table} label="Events" rows=${rows} columns=${columns} keyOf=${(_, at) => at}
      open=${(e) => (e.job_id ? go("jobs", e.job_id) : go("nodes", e.node_id))}
      empty="Nothing has happened since this page was opened." />`;
}
