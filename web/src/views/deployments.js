/* Deployments: what must always run somewhere, and where it does. */
import { useCallback } from "preact/hooks";
import { get, post, seg } from "../lib/api.js";
import { useTopics } from "../lib/frame.js";
import { ago, count, NONE, plural, time } from "../lib/format.js";
import { html } from "../lib/html.js";
import { known, slowPoll } from "../lib/known.js";
import { useReading } from "../lib/reading.js";
import { go, href } from "../lib/router.js";
import * as shape from "../lib/shape.js";
import { confirm, tell } from "../parts/dialog.js";
import { found, Search } from "../parts/filter.js";
import { NodeLink, Why } from "../parts/link.js";
import { Logs } from "../parts/logs.js";
import { Mark } from "../parts/mark.js";
import { Facts, Panel, Rows } from "../parts/panel.js";
import { Table } from "../parts/table.js";

const BAD = new Set(["unhealthy", "backoff", "crash_loop", "failed", "refused"]);
const GOOD = new Set(["running", "finished"]);
const copiesOf = (deployment) => deployment.copies;
const restarts = (deployment) => copiesOf(deployment).reduce((sum, copy) => sum + copy.restarts, 0);

function CopyMark({ copy }) {
  const tone = BAD.has(copy.state) ? "critical" : GOOD.has(copy.state) ? "good" : "wait";
  return html`<${Mark} tone=${tone} title=${copy.reason}>${copy.state.replace("_", " ")}<//>`;
}

const several = (deployment) => deployment.count > 1;
const isReady = (copy) => GOOD.has(copy.state) && copy.healthy === true;

/* How an update is: the tone and the words of its mark. */
const UPDATES = {
  rolling: ["wait", "updating"],
  rolling_back: ["warning", "going back"],
  rolled_back: ["warning", "went back"],
  stopped: ["critical", "update stopped"],
};

function UpdateMark({ update }) {
  const [tone, words] = (update && UPDATES[update.state]) || [];
  return words ? html` <${Mark} tone=${tone} title=${update.reason}>${words}<//>` : null;
}

function State({ deployment }) {
  const copies = copiesOf(deployment);
  if (!deployment.enabled) return html`<${Mark} tone="off">disabled<//>`;
  if (several(deployment)) {
    const ready = copies.length ? copies.filter(isReady).length : deployment.ready || 0;
    return html`<${Mark} tone=${ready === deployment.count ? "good" : "warning"}>${ready} of ${deployment.count} ready<//>
      <${UpdateMark} update=${deployment.update} />`;
  }
  if (deployment.type !== "daemon" && !deployment.address) return html`<${Mark} tone="warning">unassigned<//>`;
  if (!copies.length) return html`<${Mark} tone="wait">${deployment.type === "daemon" ? "nowhere yet" : "claimed"}<//>`;
  return html`<${CopyMark} copy=${copies.find((copy) => BAD.has(copy.state)) || copies[0]} />
    <${UpdateMark} update=${deployment.update} />`;
}

/* Lists leave the copies out; of rows in sight they are read one by one. */
function Live({ deployment }) {
  const { answer = deployment } = useReading(`/v1/deployments/${seg(deployment.id)}`, shape.deployment, 5000, deployment);
  const again = restarts(answer);
  return html`<${State} deployment=${answer} />${again > 0 && html`<span class="muted num"> · ${plural(again, "restart")}</span>`}`;
}

function Owner({ deployment }) {
  if (deployment.type === "daemon") return html`<span class="muted">every node that matches</span>`;
  if (several(deployment)) return html`<span class="num">${plural(deployment.count, "copy", "copies")}</span>`;
  return html`<${NodeLink} id=${deployment.address} />`;
}

const columns = [
  {
    key: "id",
    title: "Deployment",
    class: "clip",
    sort: (d) => d.id,
    cell: (d) =>
      html`<a class="strong lead" href=${href("deployments", d.id)}>${d.id}</a>
        <span class="muted wide">${d.package_name} ${d.package_version}</span>`,
  },
  { key: "state", title: "State", class: "w-slots", cell: (d) => html`<${Live} deployment=${d} />` },
  {
    key: "owner",
    title: "Owner",
    class: "clip w-node",
    sort: (d) => d.address || "",
    cell: (d) => html`<${Owner} deployment=${d} />`,
  },
  {
    key: "gen",
    title: "Generation",
    class: "num w-time wide",
    sort: (d) => d.generation,
    cell: (d) => count(d.generation),
  },
];

export function Deployments() {
  const rows = (known.deployments || []).filter((d) => found([d.id, d.package_name, d.address]));

  useTopics("slow", "place");
  return html`
    <div class="tools"><h1>Deployments <span class="muted num">${count(rows.length)}</span></h1>
      <${Search} of="deployments" by="name or owner" /></div>
    <${Table} label="Deployments" rows=${rows} columns=${columns} keyOf=${(d) => d.id} open=${(d) => go("deployments", d.id)}
      empty=${known.deployments ? "There are no deployments." : "This server keeps no deployments."} />`;
}

function askRestart(deployment) {
  confirm({
    title: `Restart ${deployment.id}?`,
    verb: "Restart",
    danger: true,
    text: "Its copies are stopped and started again.",
    async act() {
      await post(`/v1/deployments/${seg(deployment.id)}/restart`);
      slowPoll.soon();
      tell(`${deployment.id} is restarted.`);
    },
  });
}

