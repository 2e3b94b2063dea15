/* One job: where it is, how it got there, why it went wrong, what it printed and what came out. */
import { useCallback, useEffect } from "preact/hooks";
import { get, post, seg } from "../lib/api.js";
import { now } from "../lib/clock.js";
import { duration, NONE, plural, time } from "../lib/format.js";
import { reasonText } from "../lib/explain.js";
import { html } from "../lib/html.js";
import { watchJob } from "../lib/known.js";
import { useReading } from "../lib/reading.js";
import { go, href } from "../lib/router.js";
import * as shape from "../lib/shape.js";
import { confirm, tell } from "../parts/dialog.js";
import { Decisions } from "../parts/decisions.js";
import { NodeLink, Why } from "../parts/link.js";
import { Logs } from "../parts/logs.js";
import { JobMark } from "../parts/mark.js";
import { Facts, Panel, Rows } from "../parts/panel.js";
import { useSeconds } from "../parts/shell.js";
import { jobTitle } from "./jobs.js";

const ENDED = new Set(["DONE", "FAILED"]);

/* Read again when an event tells of it; and every few seconds, for one may have been missed. */
function useJob(id) {
  const { answer, error, again } = useReading(`/v1/jobs/${seg(id)}`, shape.job, 5000);

  useEffect(() => {
    let timer = 0;
    const forget = watchJob(id, () => {
      clearTimeout(timer);
      timer = setTimeout(again, 60);
    });
    return () => {
      forget();
      clearTimeout(timer);
    };
  }, [id, again]);
  return { job: answer, error };
}

const STEPS = [
  ["created_ms", "created"],
  ["dispatched_ms", "dispatched"],
  ["acked_ms", "started"],
  ["ended_ms", "ended"],
];

function Steps({ job }) {
  const at = useSeconds();
  const whole = Math.max(0, Math.floor((at - job.created_ms) / 1000) * 1000);
  const reached = STEPS.filter(([field]) => job[field]);
  return html`<ol class="steps">${STEPS.map(([field, word]) => {
    const place = reached.findIndex(([name]) => name === field);
    const before = place > 0 ? job[reached[place - 1][0]] : null;
    return html`<li class=${job[field] ? (field === "ended_ms" ? `ended ${job.state}` : "reached") : ""}>
      <b>${field === "ended_ms" && job[field] ? (job.state === "DONE" ? "done" : "failed") : word}</b>
      <span class="num">${job[field] ? time(job[field]) : NONE}</span>
      ${before && html`<span class="muted num">after ${duration(job[field] - before)}</span>`}</li>`;
  })}
  ${!ENDED.has(job.state) && html`<li class="now"><b>now</b><span class="muted num">${duration(whole)} in all</span></li>`}
  </ol>`;
}

function Attempts({ attempts }) {
  if (!attempts.length) return null;
  const from = Math.min(...attempts.map((one) => one.dispatched_ms || one.at_ms || one.ended_ms || Infinity));
  const to = Math.max(...attempts.map((one) => one.ended_ms || now()));
  const place = (at) => (100 * (at - from)) / Math.max(1, to - from);
  return html`<${Panel} title="Attempts">
    <${Rows} name="attempts" head=${[".#", "Node", "Outcome", "~When", ".Took"]}>
      ${attempts.map((one) => {
        const begun = one.dispatched_ms || one.at_ms || one.ended_ms;
        const ended = one.ended_ms || now();
        const span = { left: `${place(begun)}%`, width: `${Math.max(1, place(ended) - place(begun))}%` };
        return html`<tr>
          <td class="num">${one.attempt_id}</td>
          <td><${NodeLink} id=${one.node_id} /></td>
          <td>
            <${Why} text=${one.reason} to=${href("nodes", one.node_id)} about=${reasonText(one.reason)} />
            ${!one.reason && (one.outcome || "running")}
          </td>
          <td class="wide">
            <span class="span-track">
              <span class="span-fill ${one.reason ? "critical" : "good"}" style=${span}></span>
            </span>
          </td>
          <td class="num">${duration(ended - begun)}</td>
        </tr>`;
      })}
    <//>
  <//>`;
}

