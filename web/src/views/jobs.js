/* Jobs, newest first, as the filter has them; their states move while one looks. */
import { useEffect } from "preact/hooks";
import { now } from "../lib/clock.js";
import { useTopics } from "../lib/frame.js";
import { ago, count, duration, NONE } from "../lib/format.js";
import { html } from "../lib/html.js";
import { askJobs, jobs, moreJobs } from "../lib/known.js";
import { go, href, place, refine } from "../lib/router.js";
import { tell } from "../parts/dialog.js";
import { Choices, found, Search } from "../parts/filter.js";
import { JobMark } from "../parts/mark.js";
import { useSeconds } from "../parts/shell.js";
import { Table } from "../parts/table.js";

const STATES = [
  ["", "all"],
  ["NEW,SELECTING,RETRYING", "waiting"],
  ["DISPATCHED,ACKED", "running"],
  ["DONE", "done"],
  ["FAILED", "failed"],
];
const FIELDS = ["state", "type", "node_id", "session_id"];

export function jobTitle(job) {
  if (job.title) return job.title;
  return job.src && job.tgt ? `${job.src} → ${job.tgt}` : "";
}

function took(job) {
  if (job.ended_ms && job.acked_ms) return duration(job.ended_ms - job.acked_ms);
  if (job.state === "ACKED" && job.acked_ms)
    return duration(Math.max(0, Math.floor((now() - job.acked_ms) / 1000) * 1000));
  return NONE;
}

const columns = [
  {
    key: "job",
    title: "Job",
    class: "clip",
    cell: (j) =>
      html`<a class="strong lead" href=${href("jobs", j.job_id)}>${j.type || "f2f"}</a>
        <span class="lead">${jobTitle(j)}</span>
        <span class="muted mono wide">${j.job_id}</span>`,
  },
  { key: "state", title: "State", class: "w-state", cell: (j) => html`<${JobMark} state=${j.state} />` },
  {
    key: "why",
    title: "Reason",
    class: "wide clip w-reason",
    cell: (j) =>
      j.reason && j.state !== "DONE"
        ? html`<a class="why" href=${href("jobs", j.job_id)}>${j.reason}</a>`
        : html`<span class="muted">${NONE}</span>`,
  },
  {
    key: "node",
    title: "Node",
    class: "wide clip w-node",
    cell: (j) =>
      j.node_id ? html`<a href=${href("nodes", j.node_id)}>${j.node_id}</a>` : html`<span class="muted">${NONE}</span>`,
  },
  {
    key: "attempt",
    title: "Try",
    class: "num w-num wide",
    cell: (j) => html`<span class=${j.attempt_id > 1 ? "" : "muted"}>${j.attempt_id}</span>`,
  },
  { key: "took", title: "Ran", class: "num w-time wide", cell: (j) => took(j) },
  {
    key: "made",
    title: "Created",
    class: "num w-time",
    cell: (j) => html`<span class="muted">${ago(j.created_ms)}</span>`,
  },
];

function queryOf() {
  const query = new URLSearchParams();
  for (const field of FIELDS) if (place.query.get(field)) query.set(field, place.query.get(field));
  return String(query);
}

function More() {
  const more = () => moreJobs().catch((error) => tell(error.message, true));
  return html`<p class="more"><button onClick=${more}>Show older jobs</button></p>`;
}

export function Jobs() {
  const query = queryOf();
  const text = place.query.get("q");
  const rows = text
    ? jobs.rows.filter((job) => found([job.job_id, job.type, job.title, job.node_id, job.reason, job.session_id]))
    : jobs.rows;
  const chips = FIELDS.slice(1).filter((field) => place.query.get(field));
  const tick = Math.floor(useSeconds() / 1000);
  const none = query || text ? "No job matches." : "No job yet. Press n to submit one.";
  const empty = jobs.loaded ? none : "Reading…";

  useTopics("jobs", "place");
  useEffect(() => askJobs(query), [query]);
  return html`
    <div class="tools"><h1>Jobs <span class="muted num">${count(rows.length)}${jobs.cursor ? "+" : ""}</span></h1>
      <${Search} of="jobs" by="id, type, title, node, reason" />
      <${Choices} field="state" options=${STATES} />
      ${chips.map(
        (
          field,
        ) => html`<button class="chip" onClick=${() => refine({ [field]: "" })} aria-label="Remove the filter ${field}">
        ${field.replace("_id", "")} ${place.query.get(field)} ✕</button>`,
      )}
    </div>
    ${jobs.error && html`<p class="bad" role="alert">${jobs.error.message}</p>`}
    <${Table} label="Jobs" rows=${rows} columns=${columns} tick=${tick} empty=${empty}
      keyOf=${(j) => j.job_id} tone=${(j) => `job-${j.state}`} open=${(j) => go("jobs", j.job_id)} />
    ${jobs.cursor && html`<${More} />`}`;
}
