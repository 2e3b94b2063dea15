/* What the charts show: the points the server keeps, one every two seconds of the last minutes. */
import { now } from "./clock.js";

export const WINDOW_S = 300;

export const history = { points: [], reasons: [] };

export function addPoints(points) {
  const known = history.points;
  const last = known.length ? known[known.length - 1].at_ms : 0;
  const fresh = points.filter((point) => point.at_ms > last);

  for (const point of fresh)
    for (const [reason, rate] of Object.entries(point.refused_per_s))
      if (rate > 0 && !history.reasons.includes(reason)) history.reasons.push(reason);
  history.points = known.concat(fresh).filter((point) => point.at_ms > now() - 1.1 * WINDOW_S * 1000);
}

export function latest() {
  return history.points[history.points.length - 1] || null;
}

/* uPlot's shape: times, then one array a series. */
export function columns(...pick) {
  return [
    history.points.map((point) => point.at_ms / 1000),
    ...pick.map((of) => history.points.map((point) => of(point) ?? null)),
  ];
}
