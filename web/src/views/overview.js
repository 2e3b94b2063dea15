/* The first view: is the cluster well, what does it carry, and what needs a person. */
import { Component } from "preact";
import { useEffect, useReducer, useRef } from "preact/hooks";
import { useTopics } from "../lib/frame.js";
import { count, duration, plural, rate, short } from "../lib/format.js";
import { levelText, severity } from "../lib/explain.js";
import { history, latest } from "../lib/history.js";
import { html } from "../lib/html.js";
import { known } from "../lib/known.js";
import { href } from "../lib/router.js";
import { Chart } from "../parts/chart.js";
import { ServerCard } from "./server.js";

const CARD_HEIGHT = 238; /* px with its gap, as in overview.css */
const CARD_WIDTH = 300;
const TROUBLES_SHOWN = 6;
const FLEET_FROM = 24;
const REASON_COLOURS = ["critical", "danger", "warning", "accent", "held"];

function Charts() {
  const now = latest() || {};
  const refused = now.refused_per_s || {};
  const reasons = [...history.reasons]
    .sort((a, b) => (refused[b] || 0) - (refused[a] || 0))
    .slice(0, REASON_COLOURS.length)
    .sort();

  useTopics("history");
  return html`<section class="charts" aria-label="Charts">
    <${Chart} title="Dispatched" series=${[
      {
        name: "a second",
        colour: "accent",
        fill: true,
        pick: (p) => p.dispatched_per_s,
        text: rate(now.dispatched_per_s),
      },
    ]} />
    <${Chart} title="Dispatch time" most=${1} format=${duration} series=${[
      { name: "p50", colour: "accent", pick: (p) => p.p50_ms, text: duration(now.p50_ms) },
      { name: "p99", colour: "warning", pick: (p) => p.p99_ms, text: duration(now.p99_ms) },
    ]} />
    <${Chart} title="Slots" most=${4} series=${[
      { name: "used", colour: "accent", fill: true, pick: (p) => p.slots_used, text: short(now.slots_used) },
      { name: "there are", colour: "off", pick: (p) => p.slots_max, text: short(now.slots_max) },
    ]} />
    <${Chart} title="Waiting" most=${4} series=${[
      { name: "jobs in the queue", colour: "held", fill: true, pick: (p) => p.queue, text: short(now.queue) },
    ]} />
    <${Chart} title="Refused" note="none in the last minutes" series=${reasons.map((reason, at) => ({
      name: reason.toLowerCase().replaceAll("_", " "),
      title: reason,
      colour: REASON_COLOURS[at],
      pick: (p) => p.refused_per_s[reason] || 0,
      text: rate(refused[reason] || 0),
    }))} />
  </section>`;
}

/* What is wrong right now, each with the place that explains it. */
function troubles() {
  const found = [];
  for (const server of known.worstFirst) {
    const tone = severity(server);
    const where = href("nodes", server.id);
    if (tone === "off") found.push({ tone, where, what: server.name, text: server.offline_reason });
    else if (tone === "critical" || tone === "danger")
      found.push({ tone, where, what: server.name, text: `${tone}: ${levelText(tone)}` });
  }
  for (const breaker of known.breakers)
    found.push({
      tone: "danger",
      where: href("nodes", breaker.node_id),
      what: breaker.node_id,
      text: `gets no ${breaker.type}: ${plural(breaker.failures, "failure")} in a row`,
    });
  const failed = history.points.reduce((sum, point) => sum + point.failed, 0);
  if (failed > 0)
    found.push({
      tone: "critical",
      where: `${href("jobs")}?state=FAILED`,
      what: plural(failed, "job"),
      text: "failed in the last minutes",
    });
  return found;
}

function Troubles() {
  const found = troubles();
  const more = found.length - TROUBLES_SHOWN;
  if (!found.length) return null;
  return html`<section class="troubles" aria-label="What needs attention">
    <h2>Needs attention <span class="muted num">${count(found.length)}</span></h2>
    <ul>
      ${found
        .slice(0, TROUBLES_SHOWN)
        .map((one) => html`<li class=${one.tone}><a href=${one.where}><b>${one.what}</b> ${one.text}</a></li>`)}
      ${more > 0 && html`<li><a href="#/nodes">and ${count(more)} more</a></li>`}
    </ul>
  </section>`;
}

class Cell extends Component {
  shouldComponentUpdate(next) {
    const [a, b] = [next.server, this.props.server];
    return (
      a.id !== b.id || severity(a) !== severity(b) || a.slots_in_use !== b.slots_in_use || a.slots_max !== b.slots_max
    );
  }

  render({ server }) {
    const share = Math.min(1, server.slots_in_use / Math.max(1, server.slots_max));
    return html`<a class="cell ${severity(server)}" href=${href("nodes", server.id)} tabindex="-1"
      title="${server.name}: ${server.slots_in_use}/${server.slots_max} slots" style=${{ "--used": share }}></a>`;
  }
}

/* A large fleet at one glance: a cell a server, coloured by how it is, filled by how full it is. */
function Fleet({ servers }) {
  return html`<div class="fleet" aria-hidden="true">
    ${servers.map((server) => html`<${Cell} key=${server.id} server=${server} />`)}
  </div>`;
}

/* Cards in rows, only those in sight. */
function Cards({ servers }) {
  const box = useRef(null);
  const [, redraw] = useReducer((n) => n + 1, 0);
  const width = box.current ? box.current.clientWidth : 0;
  const across = Math.max(1, Math.floor((width + 12) / (CARD_WIDTH + 12)));
  const rows = Math.ceil(servers.length / across);
  const top = box.current ? -box.current.getBoundingClientRect().top : 0;
  const first = Math.max(0, Math.min(rows, Math.floor(top / CARD_HEIGHT) - 2));
  const last = Math.min(rows, Math.ceil((top + innerHeight) / CARD_HEIGHT) + 2);
  const shown = width > 0 ? servers.slice(first * across, last * across) : [];
  const place = {
    transform: `translateY(${first * CARD_HEIGHT}px)`,
    gridTemplateColumns: `repeat(${across}, minmax(0, 1fr))`,
  };

  useEffect(() => {
    redraw();
    addEventListener("scroll", redraw, { passive: true });
    addEventListener("resize", redraw);
    return () => {
      removeEventListener("scroll", redraw);
      removeEventListener("resize", redraw);
    };
  }, []);
  return html`<div class="cards" ref=${box} style=${{ height: `${rows * CARD_HEIGHT}px` }}>
    <div class="cards-in" style=${place}>
      ${shown.map((server) => html`<${ServerCard} key=${server.id} server=${server} />`)}
    </div>
  </div>`;
}

export function Overview() {
  useTopics("cluster", "slow", "history");
  if (!known.cluster) return html`<p class="empty">Reading the cluster…</p>`;
  return html`
    <p class="advice ${known.cluster.status}">${known.cluster.recommendation}</p>
    <${Charts} />
    <${Troubles} />
    <section aria-label="Servers">
      <h2>Servers <span class="muted num">${count(known.servers.length)}</span></h2>
      ${
        known.servers.length
          ? html`${known.servers.length > FLEET_FROM && html`<${Fleet} servers=${known.servers} />`}
            <${Cards} servers=${known.worstFirst} />`
          : html`<div class="empty"><p>No server has registered yet.</p>
            <p>Start an agent on a machine: <code>berth agent --server ${location.origin} --node-id NAME</code></p></div>`
      }
    </section>`;
}
