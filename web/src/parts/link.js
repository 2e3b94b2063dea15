/* Links to what is told of elsewhere. */
import { NONE } from "../lib/format.js";
import { html } from "../lib/html.js";
import { href } from "../lib/router.js";

export function NodeLink({ id, strong }) {
  if (!id) return html`<span class="muted">${NONE}</span>`;
  return html`<a class=${strong ? "strong" : ""} href=${href("nodes", id)}>${id}</a>`;
}

/* Something red, and where its explanation is. */
export function Why({ text, to, about }) {
  return text ? html`<a class="why" href=${to} title=${about}>${text}</a>` : null;
}

/* A job as `type: title`. */
export function TaskLink({ task }) {
  return html`<a href=${href("jobs", task.job_id)}><b>${task.type}</b>${task.title ? `: ${task.title}` : ""}</a>`;
}
