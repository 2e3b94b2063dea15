/* Takes the screenshots in docs/: node tests/page/shots.js [SECONDS [NAME...]]
 *
 * They show a small cluster with some of everything: free slots, load, work, a machine in danger and one that is offline. */
import { mkdirSync } from "node:fs";
import path from "node:path";
import { eventually, Rig, ROOT } from "./rig.js";
import { drawTerminal } from "./terminal.js";

const DOCS = path.join(ROOT, "docs", "page");
const SECONDS = Number(process.argv[2] || 290); /* of work before the screenshots, so that the charts have data */
const ONLY = process.argv.slice(3);
const ROUTES =
  "routes:\n  dev: [us, eu]\n  review: [us]\n  talk: [hk, us]\n  research: [hk, eu, us]\ndefault_route: [us]\n";
const AGENTS = {
  us: {
    on: { cores: 8, load: 2.6, totalGb: 15, freeGb: 9.2 },
    name: "US VPS",
    role: "main",
    allowed_types: "dev,review,automation,talk,research",
    slots_fixed: 5,
  },
  hk: {
    on: { cores: 4, load: 1.1, totalGb: 7.6, freeGb: 4.1 },
    name: "HK VPS",
    role: "aux",
    allowed_types: "talk,research,automation",
    slots_fixed: 2,
  },
  eu: {
    on: { cores: 16, load: 10.8, totalGb: 32, freeGb: 8.5 },
    name: "EU build",
    role: "build",
    allowed_types: "dev,research",
    slots_fixed: 8,
  },
  lab: {
    on: { cores: 4, load: 3.7, totalGb: 16, freeGb: 1.9 },
    name: "Lab box",
    role: "spare",
    allowed_types: "research",
  },
  old: { on: { cores: 4 }, name: "Old laptop", role: "spare", allowed_types: "research" },
};
const LONG = [
  [
    "dev",
    "Rewrite the importer",
    'for i in $(seq 1 900); do echo "[$i/900] compiling src/importer/part_$i.c"; sleep 0.4; done',
    9,
  ],
  ["review", "Look at pull request 218", "sleep 900", 7],
  ["talk", "Answer the morning mail", "sleep 900", 5],
  ["dev", "Port the tests", "sleep 900", 8],
];

async function work(rig, seconds) {
  const until = Date.now() + seconds * 1000;
  const titles = ["Summarise the thread", "Draft the release notes", "Compare three queues", "Tidy the changelog"];
  for (let at = 0; Date.now() < until; at++) {
    const wave = at % 70 === 60 ? 24 : 3 + Math.round(2 * Math.sin(at / 17) + Math.random());
    for (let n = 0; n < wave; n++)
      await rig
        .task({
          type: ["talk", "dev", "research"][(at + n) % 3],
          title: titles[(at + n) % 4],
          priority: 8,
          command: ["sleep", "0.4"],
        })
        .catch(() => {});
    if (at % 4 === 0)
      await rig
        .post("/v1/dispatch/task", at % 12 ? { type: "sculpt" } : { type: "research", requires: "zone=mars" })
        .catch(() => {});
    await new Promise((go) => setTimeout(go, 350));
  }
}

async function shoot(rig, page, name, hash, wait) {
  if (ONLY.length && !ONLY.includes(name)) return;
  await page.goto(`${rig.url}/#/${hash}`);
  await page.waitForSelector(wait);
  await page.waitForTimeout(700); /* until bars and charts stop moving */
  await page.screenshot({ path: path.join(DOCS, `${name}.png`) });
}

const rig = new Rig();
mkdirSync(DOCS, { recursive: true });
try {
  await rig.server({ heartbeat_ms: 1000 }, ROUTES);
  const agents = {};
  for (const [id, settings] of Object.entries(AGENTS)) agents[id] = await rig.agent(id, settings);
  const jobs = [];
  for (const [type, title, command, priority] of LONG)
    jobs.push(await rig.task({ type, title, priority, command: ["sh", "-c", command] }));
  await rig.call("PUT", "/v1/deployments/web", {
    package_name: "web",
    package_version: "1.4.2",
    command: ["sh", "-c", "while sleep 1; do echo GET / 200; done"],
  });
  const failed = await rig.task({
    type: "dev",
    title: "Deploy staging",
    priority: 9,
    max_attempts: 2,
    command: ["sh", "-c", "echo connecting to staging; echo 'error: host unreachable' >&2; exit 7"],
  });
  await eventually("the job has failed", async () => (await rig.get(`/v1/jobs/${failed.job_id}`)).state === "FAILED");
  await work(rig, SECONDS - 6);
  await agents.old.kill();
  const light = await rig.open("/", { colorScheme: "light", viewport: { width: 1360, height: 900 } });
  const dark = await rig.open("/", { colorScheme: "dark", viewport: { width: 1360, height: 900 } });
  const phone = await rig.open("/", {
    colorScheme: "light",
    viewport: { width: 390, height: 844 },
    deviceScaleFactor: 2,
    isMobile: true,
  });
  await work(rig, 6);
  await shoot(rig, light, "overview", "", ".card");
  await shoot(rig, dark, "overview-dark", "", ".card");
  await shoot(rig, dark, "job", `jobs/${jobs[0].job_id}`, ".logs pre");
  await shoot(rig, light, "failed", `jobs/${failed.job_id}`, "#explain");
  await shoot(rig, light, "node", "nodes/lab", ".why-panel");
  await shoot(rig, light, "jobs", "jobs", ".rows td");
  await shoot(rig, phone, "phone", "", ".card");
  if (!ONLY.length || ONLY.includes("top")) {
    const working = work(rig, 4);
    await drawTerminal(rig, dark, "berth top --once", path.join(DOCS, "top.png"));
    await working;
  }
} finally {
  await rig.end();
}
