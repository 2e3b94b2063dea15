/* What the page believes of an answer. Much of it is the word of nodes and of whoever submits: a text is a text or null, a
 * number a finite number or null, a list a list, and what is not described here is not there. Everything the server says comes
 * through one of these before a view sees it. Texts are shown as text; into an address they get by href() and seg() alone. */
const number = (value) => (Number.isFinite(value) ? value : null);
const text = (value) => (typeof value === "string" ? value : null);
const flag = (value) => value === true;
const known = (value) => (typeof value === "boolean" ? value : null);
const any = (value) => value; /* shown as JSON, never looked into */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

function list(of) {
  return (value) => (Array.isArray(value) ? value.map(of) : []);
}

function map(of) {
  return (value) => Object.fromEntries(Object.entries(isObject(value) ? value : {}).map(([name, one]) => [name, of(one)]));
}

/* Names of numbers, of texts, and what else there is. */
function object(numbers, texts, more = {}) {
  const members = Object.entries(more);
  for (const name of numbers.split(" ")) members.push([name, number]);
  for (const name of texts.split(" ")) members.push([name, text]);
  return (value) => {
    const shaped = {};
    const from = isObject(value) ? value : {};
    for (const [name, of] of members) shaped[name] = of(from[name]);
    return shaped;
  };
}

const maybe = (of) => (value) => (isObject(value) ? of(value) : null);
const word = (value) => text(value) ?? "";
const words = (value) => (typeof value === "string" ? [value] : list(word)(value));

const task = object("", "job_id type title state");
const clamp = object("value", "name reason", { bites: flag });
const server = object(
  "last_seen_ms cpu_cores cpu_load cpu_pct mem_total_gb mem_free_gb swap_used_pct disk_total_gb disk_free_gb gpu_pct slots_max slots_available slots_in_use",
  "name role offline_reason health admin level tripped figures_reason",
  { online: flag, clamps: list(clamp), tasks: list(task), available_for: words },
);
const point = object("at_ms dispatched_per_s p50_ms p99_ms slots_used slots_max queue failed", "", { refused_per_s: map(number) });
const breaker = object("failures opened_ms", "node_id type", { state: word });
const pool = object("members ready version", "pool_id src tgt");
const copy = object("index version restarts since_ms port", "address node_id reason limits", { state: word, healthy: known });
const update = object("good_version", "state reason");
export const deployment = object("generation version count max_unavailable ready", "id type package_name package_version selector address updated_at", {
  enabled: flag,
  update: maybe(update),
  command: words,
  args: words,
  copies: list(copy),
});
const attempt = object("attempt_id at_ms dispatched_ms ended_ms", "node_id outcome reason");
export const job = object(
  "attempt_id max_attempts priority created_ms updated_ms dispatched_ms acked_ms ended_ms queue_ms timeout_ms",
  "job_id state node_id session_id src tgt audio_ref type title reason requires retried_from submitted_by callback",
  { command: words, attempts: list(attempt), payload: any, result: any },
);
const decision = object("at_ms attempt_id snapshot_version nodes_total nodes_left_out", "outcome detail node_id policy policy_key pool_id", {
  waits: flag,
  reasons: map(number),
  nodes: list(object("", "node_id reason detail")),
  keys: list(object("", "key why detail")),
});
const times = object("p50 p95", "");
const FIGURES = "jobs attempts retried failovers kills breaker_opened success_rate slot_use";
const figures = { wait_ms: times, run_ms: times };
const jobEvent = object("attempt_id at_ms", "what job_id state node_id reason");

/* Answers, by route. */
export const status = object("total_slots available_slots", "cluster_status recommendation", { stale: flag, servers: map(server) });
export const stats = object("", "", { points: list(point) });
export const breakers = object("", "", { breakers: list(breaker) });
export const pools = object("", "", { pools: list(pool) });
const limit = object("concurrency queue weight in_flight waiting started held_ms", "rule rate hold_reason", { key: word });
export const limits = object("", "next_cursor", { limits: list(limit) });
export const deployments = object("", "", { deployments: list(deployment) });
export const ready = object("", "version");
export const jobs = object("", "next_cursor", { jobs: list(job) });
export const placed = object("", "job_id");
export const explain = object("", "node_id", { decisions: list(decision), now: maybe(decision) });
export const logs = object("offset next total", "", { text: word, ended: flag });
const amount = object("capacity usable promised left", "");
const gpu = object("id", "model", { vram_mb: amount, whole: flag });
/* By name, and the GPUs. */
function resources(value) {
  const { gpus, ...named } = isObject(value) ? value : {};
  return { named: Object.entries(map(amount)(named)), gpus: list(gpu)(gpus) };
}
export const node = object("max_concurrent_jobs health_score registered_ms", "reached_by endpoint agent_version", {
  allowed_types: words,
  fixed: words,
  loaded: words,
  nmt_pairs: (value) => (value === "any" ? value : list(words)(value)),
  labels: map(word),
  resources,
  why_not: maybe(object("", "reason detail")),
});
export const report = object("since_ms until_ms", "scope", {
  servers: list(
    object(FIGURES, "node_id", { ...figures, level_minutes: map(number), types: list(object(FIGURES, "type", figures)) }),
  ),
  refused: list(object("count", "type reason")),
  total: maybe(object(FIGURES, "", figures)),
});
const USED = "runs run_seconds slot_seconds core_seconds gb_seconds gpu_seconds vram_gb_seconds";
export const usage = object("", "by", { rows: list(object(USED, "name")), total: maybe(object(USED, "")) });
export const problem = object("", "detail title error job_id");
export const events = { job: jobEvent, node: jobEvent, skipped: object("events", ""), gap: object("", "") };

/* A row of a table by a name that somebody else chose. */
export function pick(table, name) {
  return Object.prototype.hasOwnProperty.call(table, name) ? table[name] : undefined;
}
