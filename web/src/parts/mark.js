/* Small marks that say how something is: a dot and a word. */
import { whatTripped } from "../lib/explain.js";
import { html } from "../lib/html.js";
import { pick } from "../lib/shape.js";

const JOB = {
  NEW: ["wait", "waiting"],
  SELECTING: ["wait", "selecting"],
  RESERVED: ["wait", "reserved"],
  DISPATCHED: ["go", "dispatched"],
  ACKED: ["go", "running"],
  RETRYING: ["warning", "retrying"],
  DONE: ["good", "done"],
  FAILED: ["critical", "failed"],
};

export function Mark({ tone, children, title }) {
  return html`<span class="mark ${tone}" title=${title}><i aria-hidden="true"></i>${children}</span>`;
}

export function JobMark({ state }) {
  const [tone, word] = pick(JOB, state) || ["off", state];
  return html`<${Mark} tone=${tone} title=${state}>${word}<//>`;
}

export function ServerMark({ server }) {
  if (!server.online) return html`<${Mark} tone="off" title=${server.offline_reason}>offline<//>`;
  if (server.admin) return html`<${Mark} tone="held">${server.admin}<//>`;
  if (server.level && server.level !== "normal")
    return html`<${Mark} tone=${server.level} title=${server.tripped ? whatTripped(server) : ""}>${server.level}<//>`;
  if (server.health !== "ready") return html`<${Mark} tone="held">${server.health}<//>`;
  return html`<${Mark} tone="good">ready<//>`;
}

export function ClusterMark({ status }) {
  const tone = pick({ healthy: "good", partial: "warning", degraded: "critical" }, status) || "off";
  return html`<${Mark} tone=${tone}>${status}<//>`;
}
