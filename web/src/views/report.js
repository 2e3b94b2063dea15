/* How work went over the last hours: by server, and by type on each. */
import { seg } from "../lib/api.js";
import { reasonText } from "../lib/explain.js";
import { useTopics } from "../lib/frame.js";
import { count, duration, NONE, percent, plural, time } from "../lib/format.js";
import { html } from "../lib/html.js";
import { useReading } from "../lib/reading.js";
import { href, place } from "../lib/router.js";
import * as shape from "../lib/shape.js";
import { Choices } from "../parts/filter.js";
import { NodeLink, Why } from "../parts/link.js";
import { Panel, Rows } from "../parts/panel.js";

const SPANS = [
  ["1h", "hour"],
  ["24h", "day"],
  ["7d", "week"],
];
const LEVELS = ["normal", "warning", "danger", "critical", "unmeasured", "offline"];
const TONES = { normal: "good", unmeasured: "held", offline: "off" };

function Levels({ minutes }) {
  const all = LEVELS.reduce((sum, level) => sum + (minutes[level] || 0), 0);
  const text = LEVELS.filter((level) => minutes[level] > 0)
    .map((level) => `${level} ${plural(Math.round(minutes[level]), "minute")}`)
    .join(", ");
  return html`<span class="bar-track levels" title=${text} role="img" aria-label=${text}>${LEVELS.map(
    (level) =>
      minutes[level] > 0 &&
      html`<i class="bar-fill ${TONES[level] || level}" style=${{ width: `${(100 * minutes[level]) / all}%` }}></i>`,
  )}</span>`;
}

const times = (pair) => (pair && pair.p50 != null ? `${duration(pair.p50)} / ${duration(pair.p95)}` : NONE);

function Row({ name, row, sub, where }) {
  const known = row.success_rate != null;
  const rate = known ? percent(100 * row.success_rate) : NONE;
  const bad = known && row.success_rate < 0.9;
  const failed = `${href("jobs")}?state=FAILED${where ? `&${where}` : ""}`;
  const trouble = [
    [row.kills, "kill"],
    [row.breaker_opened, "breaker opened", "breakers opened"],
    [row.failovers, "failover"],
  ]
    .filter(([n]) => n > 0)
    .map(([n, one, many]) => plural(n, one, many))
    .join(", ");
  return html`<tr class=${sub ? "sub" : ""}><td>${name}</td><td class="num">${count(row.jobs)}</td>
    <td class="num">${bad ? html`<${Why} text=${rate} to=${failed} />` : rate}</td>
    <td class="num wide">${count(row.attempts)}</td><td class="num wide">${count(row.retried)}</td>
    <td class="num wide">${times(row.wait_ms)}</td><td class="num wide">${times(row.run_ms)}</td>
    <td class="num wide">${row.slot_use == null ? "" : percent(100 * row.slot_use)}</td>
    <td class="wide">${row.level_minutes && html`<${Levels} minutes=${row.level_minutes} />`}</td><td class="wide"><${Why} text=${trouble} to=${failed} /></td></tr>`;
}

const HEAD = [
  "Server",
  ".Jobs",
  ".Succeeded",
  ".~Attempts",
  ".~Retried",
  ".~Waited p50 / p95",
  ".~Ran p50 / p95",
  ".~Slots used",
  "~Levels",
  "~Trouble",
];

const own = (server) => `node_id=${seg(server.node_id)}`;

function Tables({ report }) {
  return html`
    <section class="panel">
      <${Rows} name="report" head=${HEAD}>
        ${report.servers.map(
          (server) => html`
            <${Row} key=${server.node_id} row=${server} where=${own(server)}
              name=${html`<${NodeLink} id=${server.node_id} strong />`} />
            ${server.types.map(
              (type) =>
                html`<${Row} key=${`${server.node_id} ${type.type}`} row=${type} name=${type.type} sub
                  where=${`${own(server)}&type=${seg(type.type)}`} />`,
            )}
          `,
        )}
        ${report.total && html`<${Row} row=${report.total} name=${html`<b>all</b>`} />`}
      <//>
    </section>
    ${report.refused.length > 0 && html`<${Refused} rows=${report.refused} />`}
  `;
}

function Refused({ rows }) {
  return html`<${Panel} title="Refused">
    <ul>
      ${rows.map(
        (row) =>
          html`<li><b class="num">${count(row.count)}</b> ${row.type} <${Why} text=${row.reason} to=${href("nodes")} about=${reasonText(row.reason)} /></li>`,
      )}
    </ul>
  <//>`;
}

const USED = [
  ["slot_seconds", ".Slots"],
  ["core_seconds", ".Cores"],
  ["gb_seconds", ".Memory GB"],
  ["gpu_seconds", ".~GPUs"],
  ["vram_gb_seconds", ".~VRAM GB"],
];
const BY = [
  ["key", "key"],
  ["type", "type"],
  ["node", "server"],
];

function Used({ since }) {
  const by = place.query.get("by") || "key";
  const { answer } = useReading(`/v1/report/usage?by=${seg(by)}&since=${seg(since)}`, shape.usage, 15000);
  const line = (name, row) => html`<tr key=${row.name ?? name}><td>${name}</td><td class="num">${count(row.runs)}</td>
    ${USED.map(([member, title]) => html`<td class=${title[1] === "~" ? "num wide" : "num"}>${count(Math.round(row[member] || 0))}</td>`)}</tr>`;

  if (!answer || !answer.rows.length) return null;
  return html`<${Panel} title="Used, x seconds">
    <${Choices} field="by" options=${BY} otherwise="key" />
    <${Rows} name="used" head=${[by === "node" ? "Server" : by === "type" ? "Type" : "Key", ".Runs", ...USED.map(([, title]) => title)]}>
      ${answer.rows.map((row) => line(row.name ?? "no key", row))}
      ${answer.total && line("all", answer.total)}
    <//>
  <//>`;
}

export function Report() {
  const since = place.query.get("since") || "24h";
  const { answer: report, error } = useReading(`/v1/report?since=${seg(since)}`, shape.report, 15000);

  useTopics("place");
  return html`
    <div class="tools"><h1>Report</h1><${Choices} field="since" options=${SPANS} otherwise="24h" />
      ${report && html`<span class="muted num">${time(report.since_ms)} to ${time(report.until_ms)}: ${report.scope}</span>`}</div>
    ${report ? html`<${Tables} report=${report} />` : html`<p class="empty">${error ? error.message : "Reading…"}</p>`}
    <${Used} since=${since} />
  `;
}
