/* Bars: how much of something is used. */
import { html } from "../lib/html.js";
import { gigabytes, percent } from "../lib/format.js";

/* The levels' bounds for what is used, in percent. */
const BOUNDS = { cpu: [60, 80, 90], memory: [70, 80, 90], swap: [30, 50, 70] };
const TONES = ["good", "warning", "danger", "critical"];
const PIPS_MAX = 12;

export function toneOf(kind, value) {
  return TONES[BOUNDS[kind].filter((bound) => value > bound).length];
}

export function Bar({ label, tone, value, text, note }) {
  const known = value != null;
  return html`<div class="bar">
    <span class="bar-label">${label}</span>
    <span class="bar-track" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="100"
      aria-valuenow=${known ? Math.round(value) : undefined} aria-valuetext=${known ? text : "not known"}>
      <span class="bar-fill ${tone}" style=${{ width: `${known ? Math.min(100, Math.max(0, value)) : 0}%` }}></span>
    </span>
    <span class="bar-text num">${text}</span>
    ${note && html`<span class="bar-note num">${note}</span>`}
  </div>`;
}

export function cpuOf(server) {
  if (server.cpu_pct != null) return server.cpu_pct;
  return server.cpu_load != null && server.cpu_cores ? (100 * server.cpu_load) / server.cpu_cores : null;
}

function usedOf(total, free) {
  return total == null || free == null ? null : (100 * (total - free)) / total;
}

export function memoryOf(server) {
  return usedOf(server.mem_total_gb, server.mem_free_gb);
}

export function CpuBar({ server }) {
  const value = cpuOf(server);
  return html`<${Bar} label="CPU" value=${value} tone=${toneOf("cpu", value)} text=${percent(value)}
    note=${server.cpu_cores && `load ${server.cpu_load} of ${server.cpu_cores}`} />`;
}

export function MemoryBar({ server }) {
  const value = memoryOf(server);
  return html`<${Bar} label="Memory" value=${value} tone=${toneOf("memory", value)} text=${percent(value)}
    note=${value != null && `${gigabytes(server.mem_total_gb - server.mem_free_gb)} of ${gigabytes(server.mem_total_gb)}`} />`;
}

/* Where the agent keeps runs and packages. How much of a large disk counts is the agent's rule, so the level is its word. */
export function DiskBar({ server }) {
  const value = usedOf(server.disk_total_gb, server.disk_free_gb);
  return html`<${Bar} label="Disk" value=${value} tone=${server.tripped === "disk" ? server.level : "good"} text=${percent(value)}
    note=${value != null && `${gigabytes(server.disk_free_gb)} free of ${gigabytes(server.disk_total_gb)}`} />`;
}

function slotTone(server) {
  if (!server.online) return "off";
  if (server.slots_available > 0) return "good";
  return server.slots_in_use >= server.slots_max && server.slots_max > 0 ? "go" : "danger";
}

/* Slots used and slots there are: one pip each where they are few. */
export function Slots({ server }) {
  const { slots_in_use: used, slots_max: max } = server;
  const tone = slotTone(server);
  return html`<span class="slots ${tone}" title="${used} of ${max} slots in use, ${server.slots_available} free now">
    <span class="num"><b>${used}</b>/${max}</span>
    ${
      Math.max(max, used) <= PIPS_MAX
        ? html`<span class="pips" aria-hidden="true">${Array.from(
            { length: Math.max(max, used) },
            (_, at) =>
              html`<i class=${at >= max ? "over" : at < used ? "used" : at < used + server.slots_available ? "free" : "shut"}></i>`,
          )}</span>`
        : html`<span class="bar-track" aria-hidden="true"><span class="bar-fill ${tone}"
          style=${{ width: `${Math.min(100, (100 * used) / max)}%` }}></span></span>`
    }
  </span>`;
}
