/* One node: how it is and why, what it can do, its breakers, and what an operator can do about it. */
import { post, seg } from "../lib/api.js";
import { useTopics } from "../lib/frame.js";
import { ago, count, gigabytes, percent, time } from "../lib/format.js";
import { levelText, whyNoRoom } from "../lib/explain.js";
import { html } from "../lib/html.js";
import { known, slowPoll, statePoll } from "../lib/known.js";
import { useReading } from "../lib/reading.js";
import { href } from "../lib/router.js";
import * as shape from "../lib/shape.js";
import { Bar, CpuBar, DiskBar, MemoryBar, Slots, toneOf } from "../parts/bar.js";
import { confirm, tell } from "../parts/dialog.js";
import { TaskLink } from "../parts/link.js";
import { JobMark, Mark, ServerMark } from "../parts/mark.js";
import { Facts, Panel, Rows } from "../parts/panel.js";
import { useSeconds } from "../parts/shell.js";
import { AvailableFor } from "./server.js";

const ACTIONS = {
  drain: {
    title: "Drain",
    danger: true,
    text: (id) =>
      `${id} gets no new work; what runs there may end. It stays so, also over restarts, until it is undrained.`,
  },
  cordon: { title: "Cordon", danger: false, text: (id) => `${id} gets no new work until it is uncordoned.` },
  undrain: { title: "Undrain", danger: false, text: (id) => `${id} gets work again.` },
};

function ask(id, verb) {
  const action = ACTIONS[verb];
  confirm({
    title: `${action.title} ${id}?`,
    text: action.text(id),
    verb: action.title,
    danger: action.danger,
    async act() {
      await post(`/v1/nodes/${seg(id)}/${verb}`);
      statePoll.soon();
      tell(`${id}: ${verb} is in force.`);
    },
  });
}

function askReset(breaker) {
  confirm({
    title: `Close the breaker?`,
    verb: "Close it",
    danger: false,
    text: `${breaker.node_id} gets work of type ${breaker.type} again at once.`,
    async act() {
      await post("/v1/breakers/reset", { node_id: breaker.node_id, type: breaker.type });
      slowPoll.soon();
    },
  });
}

function Why({ server, node }) {
  const now = useSeconds();
  const why = whyNoRoom(server);
  const told = node && node.why_not; /* the dispatcher's own word for it */
  const level = levelText(server.level);
  if (!why && !level && !told) return null;
  return html`<section class="panel why-panel ${!server.online ? "off" : why && !why.bad ? "calm" : server.level}">
    <h2>${why || told ? "Why nothing new starts here" : "Why it is cautious"}</h2>
    ${(told || why) && html`<p><b>${why ? why.text : told.reason}</b>${told && html` · ${told.detail}`}</p>`}
    ${server.online && level && html`<p>${level}${server.tripped ? ` The figure that tripped: ${server.tripped}.` : ""}</p>`}
    ${
      !server.online &&
      html`<p class="muted">Last heard of ${time(server.last_seen_ms)}, ${ago(server.last_seen_ms, now)}. Is
      the machine up, does <code>berth agent</code> run there, and can it reach this server?</p>`
    }
  </section>`;
}

function Clamps({ clamps }) {
  if (!clamps || !clamps.length) return null;
  return html`<${Panel} title="How its slots come about">
    <${Rows} head=${["Step", ".Slots", "Because"]}>
      ${clamps.map(
        (clamp) =>
          html`<tr class=${clamp.bites ? "bites" : ""}>
            <td>${clamp.name && clamp.name.replaceAll("_", " ")}</td>
            <td class="num">${clamp.value}</td>
            <td>${clamp.reason}</td>
          </tr>`,
      )}
    <//>
  <//>`;
}

function BreakerRow({ breaker, now }) {
  const tone = breaker.state === "OPEN" ? "critical" : "warning";
  return html`<tr>
    <td>${breaker.type}</td>
    <td><${Mark} tone=${tone}>${breaker.state.toLowerCase().replace("_", " ")}<//></td>
    <td class="num">${breaker.failures}</td>
    <td>${ago(breaker.opened_ms, now)}</td>
    <td><button onClick=${() => askReset(breaker)}>Close it</button></td>
  </tr>`;
}

function Breakers({ id }) {
  const now = useSeconds();
  const own = known.breakers.filter((breaker) => breaker.node_id === id);
  if (!own.length) return null;
  return html`<${Panel} title="Breakers">
    <${Rows} head=${["Type", "State", ".Failures", "Since", ""]}>
      ${own.map((breaker) => html`<${BreakerRow} key=${breaker.type} breaker=${breaker} now=${now} />`)}
    <//>
    <p class="muted">
      This node failed that type of work several times in a row and gets no more of it for a while; then one job goes
      there as a probe. <a href=${`${href("jobs")}?node_id=${seg(id)}&state=FAILED`}>Its failed jobs</a>
    </p>
  <//>`;
}