function askScale(deployment) {
  let wanted = deployment.count || 1;
  confirm({
    title: `Scale ${deployment.id}`,
    verb: "Scale",
    danger: false,
    text: html`<label>Copies <input type="number" name="count" min="1" max="1000" required value=${wanted}
      onInput=${(event) => (wanted = event.target.valueAsNumber)} /></label>
      <span class="muted"> Fewer: the highest indices are stopped. More: the others run on.</span>`,
    async act() {
      await post(`/v1/deployments/${seg(deployment.id)}/scale`, { count: wanted });
      slowPoll.soon();
      tell(`${deployment.id} has count ${wanted}.`);
    },
  });
}

function askRollback(deployment) {
  confirm({
    title: `Roll ${deployment.id} back?`,
    verb: "Roll back",
    danger: true,
    text: "It goes back to the last version that was another spec, in the middle of an update to the last that was well.",
    async act() {
      await post(`/v1/deployments/${seg(deployment.id)}/rollback`);
      slowPoll.soon();
      tell(`${deployment.id} goes back.`);
    },
  });
}

async function toggle(deployment) {
  try {
    await get(`/v1/deployments/${seg(deployment.id)}`, shape.deployment, {
      method: "PATCH",
      body: JSON.stringify({ enabled: !deployment.enabled }),
      headers: { "Content-Type": "application/json" },
    });
    slowPoll.soon();
  } catch (error) {
    tell(error.message, true);
  }
}

const unenforced = (copy) => copy.limits && copy.limits !== "enforced";

/* true, false, or not known yet. */
function Health({ healthy }) {
  if (healthy === true) return html`<${Mark} tone="good">well<//>`;
  return healthy === false ? html`<${Mark} tone="critical">not well<//>` : html`<span class="muted">${NONE}</span>`;
}

function Copies({ deployment }) {
  const copies = copiesOf(deployment);
  const indexed = several(deployment);
  if (!copies.length) return html`<p class="muted">Nobody runs it.</p>`;
  return html`<${Rows} head=${[...(indexed ? [".Index"] : []), "Node", "State", "Health", ".Port", "Since", ".Restarts", ".Version", "~Reason"]}>
    ${copies.map(
      (copy) =>
        html`<tr>
          ${indexed && html`<td class="num">${copy.index}</td>`}
          <td>${copy.address || copy.node_id ? html`<${NodeLink} id=${copy.address || copy.node_id} />` : html`<span class="muted">nobody</span>`}</td>
          <td><${CopyMark} copy=${copy} /></td>
          <td><${Health} healthy=${copy.healthy} /></td>
          <td class="num">${copy.port || NONE}</td>
          <td>${copy.since_ms ? ago(copy.since_ms) : NONE}</td>
          <td class="num">${count(copy.restarts)}</td>
          <td class="num">${count(copy.version)}</td>
          <td class="wide">${unenforced(copy) && html`<${Mark} tone="warning" title=${copy.limits}>limits not enforced<//> `}
            <${Why} text=${copy.reason} to=${href("nodes", copy.address || copy.node_id)} /></td>
        </tr>`,
    )}
  <//>`;
}

/* How far it is: each copy runs the version it goes to, or does not yet. */
function Update({ deployment }) {
  const { update } = deployment;
  const [tone, words] = (update && UPDATES[update.state]) || [];
  if (!words) return null;
  const to = update.state === "rolling" || update.state === "stopped" ? deployment.version : update.good_version;
  const copies = copiesOf(deployment);
  const there = copies.filter((copy) => copy.version === to && isReady(copy)).length;
  return html`<section class="panel whole" data-update=${update.state}>
    <h2>Update <${Mark} tone=${tone}>${words}<//></h2>
    <p><span class="num">${there} of ${copies.length}</span> ${copies.length === 1 ? "copy is" : "copies are"} well with version <span class="num">${to}</span>.</p>
    <progress max=${copies.length || 1} value=${there} aria-label="copies that are well with it"></progress>
    ${update.reason && html`<p>${update.reason}</p>`}
  </section>`;
}

export function Deployment({ id }) {
  const { answer: deployment, error } = useReading(`/v1/deployments/${seg(id)}`, shape.deployment, 2000);
  const readLog = useCallback((offset) => get(`/v1/deployments/${seg(id)}/logs?offset=${seg(offset)}&max=65536`, shape.logs), [id]);

  if (!deployment) return html`<p class="empty">${error ? error.message : "Reading…"}</p>`;
  const facts = [
    ["Kind", deployment.type],
    ["Owner", html`<${Owner} deployment=${deployment} />`],
    ["Generation", deployment.generation],
    ["Version", deployment.version],
    ["Package", `${deployment.package_name || NONE} ${deployment.package_version || ""}`],
    ["Selector", deployment.selector || "any node"],
    ["Command", html`<code>${[...deployment.command, ...deployment.args].join(" ")}</code>`],
    ["Changed", time(Date.parse(deployment.updated_at))],
  ];
  return html`
    <div class="tools">
      <p class="crumbs"><a href="#/deployments">Deployments</a></p>
      <h1>${id}</h1>
      <${State} deployment=${deployment} />
      <span class="spring"></span>
      ${deployment.type !== "daemon" && html`<button onClick=${() => askScale(deployment)}>Scale</button>`}
      <button onClick=${() => askRollback(deployment)}>Roll back</button>
      <button onClick=${() => toggle(deployment)}>${deployment.enabled ? "Disable" : "Enable"}</button>
      <button class="danger" onClick=${() => askRestart(deployment)}>Restart</button>
    </div>
    <div class="panels">
      <${Update} deployment=${deployment} />
      <${Panel} title="Copies" whole=${true}><${Copies} deployment=${deployment} /><//>
      <${Facts} rows=${facts} />
      ${deployment.address && html`<${Logs} read=${readLog} live=${true} label="Log" />`}
    </div>`;
}
