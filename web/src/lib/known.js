/* What the page knows of the cluster. One stream of events says that something changed; the state
 * itself is read from the API. Records are replaced, never changed in place, so that a row can tell by
 * identity whether it must be drawn again. */
import { askLogin, get, login, seg } from "./api.js";
import { now } from "./clock.js";
import { rank } from "./explain.js";
import { byName } from "./format.js";
import { changed, inFrame } from "./frame.js";
import { addPoints, latest } from "./history.js";
import { Poll } from "./poll.js";
import * as shape from "./shape.js";
import { follow } from "./stream.js";

const EVENTS_MAX = 500;
const EVENTS_MS = 200; /* nobody reads faster */
const STATE_MS = 2000;
const SLOW_MS = 5000;
const JOBS_PAGE = 100;

export const known = {
  link: { state: "connecting", heardMs: 0, retryMs: 0 },
  cluster: null /* status, total, available, recommendation, stale */,
  servers: [] /* by id; `at` is the place in this order */,
  worstFirst: [] /* the same, by how they are */,
  serverById: new Map(),
  breakers: [],
  pools: null,
  deployments: null /* none: not read yet, or this server has no place for them */,
  version: "",
  events: [] /* newest last */,
  eventCount: 0,
};

/* Jobs as the current filter has them, newest first. */
export const jobs = { query: "", rows: [], index: new Map(), cursor: null, loaded: false, error: null };

const watched = new Map(); /* job id -> function to call when it changed */

export function watchJob(id, tell) {
  watched.set(id, tell);
  return () => watched.delete(id);
}

function setLink(state, more = {}) {
  if (known.link.state !== state) known.link = { ...known.link, state, ...more };
  else Object.assign(known.link, more);
  changed("link");
}

function heard() {
  known.link.heardMs = now();
  if (known.link.state !== "live" && known.link.streaming) setLink("live");
}

function failed(error) {
  if (error && error.status === 401) {
    for (const poll of [statePoll, slowPoll, jobsPoll]) poll.stop(); /* until there is a token */
    setLink("login");
  } else if (!error || !error.status) setLink("lost");
}

/* --- the cluster --- */

/* Comparing names as people do is slow, and the names are nearly always those of last time. */
let places = new Map();

function placesOf(ids) {
  if (ids.length !== places.size || !ids.every((id) => places.has(id)))
    places = new Map([...ids].sort(byName).map((id, at) => [id, at]));
  return places;
}

function takeCluster(answer) {
  const servers = [];
  const ids = Object.keys(answer.servers);
  const at = placesOf(ids);
  for (const id of ids) {
    const server = answer.servers[id];
    server.id = id;
    server.at = at.get(id);
    server.rank = rank(server);
    servers[server.at] = server;
  }
  known.servers = servers;
  known.worstFirst = [...servers].sort((a, b) => a.rank - b.rank || a.at - b.at);
  known.serverById = new Map(servers.map((server) => [server.id, server]));
  known.cluster = {
    status: answer.cluster_status,
    total: answer.total_slots,
    available: answer.available_slots,
    used: servers.reduce((sum, server) => sum + server.slots_in_use, 0),
    recommendation: answer.recommendation,
    stale: answer.stale,
  };
  changed("cluster");
}

async function readState() {
  try {
    const [cluster, stats] = await Promise.all([
      get("/v1/cluster/status?brief=1", shape.status),
      get(`/v1/stats?since=${seg(latest() ? latest().at_ms : 0)}`, shape.stats),
    ]);
    heard();
    inFrame(() => {
      takeCluster(cluster);
      addPoints(stats.points);
      changed("history");
    });
  } catch (error) {
    failed(error);
  }
}

async function readSlow() {
  try {
    const found = await Promise.all(
      [
        get("/v1/breakers?limit=1000", shape.breakers),
        get("/v1/pools?limit=1000", shape.pools),
        get("/v1/deployments?limit=1000", shape.deployments),
        get("/readyz", shape.ready),
      ].map((wait) => wait.catch((error) => error)),
    );
    inFrame(() => {
      if (found[0].breakers) known.breakers = found[0].breakers.filter((breaker) => breaker.state !== "CLOSED");
      if (found[1].pools) known.pools = found[1].pools;
      if (found[2].deployments || found[2].code === "DEPLOYMENTS_NEED_SHARED_DATABASE")
        known.deployments = found[2].deployments;
      known.version = found[3].version || known.version;
      changed("slow");
    });
  } catch (error) {
    failed(error);
  }
}

