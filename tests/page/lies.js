/* Answers with wrong values: whatever a node or a submitter wrote into them, or a proxy made of them, every view still works,
 * shows text as text, and links to nothing outside the page. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { eventually, ROOT, Rig } from "./rig.js";

const HOSTILE = `"><img src=x onerror="window.ran=1">javascript:alert(1)`;

/* Each replaces every value of that kind in an answer. */
const LIES = {
  "texts are markup and scripts": { string: () => HOSTILE },
  "texts are names of what every object has": { string: () => "constructor" },
  "texts are numbers": { string: () => 7 },
  "texts are objects": { string: () => ({ type: "script", props: { dangerouslySetInnerHTML: { __html: HOSTILE } }, __html: HOSTILE }) },
  "texts are missing": { string: () => undefined },
  "numbers are texts": { number: () => HOSTILE },
  "numbers are too large": { number: () => 1e300 },
  "numbers are missing": { number: () => undefined },
  "flags are texts": { boolean: () => "false" },
  "lists are texts": { array: () => "list" },
  "lists are missing": { array: () => undefined },
  "lists hold nothing good": { array: (list) => [null, 7, "x", [], ...list] },
  "objects are lists": { object: (value, depth) => (depth > 0 ? [] : value) },
  "the answer is none": { object: (value, depth) => (depth === 0 ? null : value) },
};

function kindOf(value) {
  return Array.isArray(value) ? "array" : value === null ? "null" : typeof value;
}

function lied(value, lie, depth = 0) {
  const kind = kindOf(value);
  if (lie[kind] && (depth > 0 || kind === "object")) {
    const other = lie[kind](value, depth);
    if (other !== value) return other;
  }
  if (kind === "array") return value.map((one) => lied(one, lie, depth + 1));
  if (kind !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, lied(one, lie, depth + 1)]));
}

/* A cluster with something in every view. */
async function furnished(rig) {
  await rig.server();
  await rig.post("/v1/node/register", {
    node_id: "n1",
    semantic_langs: ["en", "zh"],
    nmt_pairs: [["en", "zh"]],
    tts_langs: ["zh"],
    allowed_types: ["dev"],
    labels: { zone: "eu" },
    resources: { cpu: 8, licences: 3, gpus: [{ id: 0, model: "L4", vram_mb: 23034 }] },
    max_concurrent_jobs: 4,
  });
  const job = await rig.task({ title: "work", session_id: "room", command: ["echo", "x"], payload: { a: [1] }, max_attempts: 1 });
  const ends = { job_id: job.job_id, attempt_id: 1, node_id: "n1" };
  await rig.post("/v1/job/ack", ends);
  await rig.post("/v1/job/fail", { ...ends, reason: "EXIT_1" });
  await rig.post("/v1/node/heartbeat", {
    node_id: "n1",
    level: "warning",
    usage: { cpu_cores: 4, cpu_load: 1, mem_total_gb: 8, mem_free_gb: 2, slots_max: 4, slots_available: 2, slots_in_use: 1,
      tripped: "cpu", clamps: [{ name: "by_cpu", value: 2, reason: "load" }] },
  });
  await rig.call("PUT", "/v1/limits/tenant:acme", { concurrency: 3, rate: "60/1m", queue: 10 });
  await rig.call("PUT", "/v1/deployments/web", { command: ["sleep", "1"] });
  return ["/", "/#/nodes", "/#/nodes/n1", "/#/jobs", `/#/jobs/${job.job_id}`, "/#/pools", "/#/events", "/#/report", "/#/limits", "/#/deployments", "/#/deployments/web"];
}

