/* Deployments: what must always run somewhere, and where it does. */
import { useCallback, useEffect, useState } from "preact/hooks";
import { get, seg } from "../lib/api.js";
import { useTopics } from "../lib/frame.js";
import { count, NONE, time } from "../lib/format.js";
import { html } from "../lib/html.js";
import { known } from "../lib/known.js";
import { go, href, place, refine } from "../lib/router.js";
import { Logs } from "../parts/logs.js";
import { Mark } from "../parts/mark.js";
import { Table } from "../parts/table.js";

const owner = (d) => d.owner || d.address || d.node_id || null;
const name = (d) => d.name || d.package_name || d.id;

function State({ deployment }) {
  if (deployment.enabled === false) return html`<${Mark} tone="off">disabled<//>`;
  if (!owner(deployment)) return html`<${Mark} tone="warning">nobody's<//>`;
  const state = deployment.state || deployment.status || "owned";
  return html`<${Mark} tone=${/fail|crash|backoff|lost/i.test(state) ? "critical" : "good"}>${String(state).toLowerCase()}<//>`;
}

const columns = [
  { key: "name", title: "Deployment", class: "clip", sort: name, cell: (d) => html`<a class="strong" href=${href("deployments", d.id)}>${name(d)}</a> <span class="muted mono wide">${d.id}</span>` },
  { key: "state", title: "State", class: "w-state", cell: (d) => html`<${State} deployment=${d} />` },
  { key: "owner", title: "Owner", class: "clip w-node", sort: (d) => owner(d) || "", cell: (d) => (owner(d) ? html`<a href=${href("nodes", owner(d))}>${owner(d)}</a>` : html`<span class="muted">${NONE}</span>`) },
  { key: "gen", title: "Generation", class: "num w-time wide", sort: (d) => d.generation, cell: (d) => count(d.generation) },
  { key: "restarts", title: "Restarts", class: "num w-time wide", sort: (d) => d.restarts, cell: (d) => count(d.restarts) },
];

export function Deployments() {
  const text = (place.query.get("q") || "").toLowerCase();
  const rows = (known.deployments || []).filter((d) => [name(d), d.id, owner(d)].some((word) => word && String(word).toLowerCase().includes(text)));

  useTopics("slow", "place");
  return html`
    <div class="tools"><h1>Deployments <span class="muted num">${count(rows.length)}</span></h1>
      <input type="search" placeholder="Filter by name or owner" aria-label="Filter deployments" value=${place.query.get("q") || ""}
        onInput=${(event) => refine({ q: event.target.value })} /></div>
    <${Table} label="Deployments" rows=${rows} columns=${columns} keyOf=${(d) => d.id} open=${(d) => go("deployments", d.id)} empty="There are no deployments." />`;
}

export function Deployment({ id }) {
  const [found, setFound] = useState({});
  const readLog = useCallback((offset) => get(`/v1/deployments/${seg(id)}/logs?offset=${offset}&max=65536`), [id]);

  useTopics("slow");
  useEffect(() => {
    let over = false;
    const read = () => get(`/v1/deployments/${seg(id)}`).then((deployment) => over || setFound({ deployment }), (error) => over || setFound({ error }));
    const timer = setInterval(() => !document.hidden && read(), 3000);
    read();
    return () => {
      over = true;
      clearInterval(timer);
    };
  }, [id]);
  const { deployment, error } = found;
  if (!deployment) return html`<p class="empty">${error ? error.message : "Reading…"}</p>`;
  const rows = Object.entries(deployment).filter(([, value]) => value != null && typeof value !== "object");
  return html`
    <div class="tools"><p class="crumbs"><a href="#/deployments">Deployments</a></p><h1>${name(deployment)}</h1><${State} deployment=${deployment} /></div>
    <div class="panels">
      <section class="panel"><h2>Facts</h2><dl class="facts">${rows.map(([field, value]) => html`<div><dt>${field.replaceAll("_", " ").replace(/ ms$/, "")}</dt>
        <dd>${/_ms$/.test(field) && value > 1e12 ? time(value) : String(value)}</dd></div>`)}</dl></section>
      <${Logs} read=${readLog} live=${true} label="Log" />
    </div>`;
}
