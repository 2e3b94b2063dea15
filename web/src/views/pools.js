/* Pools: who can do what, and how many of them are ready. */
import { useTopics } from "../lib/frame.js";
import { count } from "../lib/format.js";
import { html } from "../lib/html.js";
import { known } from "../lib/known.js";
import { go, refine } from "../lib/router.js";
import { found, Search } from "../parts/filter.js";
import { Mark } from "../parts/mark.js";
import { Table } from "../parts/table.js";

function Ready({ pool }) {
  const tone = pool.ready === 0 ? "critical" : pool.ready < pool.members ? "warning" : "good";
  return html`<${Mark} tone=${tone}>${pool.ready === 0 ? "nobody ready" : `${count(pool.ready)} ready`}<//>`;
}

const isType = (pool) => pool.src === "type";

const columns = [
  {
    key: "what",
    title: "Work",
    sort: (p) => p.pool_id,
    cell: (p) =>
      isType(p)
        ? html`<span class="strong">${p.tgt === "*" ? "any type of task" : p.tgt}</span>`
        : html`<span class="strong">${p.src} → ${p.tgt}</span>`,
  },
  {
    key: "kind",
    title: "Kind",
    class: "wide",
    cell: (p) => html`<span class="muted">${isType(p) ? "tasks" : "face to face"}</span>`,
  },
  {
    key: "ready",
    title: "Ready",
    class: "w-state",
    sort: (p) => p.ready / Math.max(1, p.members),
    cell: (p) => html`<${Ready} pool=${p} />`,
  },
  { key: "members", title: "Members", class: "num w-time", sort: (p) => p.members, cell: (p) => count(p.members) },
  {
    key: "version",
    title: "Version",
    class: "num w-time wide",
    sort: (p) => p.version,
    cell: (p) => html`<span class="muted">${p.version}</span>`,
  },
];

export function Pools() {
  const rows = (known.pools || []).filter((pool) => found([pool.pool_id]));

  useTopics("slow", "place");
  return html`
    <div class="tools"><h1>Pools <span class="muted num">${count(rows.length)}</span></h1>
      <${Search} of="pools" by="type or language" /></div>
    <${Table} label="Pools" rows=${rows} columns=${columns} keyOf=${(p) => p.pool_id}
      open=${(p) => {
        go("nodes");
        refine({ q: isType(p) && p.tgt !== "*" ? p.tgt : "" });
      }}
      empty=${known.pools ? "No pool: no node has registered yet." : "Reading…"} />`;
}