function factsOf(node) {
  const list = (words) =>
    words.length ? words.map((word) => html`<span class="chip">${word}</span>`) : html`<span class="muted">none</span>`;
  return [
    ["Task types", list(node.allowed_types)],
    ["Language pairs", node.nmt_pairs === "any" ? "any" : list(node.nmt_pairs.map((pair) => pair.join(" → ")))],
    ["Labels", list(Object.entries(node.labels).map((pair) => pair.join("=")))],
    ["Fixed by the server", node.fixed.length > 0 && list(node.fixed)],
    ["Reached by", `${node.reached_by}${node.endpoint ? ` (${node.endpoint})` : ""}`],
    ["Jobs at once", html`<span class="num">${node.max_concurrent_jobs}</span>`],
    ["Health score", html`<span class="num">${node.health_score}</span>`],
    ["Registered", time(node.registered_ms)],
    ["Loaded", node.loaded.length > 0 && list(node.loaded)],
    ["Agent", node.agent_version || html`<span class="muted">none: nothing is measured there</span>`],
  ];
}

function Running({ server }) {
  return html`<${Panel} title="Runs now">
    ${server.tasks.length ? "" : html`<p class="muted">Nothing.</p>`}
    <ul class="tasks">
      ${server.tasks.map(
        (task) => html`<li key=${task.job_id}><${TaskLink} task=${task} /> <${JobMark} state=${task.state} /></li>`,
      )}
    </ul>
    <p><a href=${`${href("jobs")}?node_id=${seg(server.id)}`}>All its jobs</a></p>
  <//>`;
}

function Figures({ server }) {
  const { swap_used_pct: swap, gpu_pct: gpu } = server;
  if (server.figures_reason) return html`<p class="muted">${server.figures_reason}</p>`;
  return html`
    <${CpuBar} server=${server} />
    <${MemoryBar} server=${server} />
    ${swap > 0 && html`<${Bar} label="Swap" value=${swap} tone=${toneOf("swap", swap)} text=${percent(swap)} />`}
    ${server.disk_total_gb != null && html`<${DiskBar} server=${server} />`}
    ${gpu != null && html`<${Bar} label="GPU" value=${gpu} tone="good" text=${percent(gpu)} />`}
  `;
}

/* What leases hold of it; others may have some of the rest. */
function Amount({ label, of, whole, unit = (value) => count(value) }) {
  const { capacity, usable, promised, left } = of;
  const others = capacity - usable;
  const share = whole ? 100 : capacity > 0 ? (100 * (capacity - left)) / capacity : 100;
  return html`<${Bar} label=${label} value=${share} tone=${left > 0 && !whole ? "good" : "danger"}
    text=${percent(share)} note=${`${whole ? "one job has it whole" : `${unit(promised)} of ${unit(capacity)}`}${others > 0 ? `, ${unit(others)} in use by others` : ""}`} />`;
}

const gigabytesOf = (mb) => gigabytes(mb / 1024);
const NAMED = { cpu: { label: "CPU", unit: (cores) => `${Math.round(10 * cores) / 10}` }, mem_mb: { label: "Memory", unit: gigabytesOf } };

function Resources({ resources }) {
  if (!resources.named.length && !resources.gpus.length) return null;
  return html`<${Panel} title="Promised to jobs">
    ${resources.gpus.map(
      (gpu) => html`<${Amount} key=${`gpu ${gpu.id}`} label=${`GPU ${gpu.id}`} of=${gpu.vram_mb} whole=${gpu.whole} unit=${gigabytesOf} />`,
    )}
    ${resources.named.map(([name, of]) => html`<${Amount} key=${name} of=${of} ...${shape.pick(NAMED, name) || { label: name }} />`)}
  <//>`;
}

function Actions({ id, server }) {
  if (server.admin || server.health === "draining")
    return html`<button class="main" onClick=${() => ask(id, "undrain")}>Undrain</button>`;
  return html`
    <button onClick=${() => ask(id, "cordon")}>Cordon</button>
    <button class="danger" onClick=${() => ask(id, "drain")}>Drain</button>
  `;
}

function Missing({ id, error }) {
  const told = error ? error.message : known.cluster ? `There is no node "${id}" any more.` : "Reading…";
  return html`<p class="empty">${told}</p>`;
}

export function Node({ id }) {
  const server = known.serverById.get(id);
  const seen = server && `${server.last_seen_ms} ${server.admin} ${server.health}`;
  /* what the overview leaves out is read for this node alone */
  const { answer: node, error } = useReading(`/v1/nodes/${seg(id)}`, shape.node, 0, seen);
  const { answer: status } = useReading(`/v1/cluster/status?node_id=${seg(id)}`, shape.status, 0, seen);

  useTopics("cluster", "slow");
  if (!server) return html`<${Missing} id=${id} error=${error} />`;
  return html`
    <div class="tools">
      <p class="crumbs"><a href="#/nodes">Nodes</a></p>
      <h1>${server.name} ${server.role && html`<span class="muted">${server.role}</span>`}</h1>
      <${ServerMark} server=${server} />
      <span class="spring"></span>
      <${Actions} id=${id} server=${server} />
    </div>
    <div class="panels">
      <${Why} server=${server} node=${node} />
      <${Panel} title="Load">
        <${Figures} server=${server} />
        <div class="bar"><span class="bar-label">Slots</span><${Slots} server=${server} /></div>
        <p><span class="muted">available for</span> <${AvailableFor} server=${server} /></p>
      <//>
      ${node && html`<${Resources} resources=${node.resources} />`}
      <${Running} server=${server} />
      <${Breakers} id=${id} />
      ${status && status.servers[id] && html`<${Clamps} clamps=${status.servers[id].clamps} />`}
      ${node && html`<${Facts} rows=${factsOf(node)} />`}
    </div>`;
}
