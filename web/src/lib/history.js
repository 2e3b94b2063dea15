/* What the charts show: one point for each scrape, the last few minutes of them. */
import { byLabel, increase, quantile, total } from "./metrics.js";

export const WINDOW_S = 300;
const POINTS_MAX = 400;
const PLACED = new Set(["PLACED", "DUPLICATE"]);

export const history = { points: [], last: null, reasons: [] };

function refusals(before, now, seconds) {
  const old = byLabel(before, "berth_dispatch_total", "outcome");
  const rates = {};
  for (const [reason, count] of Object.entries(byLabel(now, "berth_dispatch_total", "outcome")))
    if (!PLACED.has(reason)) rates[reason] = increase(old[reason] || 0, count) / seconds;
  return rates;
}

/* One scrape; slots are {used, all} as the cluster's state has them. */
export function addScrape(metrics, atMs, slots) {
  const before = history.last;
  history.last = { metrics, atMs };
  if (!before || atMs <= before.atMs) return;
  const seconds = (atMs - before.atMs) / 1000;
  const dispatched = byLabel(metrics, "berth_dispatch_total", "outcome").PLACED || 0;
  const earlier = byLabel(before.metrics, "berth_dispatch_total", "outcome").PLACED || 0;
  const rates = refusals(before.metrics, metrics, seconds);
  for (const reason of Object.keys(rates)) if (!history.reasons.includes(reason)) history.reasons.push(reason);
  history.points.push({
    at: atMs / 1000,
    dispatch: increase(earlier, dispatched) / seconds,
    p50: quantile(before.metrics, metrics, "berth_dispatch_seconds", 0.5),
    p99: quantile(before.metrics, metrics, "berth_dispatch_seconds", 0.99),
    used: slots.used,
    slots: slots.all,
    queue: total(metrics, "berth_queue_depth"),
    failed: increase(byLabel(before.metrics, "berth_jobs_total", "state").FAILED || 0, byLabel(metrics, "berth_jobs_total", "state").FAILED || 0),
    refusals: rates,
  });
  if (history.points.length > POINTS_MAX) history.points.shift();
}

export function latest() {
  return history.points[history.points.length - 1] || null;
}

/* uPlot's shape: times, then one array a series. */
export function columns(...pick) {
  return [history.points.map((p) => p.at), ...pick.map((of) => history.points.map((p) => of(p) ?? null))];
}
