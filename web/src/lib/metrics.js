/* Prometheus text, as far as the page needs it: sums by label, rates between two scrapes, quantiles of
 * a histogram's increase. */
const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;

/* {name: [{labels, value}]} */
export function parseMetrics(text) {
  const found = {};
  for (const line of text.split("\n")) {
    if (!line || line[0] === "#") continue;
    const parts = LINE.exec(line);
    if (!parts) continue;
    const labels = {};
    for (const [, name, value] of (parts[2] || "").matchAll(LABEL)) labels[name] = value;
    (found[parts[1]] ||= []).push({ labels, value: Number(parts[3]) });
  }
  return found;
}

export function total(metrics, name) {
  return (metrics[name] || []).reduce((sum, row) => sum + row.value, 0);
}

export function byLabel(metrics, name, label) {
  const sums = {};
  for (const row of metrics[name] || []) sums[row.labels[label]] = (sums[row.labels[label]] || 0) + row.value;
  return sums;
}

/* A counter that went back was started anew. */
export function increase(before, now) {
  return now >= before ? now - before : now;
}

function bounds(metrics, name) {
  const sums = new Map();
  for (const row of metrics[`${name}_bucket`] || []) {
    const le = row.labels.le === "+Inf" ? Infinity : Number(row.labels.le);
    sums.set(le, (sums.get(le) || 0) + row.value);
  }
  return [...sums].sort((a, b) => a[0] - b[0]);
}

/* Seconds below which the share `q` of what came between two scrapes lies; null when nothing came. */
export function quantile(before, now, name, q) {
  const old = new Map(bounds(before, name));
  const rows = bounds(now, name).map(([le, count]) => [le, increase(old.get(le) || 0, count)]);
  const all = rows.length ? rows[rows.length - 1][1] : 0;
  let low = 0;
  let below = 0;
  if (!all) return null;
  for (const [le, count] of rows) {
    if (count >= q * all) {
      if (le === Infinity) return low;
      return count === below ? le : low + ((le - low) * (q * all - below)) / (count - below);
    }
    low = le;
    below = count;
  }
  return low;
}
