#!/usr/bin/env node
// A berth client with what Node 18 brings along.
//
//   client.mjs run TYPE COMMAND      start a task, wait for its end, print what it printed
//   client.mjs why JOB_ID            why it went to its node, or to none
//   client.mjs events [COUNT]        follow what happens; takes up where it left when cut off
//
// BERTH_ADDR is the server (http://127.0.0.1:7420), BERTH_TOKEN a token if it wants one.
import { randomUUID } from "node:crypto";

const addr = process.env.BERTH_ADDR ?? "http://127.0.0.1:7420";
const pause = (ms) => new Promise((over) => setTimeout(over, ms));

class Refused extends Error {
  constructor(problem) {
    super(`${problem.error}: ${problem.detail}`);
    this.problem = problem;
  }
}

function request(method, path, body, headers = {}) {
  const token = process.env.BERTH_TOKEN;
  return fetch(addr + path, {
    method,
    headers: {
      "Content-Type": "application/json",
      ...(token ? { Authorization: `Bearer ${token}` } : {}),
      ...headers,
    },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
}

// One answer. Tried again while there is none, or the server asks to come back later: what must not happen twice
// carries an Idempotency-Key.
async function call(method, path, body, headers, tries = 10) {
  for (let left = tries - 1; ; left--) {
    let answer;
    try {
      answer = await request(method, path, body, headers);
    } catch (error) {
      if (!left) throw error;
      await pause(1000);
      continue;
    }
    const json = await answer.json();
    if (answer.ok) return json;
    if (![429, 503, 504].includes(answer.status) || !left) throw new Refused(json);
    await pause(1000 * Number(answer.headers.get("Retry-After") ?? 1));
  }
}

async function run(type, command) {
  const task = { type, command, queue_ms: "60s" };
  let job = await call("POST", "/v1/dispatch/task", task, { "Idempotency-Key": randomUUID() });
  while (!["DONE", "FAILED"].includes(job.state)) job = await call("GET", `/v1/jobs/${job.job_id}?wait=30s`);
  process.stdout.write(job.result?.tail ?? "");
  if (job.state === "FAILED") console.error(`${job.job_id} failed: ${job.reason}`);
  return job.state === "DONE" ? 0 : 1;
}

async function why(jobId) {
  for (const decision of (await call("GET", `/v1/jobs/${jobId}/explain`)).decisions) {
    console.log(`attempt ${decision.attempt_id}: ${decision.outcome}`);
    for (const node of decision.nodes) console.log(`  ${node.node_id}: ${node.reason}: ${node.detail}`);
  }
  return 0;
}

async function* lines(stream) {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const piece of stream) {
    const whole = (rest + decoder.decode(piece, { stream: true })).split("\n");
    rest = whole.pop();
    yield* whole;
  }
}

async function events(count = Infinity) {
  let lastId, name, seen = 0;
  for (;;) {
    try {
      const answer = await request("GET", "/v1/events", undefined, lastId ? { "Last-Event-ID": lastId } : {});
      for await (const line of lines(answer.body)) {
        const [, key, value] = /^(\w*): (.*)$/.exec(line) ?? [];
        if (key === "id") lastId = value;
        else if (key === "event") name = value;
        else if (key === "data") {
          console.log(name, value);
          if (++seen >= Number(count)) process.exit(0);
        }
      }
    } catch {
      await pause(1000);
    }
  }
}

const [verb, ...args] = process.argv.slice(2);
const commands = { run, why, events };
if (!commands[verb]) {
  console.error("usage: client.mjs run TYPE COMMAND | why JOB_ID | events [COUNT]");
  process.exit(2);
}
try {
  process.exitCode = await commands[verb](...args);
} catch (error) {
  console.error(error.message);
  if (error.problem?.job_id) await why(error.problem.job_id);
  process.exitCode = 5;
}