/* No script ran, no link leaves the page, and the tabs to the other views are there. */
async function stands(page, where) {
  const found = await page.evaluate(() => ({
    ran: window.ran,
    tabs: document.querySelectorAll(".tabs a").length,
    shown: document.querySelector("main").textContent.trim().length,
    broken: document.querySelector("main").textContent.includes("This cannot be shown"),
    links: [...document.querySelectorAll("[href], [src], [action], [formaction]")]
      .map((one) => ["href", "src", "action", "formaction"].map((name) => one.getAttribute(name)).find(Boolean))
      .filter((to) => !/^(#\/|\/page\/)/.test(to)),
    foreign: document.querySelectorAll("main script, main iframe, main img, main object, main embed").length,
  }));
  assert.equal(found.ran, undefined, where);
  assert.deepEqual(found.links, [], where);
  assert.equal(found.foreign, 0, where);
  assert.ok(found.tabs >= 6 && found.shown > 0, `${where}: ${JSON.stringify(found)}`);
  assert.equal(found.broken, false, where);
}

async function everyView(rig, lies) {
  const views = await furnished(rig);
  const page = await rig.page();
  let lie = {};
  let open = 0;
  await page.route(/\/v1\/(?!events)|\/readyz/, async (route) => {
    open++;
    try {
      const answer = await route.fetch();
      if (answer.ok()) await route.fulfill({ response: answer, json: lied(await answer.json(), lie) });
      else await route.fulfill({ response: answer });
    } catch {
      /* the page has already left for the next view */
    } finally {
      open--;
    }
  });
  const drawn = () => page.evaluate(() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go))));
  for (const [name, how] of lies) {
    lie = how;
    await page.goto("about:blank");
    for (const view of views) {
      await page.goto(rig.url + view);
      await page.waitForSelector(".tabs a");
      await drawn();
      await eventually("all requests of the view are answered", () => open === 0);
      await drawn();
      await page.waitForFunction(() => document.querySelector("main").textContent.trim().length > 0);
      await stands(page, `${name}: ${view}`);
    }
    assert.deepEqual(page.troubles, [], name);
  }
}

/* Unchanged answers of a real server: a job's command may be a single text, and its other texts may be hostile. */
async function aCommandAsText(rig) {
  await rig.server();
  await rig.post("/v1/node/register", { node_id: "n1", allowed_types: ["dev"] });
  const job = await rig.task({ title: HOSTILE, command: "echo one two", session_id: "a/b?c#d" });
  const page = await rig.open(`/#/jobs/${job.job_id}`);
  await page.waitForSelector("dd code:has-text('echo one two')");
  await stands(page, "a job");
  assert.equal(await page.getAttribute("dd a[href*='session_id']", "href"), "#/jobs?session_id=a%2Fb%3Fc%23d");
  assert.deepEqual(page.troubles, []);
}

/* Anybody can make a link to the page with a wrong address. */
async function linksThatAreNone(rig) {
  await rig.server();
  const page = await rig.page();
  for (const hash of ["#/%", "#/jobs/%E0%A4%A", "#/constructor", "#/__proto__/x", "#/nodes/..%2f..%2fv1", "#javascript:alert(1)", "#/report?since=1h%26x"]) {
    await page.goto("about:blank");
    await page.goto(`${rig.url}/${hash}`);
    await page.waitForSelector(".tabs a");
    await page.waitForFunction(() => document.querySelector("main").textContent.trim().length > 0);
    await stands(page, hash);
    assert.deepEqual(page.troubles, [], hash);
  }
}

/* Checks the source: no text can become markup, and every value in an address of the API is encoded. */
async function theRuleIsKept() {
  const src = path.join(ROOT, "web/src");
  for (const name of readdirSync(src, { recursive: true }).filter((one) => one.endsWith(".js"))) {
    const text = readFileSync(path.join(src, name), "utf8");
    assert.doesNotMatch(text, /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc/i, name);
    for (const [, address] of text.matchAll(/`(\/(?:v1|api)\/(?:[^`$]|\$\{(?:[^{}`]|`[^`]*`)*\})*)`/g))
      for (const [, value] of address.matchAll(/\$\{((?:[^{}`]|`[^`]*`)*)\}/g))
        assert.match(value, /^(seg\(.*\)|verb|query \? `&\$\{query\}` : "")$/, `${name}: ${address}`);
    for (const [, to] of text.matchAll(/\shref=(\$\{(?:[^{}`]|`[^`]*`)*\}|"[^"]*")/g))
      assert.match(to, /^("(#\/|\/page\/)[^"]*"|\$\{(href\(|`\$\{href\(|session\}|to\}|one\.where\}))/, `${name}: ${to}`);
  }
}

/* One case for all would take too long, so there are two. */
const ofTexts = Object.entries(LIES).filter(([name]) => name.startsWith("texts"));
const ofTheRest = Object.entries(LIES).filter(([name]) => !name.startsWith("texts"));

export const liesCases = [
  ["every view stands, whatever its texts are", (rig) => everyView(rig, ofTexts)],
  ["every view stands, whatever it is told", (rig) => everyView(rig, ofTheRest)],
  ["a job whose command is one text", aCommandAsText],
  ["links that are none", linksThatAreNone],
].map(([name, run]) => [
  name,
  async () => {
    const rig = new Rig();
    try {
      await run(rig);
    } finally {
      await rig.end();
    }
  },
]).concat([["no text becomes markup or an address", theRuleIsKept]]);