export const statePoll = new Poll(readState, STATE_MS);
export const slowPoll = new Poll(readSlow, SLOW_MS);

/* --- jobs --- */

function takeJobs(query, page, append) {
  if (query !== jobs.query) return; /* an answer to an older question */
  jobs.rows = append ? [...jobs.rows, ...page.jobs.filter((job) => !jobs.index.has(job.job_id))] : page.jobs;
  jobs.index = new Map(jobs.rows.map((job, at) => [job.job_id, at]));
  jobs.cursor = page.next_cursor;
  jobs.loaded = true;
  jobs.error = null;
  changed("jobs");
}

async function readJobs() {
  const query = jobs.query;
  const limit = Math.max(JOBS_PAGE, Math.min(1000, jobs.rows.length));
  try {
    const page = await get(`/v1/jobs?limit=${seg(limit)}${query ? `&${query}` : ""}`, shape.jobs);
    heard();
    inFrame(() => takeJobs(query, page, false));
  } catch (error) {
    jobs.error = error.status ? error : null;
    jobs.loaded = jobs.loaded || Boolean(error.status);
    failed(error);
    changed("jobs");
  }
}

export const jobsPoll = new Poll(readJobs, 15000);

export function askJobs(query) {
  if (query === jobs.query) return;
  jobs.query = query;
  jobs.loaded = false;
  jobs.rows = [];
  jobs.index = new Map();
  jobs.cursor = null;
  jobsPoll.soon();
  changed("jobs");
}

export async function moreJobs() {
  const query = jobs.query;
  if (!jobs.cursor) return;
  const page = await get(`/v1/jobs?limit=${seg(JOBS_PAGE)}&cursor=${seg(jobs.cursor)}${query ? `&${query}` : ""}`, shape.jobs);
  inFrame(() => takeJobs(query, page, true));
}

function applyJob(event) {
  const at = jobs.index.get(event.job_id);
  const tell = watched.get(event.job_id);

  if (tell) tell(event);
  if (at === undefined) {
    jobsPoll.soon(1000);
    return;
  }
  const { state, node_id, attempt_id, reason, at_ms } = event;
  const before = jobs.rows[at];
  const ended_ms = state === "DONE" || state === "FAILED" ? at_ms : before.ended_ms;
  jobs.rows[at] = { ...before, state, node_id, attempt_id, reason, updated_ms: at_ms, ended_ms };
  changed("jobs");
}

/* --- events --- */

let showEvents = 0;

function keepEvent(kind, event) {
  event.kind = kind;
  event.at_ms ||= now();
  known.eventCount++;
  known.events.push(event);
  if (known.events.length > 2 * EVENTS_MAX) known.events = known.events.slice(-EVENTS_MAX);
  showEvents ||= setTimeout(() => {
    showEvents = 0;
    changed("events");
  }, EVENTS_MS);
}

const EVENTS = {
  job(event) {
    keepEvent("job", event);
    applyJob(event);
    statePoll.soon(1000);
  },
  node(event) {
    keepEvent("node", event);
    statePoll.soon(500);
  },
  /* More happened than anybody could look at. */
  skipped(event) {
    known.eventCount += event.events;
    statePoll.soon(1000);
    jobsPoll.soon(1000);
  },
  /* Events were missed: what is shown may be old. */
  gap() {
    statePoll.soon();
    slowPoll.soon();
    jobsPoll.soon();
  },
};

function onEvent(name, data) {
  heard();
  const apply = shape.pick(EVENTS, name);
  if (apply && !inFrame(() => apply(shape.events[name](JSON.parse(data))))) EVENTS.gap();
}

let wake = null;

export function start() {
  wake = follow("/v1/events?thin=1", {
    up() {
      known.link.streaming = true;
      setLink("live", { heardMs: now() });
      for (const poll of [statePoll, slowPoll, jobsPoll]) poll.start();
    },
    down(error, pauseMs) {
      known.link.streaming = false;
      const shut = error && (error.status === 401 || error.status === 403);
      if (error && error.status === 403) askLogin(error.message); /* a token that may not even look */
      setLink(shut ? "login" : "lost", { retryMs: now() + pauseMs, why: error && error.status ? error.message : null });
    },
    event: onEvent,
  });
}

/* A token was given, or somebody wants to try now. */
export function retry() {
  if (!login.wanted && wake) wake();
}