function Failure({ job }) {
  if (job.state !== "FAILED" && job.state !== "RETRYING") return null;
  return html`<section class="panel why-panel">
    <h2>${job.state === "FAILED" ? "Why it failed" : "Why it is tried again"}</h2>
    <p><b>${job.reason || "no reason was given"}</b></p>
    <p>${reasonText(job.reason)}</p>
    ${job.attempts.length > 1 && html`<p class="muted">${plural(job.attempts.length, "attempt")}, see below.</p>`}
  </section>`;
}

function factsOf(job) {
  const session = `${href("jobs")}?session_id=${seg(job.session_id)}`;
  const { retried_from: from } = job;
  return [
    ["Node", job.node_id && html`<${NodeLink} id=${job.node_id} />`],
    ["Session", job.session_id && html`<a href=${session}>${job.session_id}</a>`],
    ["Priority", job.priority],
    ["Attempt", `${job.attempt_id} of at most ${job.max_attempts}`],
    ["Audio", job.audio_ref],
    ["Needs", job.requires],
    ["Secrets", job.secrets && Object.values(job.secrets).join(", ")],
    ["May wait", job.queue_ms && duration(job.queue_ms)],
    ["May run", job.timeout_ms && duration(job.timeout_ms)],
    ["Again from", from && html`<a class="mono" href=${href("jobs", from)}>${from}</a>`],
    ["Submitted by", job.submitted_by],
    ["Callback", job.callback],
    ["Command", job.command.length > 0 && html`<code>${job.command.join(" ")}</code>`],
  ];
}

function Json({ title, value }) {
  if (value == null) return null;
  return html`<${Panel} title=${title} whole><pre tabindex="0">${JSON.stringify(value, null, 2)}</pre><//>`;
}

function askCancel(job) {
  confirm({
    title: "Cancel this job?",
    verb: "Cancel the job",
    danger: true,
    text: job.node_id
      ? `${job.node_id} is told to stop it; its slot stays taken until it says it has.`
      : "It waits; it will not be started.",
    async act() {
      await post(`/v1/jobs/${seg(job.job_id)}/cancel`);
      tell("Cancelled.");
    },
  });
}

async function again(job) {
  try {
    const answer = await post(`/v1/jobs/${seg(job.job_id)}/retry`);
    go("jobs", answer.job_id);
  } catch (error) {
    tell(error.message, true);
  }
}

export function Job({ id }) {
  const { job, error } = useJob(id);
  const readLog = useCallback((offset) => get(`/v1/jobs/${seg(id)}/logs?offset=${seg(offset)}&max=65536`, shape.logs), [id]);

  if (!job && error && error.status === 404)
    return html`<div class="tools"><p class="crumbs"><a href="#/jobs">Jobs</a></p><h1 class="mono">${id}</h1></div>
      <div class="panels"><${Decisions} id=${id} otherwise=${error.message} /></div>`;
  if (!job) return html`<p class="empty">${error ? error.message : "Reading…"}</p>`;
  const ended = ENDED.has(job.state);
  const unplaced = !job.acked_ms; /* then the choice is what one wants to know */
  return html`
    <div class="tools"><p class="crumbs"><a href="#/jobs">Jobs</a></p>
      <h1>${job.type || "f2f"} ${jobTitle(job)} <span class="muted mono">${job.job_id}</span></h1>
      <span data-state=${job.state}><${JobMark} state=${job.state} /></span><span class="spring"></span>
      ${
        ended
          ? html`<button onClick=${() => again(job)}>Do it again</button>`
          : html`<button class="danger" onClick=${() => askCancel(job)}>Cancel</button>`
      }
    </div>
    <div class="panels">
      <section class="panel whole"><${Steps} job=${job} /></section>
      <${Failure} job=${job} />
      ${unplaced && html`<${Decisions} id=${id} state=${job.state} />`}
      <${Attempts} attempts=${job.attempts} />
      <${Facts} rows=${factsOf(job)} whole=${!job.attempts.length} />
      ${job.command.length > 0 && job.acked_ms && html`<${Logs} read=${readLog} live=${!ended} label="Log" />`}
      <${Json} title="Result" value=${job.result} />
      ${!unplaced && html`<${Decisions} id=${id} state=${job.state} />`}
      <${Json} title="Payload" value=${job.payload} />
    </div>`;
}
