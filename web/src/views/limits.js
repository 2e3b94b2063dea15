/* Limits by key: how much of each is in use, and who waits for it. */
import { post, seg } from "../lib/api.js";
import { count, duration, NONE } from "../lib/format.js";
import { useTopics } from "../lib/frame.js";
import { html } from "../lib/html.js";
import { useReading } from "../lib/reading.js";
import * as shape from "../lib/shape.js";
import { Bar } from "../parts/bar.js";
import { confirm, tell } from "../parts/dialog.js";
import { found, Search } from "../parts/filter.js";
import { Mark } from "../parts/mark.js";
import { Table } from "../parts/table.js";

const EVERY_MS = 2000;
const HOLD_MS = 10 * 60 * 1000;

const isRule = (limit) => limit.in_flight == null; /* for many keys: it has no use of its own */
const isHeld = (limit) => limit.held_ms > 0;

function askHold(limit, again) {
  const held = isHeld(limit);
  confirm({
    title: held ? `Let ${limit.key} start again?` : `Hold ${limit.key} for ten minutes?`,
    verb: held ? "Let it start" : "Hold it",
    danger: !held,
    text: held ? "What waits for it starts at once." : "Nothing with this key starts meanwhile. What runs goes on.",
    async act() {
      if (held) await post(`/v1/limits/${seg(limit.key)}/release`);
      else await post(`/v1/limits/${seg(limit.key)}/hold`, { for_ms: HOLD_MS, reason: "from the page" });
      again();
      tell(held ? `${limit.key} may start again.` : `${limit.key} is held.`);
    },
  });
}

function Use({ limit }) {
  if (isRule(limit)) return html`<span class="muted">each ${limit.concurrency == null ? "without a bound" : count(limit.concurrency)}</span>`;
  if (limit.concurrency == null) return html`<span class="num">${count(limit.in_flight)}</span>`;
  const share = limit.concurrency > 0 ? (100 * limit.in_flight) / limit.concurrency : 100;
  return html`<${Bar} label="" value=${share} tone=${share >= 100 ? "danger" : "good"}
    text=${`${count(limit.in_flight)} of ${count(limit.concurrency)}`} />`;
}

function Held({ limit }) {
  if (!isHeld(limit)) return null;
  return html`<${Mark} tone="warning">${duration(limit.held_ms)}${limit.hold_reason ? ` · ${limit.hold_reason}` : ""}<//>`;
}

const columns = (again) => [
  { key: "key", title: "Key", sort: (l) => l.key, cell: (l) => html`<span class="strong">${l.key}</span>` },
  { key: "use", title: "In flight", sort: (l) => l.in_flight, cell: (l) => html`<${Use} limit=${l} />` },
  {
    key: "rate",
    title: "Started",
    class: "num wide",
    sort: (l) => l.started,
    cell: (l) => (l.rate ? (isRule(l) ? l.rate : `${count(l.started)} of ${l.rate}`) : NONE),
  },
  {
    key: "waiting",
    title: "Waiting",
    class: "num",
    sort: (l) => l.waiting,
    cell: (l) => (isRule(l) ? (l.queue == null ? "" : `at most ${count(l.queue)}`) : l.queue == null ? count(l.waiting) : `${count(l.waiting)} of ${count(l.queue)}`),
  },
  { key: "weight", title: "Weight", class: "num wide", sort: (l) => l.weight, cell: (l) => count(l.weight) },
  { key: "held", title: "Held", sort: (l) => l.held_ms, cell: (l) => html`<${Held} limit=${l} />` },
  {
    key: "act",
    title: "",
    class: "w-time",
    cell: (l) => !isRule(l) && html`<button class="small" onClick=${() => askHold(l, again)}>${isHeld(l) ? "Release" : "Hold"}</button>`,
  },
];

export function Limits() {
  const { answer, error, again } = useReading("/v1/limits?limit=1000", shape.limits, EVERY_MS);
  const rows = ((answer && answer.limits) || []).filter((limit) => found([limit.key, limit.rule]));

  useTopics("place");
  return html`
    <div class="tools"><h1>Limits <span class="muted num">${count(rows.length)}</span></h1>
      <${Search} of="limits" by="key" /></div>
    <${Table} label="Limits" rows=${rows} columns=${columns(again)} keyOf=${(l) => l.key}
      empty=${error ? error.message : answer ? "No limit is set, and no key is in use. berth limit set KEY --concurrency N makes one." : "Reading…"} />`;
}
