/* All nodes, as a table. */
import { useTopics } from "../lib/frame.js";
import { ago, count, percent } from "../lib/format.js";
import { severity, whyNoRoom } from "../lib/explain.js";
import { html } from "../lib/html.js";
import { known } from "../lib/known.js";
import { go, href, place } from "../lib/router.js";
import { cpuOf, memoryOf, Slots, toneOf } from "../parts/bar.js";
import { Choices, found, Search } from "../parts/filter.js";
import { ServerMark } from "../parts/mark.js";
import { useSeconds } from "../parts/shell.js";
import { Table } from "../parts/table.js";

const FILTERS = [
  ["", "all"],
  ["good", "ready"],
  ["trouble", "trouble"],
  ["held", "held"],
  ["off", "offline"],
];

function Share({ kind, value }) {
  if (value == null) return html`<span class="muted">–</span>`;
  return html`<span class="share"><span class="bar-track"><span class="bar-fill ${toneOf(kind, value)}"
    style=${{ width: `${Math.min(100, value)}%` }}></span></span><span class="num">${percent(value)}</span></span>`;
}

/* What an offline server said last is not how it is. */
const now = (server, figure) => (server.online ? figure(server) : null);

const columns = [
  {
    key: "id",
    title: "Node",
    sort: (s) => s.at,
    cell: (s) =>
      html`<a class="strong lead" href=${href("nodes", s.id)}>${s.name}</a>
        <span class="muted">${[s.name !== s.id && s.id, s.role].filter(Boolean).join(" · ")}</span>`,
  },
  {
    key: "state",
    title: "State",
    class: "w-state",
    sort: (s) => s.rank,
    cell: (s) => html`<${ServerMark} server=${s} />`,
  },
  {
    key: "slots",
    title: "Slots",
    class: "w-slots",
    sort: (s) => s.slots_in_use / Math.max(1, s.slots_max),
    cell: (s) => html`<${Slots} server=${s} />`,
  },
  {
    key: "cpu",
    title: "CPU",
    class: "w-share wide",
    sort: (s) => now(s, cpuOf) ?? -1,
    cell: (s) => html`<${Share} kind="cpu" value=${now(s, cpuOf)} />`,
  },
  {
    key: "mem",
    title: "Memory",
    class: "w-share wide",
    sort: (s) => now(s, memoryOf) ?? -1,
    cell: (s) => html`<${Share} kind="memory" value=${now(s, memoryOf)} />`,
  },
  {
    key: "why",
    title: "Takes",
    class: "wide clip",
    cell: (s) => {
      const why = whyNoRoom(s);
      return why
        ? html`<a class=${why.bad ? "why" : "muted"} href=${href("nodes", s.id)}>${why.text}</a>`
        : html`<span class="muted">${s.available_for.join(", ") || "face-to-face"}</span>`;
    },
  },
  {
    key: "seen",
    title: "Seen",
    class: "num w-time wide",
    sort: (s) => s.last_seen_ms,
    cell: (s) => html`<span class="muted">${ago(s.last_seen_ms)}</span>`,
  },
];

function matches(server, state) {
  const tone = severity(server);
  if (state === "trouble" ? !["critical", "danger", "warning"].includes(tone) : state && tone !== state) return false;
  return found([server.id, server.name, server.role, server.level, server.health, ...server.available_for]);
}

export function Nodes() {
  const state = place.query.get("state") || "";
  const rows = known.servers.filter((server) => matches(server, state));
  const tick = Math.floor(useSeconds() / 5000);
  const empty = known.servers.length ? "No node matches." : "No node has registered yet.";

  useTopics("cluster", "place");
  return html`
    <div class="tools">
      <h1>Nodes <span class="muted num">${count(rows.length)}</span></h1>
      <${Search} of="nodes" by="name, role, type" />
      <${Choices} field="state" options=${FILTERS} />
    </div>
    <${Table} label="Nodes" rows=${rows} columns=${columns} tick=${tick} empty=${empty}
      keyOf=${(s) => s.id} tone=${(s) => `tone-${severity(s)}`} open=${(s) => go("nodes", s.id)} />`;
}
