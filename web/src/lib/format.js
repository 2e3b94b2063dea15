/* Numbers and times as people read them. */
import { now } from "./clock.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

const DATED_MS = 18 * 3600000; /* what is older needs its date */

export const NONE = "–";

export function count(value) {
  return value == null ? NONE : whole.format(value);
}

/* Room is short on an axis: 12k, 1.6M. */
export function short(value) {
  if (value == null) return NONE;
  if (value >= 1e6) return `${Number((value / 1e6).toFixed(1))}M`;
  return value >= 10000 ? `${Number((value / 1e3).toFixed(1))}k` : rate(value);
}

const order = new Intl.Collator("en", { numeric: true });

/* n2 before n10. */
export const byName = order.compare;

/* 1 234 a second needs no digits behind the point, 0.4 does. */
export function rate(value) {
  if (value == null) return NONE;
  if (value >= 100) return whole.format(value);
  return value < 0.05 ? "0" : String(Number(value.toFixed(value >= 10 ? 1 : 2)));
}

export function percent(value) {
  return value == null ? NONE : `${Math.round(value)} %`;
}

export function gigabytes(value) {
  return value == null ? NONE : `${value >= 100 ? Math.round(value) : value.toFixed(1)} GB`;
}

function two(large, unit, small, part) {
  return small ? `${large} ${unit} ${small} ${part}` : `${large} ${unit}`;
}

/* How long something took or is ago. */
export function duration(ms) {
  if (ms == null) return NONE;
  if (ms > 0 && ms < 1) return `${(ms * 1000).toFixed(0)} µs`;
  if (ms < 10) return `${Number(ms.toFixed(1))} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 60000) return `${Math.floor(ms / 1000)} s`;
  if (ms < 3600000) return two(Math.floor(ms / 60000), "min", Math.floor(ms / 1000) % 60, "s");
  if (ms < 86400000) return two(Math.floor(ms / 3600000), "h", Math.floor(ms / 60000) % 60, "min");
  return two(Math.floor(ms / 86400000), "d", Math.floor(ms / 3600000) % 24, "h");
}

export function ago(ms, at = now()) {
  if (ms == null) return NONE;
  const since = Math.max(0, at - ms);
  if (since < 2000) return "just now";
  return `${since < 60000 ? `${Math.floor(since / 1000)} s` : duration(since)} ago`;
}

export function time(ms) {
  if (!ms) return NONE;
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return NONE; /* further off than a date can be */
  const text = clock.format(at);
  return Math.abs(now() - ms) < DATED_MS ? text : `${day.format(at)} ${text}`;
}

export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}
