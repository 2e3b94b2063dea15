/* One server as a card: how loaded it is, what runs there, and what it would take. */
import { Component } from "preact";
import { ago, time } from "../lib/format.js";
import { severity, whyNoRoom } from "../lib/explain.js";
import { html } from "../lib/html.js";
import { href } from "../lib/router.js";
import { CpuBar, MemoryBar, Slots } from "../parts/bar.js";
import { TaskLink } from "../parts/link.js";
import { ServerMark } from "../parts/mark.js";

const TASKS_SHOWN = 3;

function Tasks({ tasks }) {
  if (!tasks.length) return html`<p class="muted">nothing runs</p>`;
  return html`<ul class="tasks">
    ${tasks.slice(0, TASKS_SHOWN).map((task) => html`<li key=${task.job_id}><${TaskLink} task=${task} /></li>`)}
    ${tasks.length > TASKS_SHOWN && html`<li class="muted">and ${tasks.length - TASKS_SHOWN} more</li>`}
  </ul>`;
}

export function AvailableFor({ server }) {
  const why = whyNoRoom(server);
  if (why) return html`<a class=${why.bad ? "why" : "muted"} href=${href("nodes", server.id)}>nothing: ${why.text}</a>`;
  if (!server.available_for.length) return html`<span class="muted">face-to-face jobs</span>`;
  return html`${server.available_for.map((type) => html`<span class="chip">${type === "*" ? "any task" : type}</span>`)}`;
}

export class ServerCard extends Component {
  shouldComponentUpdate(next) {
    return next.server !== this.props.server;
  }

  render({ server }) {
    return html`<article class="card ${severity(server)}" data-node=${server.id}>
      <header><h3><a href=${href("nodes", server.id)}>${server.name}</a></h3>
        ${server.role && html`<span class="muted">${server.role}</span>`}<${ServerMark} server=${server} /></header>
      ${
        server.online
          ? html`<div class="card-body">
            ${
              server.figures_reason
                ? html`<p class="muted small">${server.figures_reason}</p>`
                : html`<${CpuBar} server=${server} /><${MemoryBar} server=${server} />`
            }
            <div class="bar"><span class="bar-label">Slots</span><${Slots} server=${server} /></div>
            <${Tasks} tasks=${server.tasks} />
          </div>
          <footer><span class="muted">available for</span> <${AvailableFor} server=${server} /></footer>`
          : html`<div class="card-body gone"><p><a class="why" href=${href("nodes", server.id)}>${server.offline_reason}</a></p>
            <p class="muted">last seen ${time(server.last_seen_ms)}, ${ago(server.last_seen_ms)}</p></div>`
      }
    </article>`;
  }
}
