/* Load for BullMQ, which is a library: sat and low as in bench/load, with its own client. bench/run installs and runs it.
 *
 *   node client.js sat --port N --jobs N --conc N
 *   node client.js low --port N --rate N --secs N
 *
 * The workers are a process of their own. Done: the submitter is told, by the queue's events. */
import { fork } from "node:child_process";
import { once } from "node:events";
import { Queue, QueueEvents, Worker } from "bullmq";

const WORKERS = 16; /* connections that wait for jobs, as the other servers have */
const LOW_CONC = 1024;

const verb = process.argv[2];
const flags = {};
for (let i = 3; i + 1 < process.argv.length; i += 2) flags[process.argv[i].slice(2)] = process.argv[i + 1];
const number = (name) => Number(flags[name]);
const connection = { host: "127.0.0.1", port: number("port"), maxRetriesPerRequest: null };
const nowUs = () => Number(process.hrtime.bigint()) / 1e3; /* CLOCK_MONOTONIC: those of two processes compare */

/* user and system, since the process began */
function cpuS() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

/* Ends with its parent. Each job's result is when it started. */
async function work() {
  const concurrency = Math.ceil(number("conc") / WORKERS);
  const workers = Array.from(
    { length: WORKERS },
    () => new Worker(flags.queue, async () => nowUs(), { connection, concurrency }),
  );
  await Promise.all(workers.map((worker) => worker.waitUntilReady()));
  process.on("message", () => process.send(cpuS()));
  process.on("disconnect", () => process.exit(0));
  process.send(cpuS()); /* all are ready */
}

class Submitter {
  constructor(queue) {
    this.queue = new Queue(queue, { connection, defaultJobOptions: { removeOnComplete: true, removeOnFail: true } });
    /* From the first event on: one may come before we have asked for events. */
    this.events = new QueueEvents(queue, { connection, lastEventId: "0" });
    this.waiting = new Map();
    this.submitted = 0;
    this.events.on("completed", ({ jobId, returnvalue }) => {
      this.waiting.get(jobId)(Number(returnvalue));
      this.waiting.delete(jobId);
    });
  }

  ready() {
    return Promise.all([this.queue.waitUntilReady(), this.events.waitUntilReady()]);
  }

  /* One whole job: how long until it started, and until we knew that it was done. */
  async submit() {
    const jobId = `job-${this.submitted++}`;
    const begun = nowUs();
    const ended = new Promise((go) => this.waiting.set(jobId, (startUs) => go([startUs - begun, nowUs() - begun])));
    await this.queue.add("noop", {}, { jobId });
    return ended;
  }
}

async function sat(submitter) {
  let left = number("jobs");
  const begun = nowUs();
  const keepOneOut = async () => {
    while (left-- > 0) await submitter.submit();
  };
  await Promise.all(Array.from({ length: number("conc") }, keepOneOut));
  return { jobs: number("jobs"), elapsed_s: (nowUs() - begun) / 1e6 };
}

async function low(submitter) {
  const jobs = [];
  const begun = nowUs();
  const periodUs = 1e6 / number("rate");
  for (let i = 0; i < number("rate") * number("secs"); i++) {
    const waitMs = (begun + i * periodUs - nowUs()) / 1e3;
    if (waitMs > 0) await new Promise((go) => setTimeout(go, waitMs));
    jobs.push(submitter.submit());
  }
  const us = await Promise.all(jobs);
  return { start_us: us.map((job) => job[0]), done_us: us.map((job) => job[1]) };
}

async function measure(run) {
  const queue = `bench-${process.pid}`;
  const conc = flags.conc ?? String(LOW_CONC);
  const worker = fork(process.argv[1], ["work", "--port", flags.port, "--queue", queue, "--conc", conc]);
  worker.on("exit", () => {
    console.error("client.js: the worker process ended");
    process.exit(1);
  });
  const submitter = new Submitter(queue);
  const [[workerBefore]] = await Promise.all([once(worker, "message"), submitter.ready()]);
  const before = cpuS();
  const found = await run(submitter);
  found.submit_cpu_s = cpuS() - before;
  worker.send("cpu");
  const [workerAfter] = await once(worker, "message");
  found.worker_cpu_s = workerAfter - workerBefore;
  console.log(JSON.stringify(found));
  process.exit(0);
}

const verbs = { work, sat: () => measure(sat), low: () => measure(low) };
await verbs[verb]();
