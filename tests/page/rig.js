/* Starts the real program, agents on simulated machines, and a real browser; ends them all. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync, readdirSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

export const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
export const BINARY = process.env.BERTH_BIN || path.join(ROOT, "build/berth");
const CHROMIUM = process.env.CHROMIUM || "/usr/bin/chromium";

const wait = (ms) => new Promise((go) => setTimeout(go, ms));

/* Calls check() until it returns something true, and returns that. */
export async function eventually(what, check, seconds = 60) {
  const deadline = Date.now() + seconds * 1000;
  for (;;) {
    const found = await check();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`in ${seconds} s it never happened: ${what}`);
    await wait(20);
  }
}

function flags(settings) {
  return Object.entries(settings).flatMap(([name, value]) => [`--${name.replaceAll("_", "-")}`, String(value)]);
}

/* Jobs of a case wait for files of the case, which belong to root if it runs as root. Without this they would run as another user. */
const OWN_WORK = process.geteuid() === 0 ? { job_user: "root", allow_root: true } : {};

/* One berth process, which ends with this one. */
class Process {
  constructor(dir, name, args) {
    const env = Object.fromEntries(Object.entries(process.env).filter(([key]) => !key.startsWith("BERTH_")));
    this.logPath = path.join(dir, `${name}.log`);
    const log = openSync(this.logPath, "a");
    this.child = spawn("setpriv", ["--pdeathsig", "KILL", BINARY, ...args], { stdio: ["ignore", log, log], env });
    this.exited = once(this.child, "exit");
  }

  get log() {
    return readFileSync(this.logPath, "utf8");
  }

  async kill(signal = "SIGKILL") {
    if (this.child.exitCode === null && this.child.signalCode === null) this.child.kill(signal);
    await this.exited;
  }
}

/* A simulated machine for an agent: its own proc files, so that the load of the real machine does not matter. */
export function machine(dir, name, { cores = 8, load = 0.3, totalGb = 16, freeGb = 13 } = {}) {
  const root = path.join(dir, `machine-${name}`);
  const gib = 1024 * 1024;
  const cpu = "100 0 100 90000 0 0 0 0 0 0\n";
  mkdirSync(path.join(root, "proc"), { recursive: true });
  const put = (file, text) => writeFileSync(path.join(root, "proc", file), text);
  put("loadavg", `${load} ${load} ${load} 1/100 1234\n`);
  put(
    "meminfo",
    `MemTotal: ${Math.round(totalGb * gib)} kB\nMemAvailable: ${Math.round(freeGb * gib)} kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n`,
  );
  put("stat", `cpu  ${cpu}${Array.from({ length: cores }, (_, at) => `cpu${at} ${cpu}`).join("")}`);
  return root;
}

/* Everything that one case needs, in its own directory. */
export class Rig {
  constructor() {
    this.dir = mkdtempSync(path.join(tmpdir(), "berth-page-"));
    this.processes = [];
    this.browsers = [];
  }

  async server(settings = {}, config = null) {
    /* On a busy machine the store or an acknowledging node may take seconds; nodes that a case registers send no heartbeats. */
    const patient = { store_timeout_ms: 30000, reservation_ttl_ms: 30000, heartbeat_stale_ms: 180000 };
    const all = { listen: "127.0.0.1:0", data_dir: path.join(this.dir, "server"), ...patient, ...settings };
    if (config) {
      all.config = path.join(this.dir, "server.yaml");
      writeFileSync(all.config, config);
    }
    const name = `server-${this.processes.length}`;
    const server = new Process(this.dir, name, ["server", ...flags(all)]);
    this.processes.push(server);
    const found = await eventually("the server listens", () => {
      if (server.child.exitCode !== null) throw new Error(`the server ended:\n${server.log}`);
      return /event=server\.listening .*?addr=\S*:(\d+)/.exec(server.log);
    });
    this.port = Number(found[1]);
    this.url = `http://127.0.0.1:${this.port}`;
    return server;
  }

  async agent(id, { on = {}, config = null, ...settings } = {}) {
    const all = {
      server: this.url,
      node_id: id,
      data_dir: path.join(this.dir, `agent-${id}`),
      host_root: machine(this.dir, id, on),
      slots_fixed: 4,
      allow_commands: true,
      allow_deployments: true,
      gpu_command: "",
      monitor_interval_ms: 200,
      ...OWN_WORK,
      ...settings,
    };
    if (config) {
      all.config = path.join(this.dir, `agent-${id}.yaml`);
      writeFileSync(all.config, config);
    }
    const agent = new Process(this.dir, `agent-${id}-${this.processes.length}`, ["agent", ...flags(all)]);
    this.processes.push(agent);
    await eventually(`${id} is connected`, () => agent.log.includes("event=agent.connected"));
    return agent;
  }

  async call(method, route, body, headers = {}) {
    const answer = await fetch(this.url + route, { method, headers, body: body && JSON.stringify(body) });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${route} answered ${answer.status} ${text}`);
    return text ? JSON.parse(text) : null;
  }

  get(route) {
    return this.call("GET", route);
  }

  post(route, body = {}) {
    return this.call("POST", route, body);
  }

  task(fields) {
    return this.post("/v1/dispatch/task", { type: "dev", queue_ms: 60000, ...fields });
  }

  /* A page in its own browser. `troubles` collects violations of the security policy and errors of scripts. */
  async page(options = {}) {
    const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
    this.browsers.push(browser);
    const context = await browser.newContext({ viewport: { width: 1360, height: 860 }, ...options });
    const page = await context.newPage();
    page.troubles = [];
    page.setDefaultTimeout(60000);
    page.on("pageerror", (error) => page.troubles.push(`error: ${error.message}`));
    page.on("console", (message) => {
      const text = message.text();
      /* a browser reports every answer that is not 2xx; cases check those where they expect them */
      if (message.type() === "error" && !/Failed to load resource|ERR_/.test(text))
        page.troubles.push(`console: ${text}`);
    });
    return page;
  }

  async open(route = "/", options = {}) {
    const page = await this.page(options);
    await page.goto(this.url + route);
    return page;
  }

  /* Ends all processes, also those that agents left running. */
  async end() {
    for (const browser of this.browsers) await browser.close();
    for (const one of this.processes.reverse()) await one.kill();
    for (const pid of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
      try {
        if (readFileSync(`/proc/${pid}/environ`, "utf8").includes(`=${this.dir}/`))
          process.kill(Number(pid), "SIGKILL");
      } catch {
        /* it ended meanwhile, or we may not read it */
      }
    }
    rmSync(this.dir, { recursive: true, force: true });
  }
}
