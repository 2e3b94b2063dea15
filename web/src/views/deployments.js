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

function State({ deployment }) {
  const copies = copiesOf(deployment);
  if (!deployment.enabled) return html`<${Mark} tone="off">disabled<//>`;
  if (deployment.type !== "daemon" && !deployment.address) return html`<${Mark} tone="warning">unassigned<//>`;
  if (!copies.length) return html`<${Mark} tone="wait">${deployment.type === "daemon" ? "nowhere yet" : "claimed"}<//>`;
  return html`<${CopyMark} copy=${copies.find((copy) => BAD.has(copy.state)) || copies[0]} />`;
}

/* Lists leave the copies out; of rows in sight they are read one by one. */
function Live({ deployment }) {
  const { answer = deployment } = useReading(`/v1/deployments/${seg(deployment.id)}`, shape.deployment, 5000, deployment);
  const again = restarts(answer);
  return html`<${State} deployment=${answer} />${again > 0 && html`<span class="muted num"> · ${plural(again, "restart")}</span>`}`;
}

function Owner({ deployment }) {
  if (deployment.type === "daemon") return html`<span class="muted">every node that matches</span>`;
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

function Copies({ copies }) {
  if (!copies.length) return html`<p class="muted">Nobody runs it.</p>`;
  return html`<${Rows} head=${["Node", "State", "Since", ".Restarts", ".Version", "~Reason"]}>
    ${copies.map(
      (copy) =>
        html`<tr>
          <td><${NodeLink} id=${copy.address || copy.node_id} /></td>
          <td><${CopyMark} copy=${copy} /></td>
          <td>${copy.since_ms ? ago(copy.since_ms) : NONE}</td>
          <td class="num">${count(copy.restarts)}</td>
          <td class="num">${count(copy.version)}</td>
          <td class="wide">${unenforced(copy) && html`<${Mark} tone="warning" title=${copy.limits}>limits not enforced<//> `}
            <${Why} text=${copy.reason} to=${href("nodes", copy.address || copy.node_id)} /></td>
        </tr>`,
    )}
  <//>`;
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
      <button onClick=${() => toggle(deployment)}>${deployment.enabled ? "Disable" : "Enable"}</button>
      <button class="danger" onClick=${() => askRestart(deployment)}>Restart</button>
    </div>
    <div class="panels">
      <${Panel} title="Copies"><${Copies} copies=${copiesOf(deployment)} /><//>
      <${Facts} rows=${facts} />
      ${deployment.address && html`<${Logs} read=${readLog} live=${true} label="Log" />`}
    </div>`;
}
